# Debian 12 with what ./ddp setup installs, and everything built, for the CPU:
#
#   docker build -t ddp.c .
#   docker run --init -it ddp.c ./ddp run 01_single_gpu -- --epochs 1
#   docker run --init -it ddp.c ./ddp test
#
# --init: somebody has to take leave of processes whose parents were killed, as the tests do.
# What computes is compiled for the processor at hand: build the image where it will run.
FROM debian:12

# A container's only user is root, whom mpirun refuses.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LANG=C.UTF-8

WORKDIR /ddp.c
COPY . .
RUN ./ddp setup
CMD ["bash"]
