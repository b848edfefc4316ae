# Debian 12 with everything that ddp.c needs. `run` trains ResNet-18 on Fashion-MNIST for an epoch:
#
#   docker build -t ddp.c .
#   docker run --init -it ddp.c
#   docker run --init -it ddp.c bash          # look around; ./ddp test runs the tests
#
# --init: an init process reaps the orphans of processes that the tests kill. The image has no compiled programs: their
# first run compiles them for the machine's processor, in seconds.
#
# For GPUs: docker build --build-arg base=nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04 -t ddp.c .
#           docker run --init -it --gpus all ddp.c
# A mirror for apt: docker build --build-arg mirror=http://HOST, where HOST has debian and debian-security, or ubuntu.
ARG base=debian:12
FROM ${base}
ARG mirror=
RUN [ -z "$mirror" ] || find /etc/apt -name '*sources*' -type f -exec sed -Ei \
    "s,https?://(deb.debian|archive.ubuntu|security.ubuntu)[.](org|com),$mirror," {} +

# The container runs as root, and mpirun refuses root without this.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 LANG=C.UTF-8

WORKDIR /ddp.c
COPY . .
RUN ./ddp setup && ./ddp clean && apt-get clean && rm -rf /var/lib/apt/lists/*
CMD ["./ddp", "run", "01_single_gpu", "--", "--epochs", "1"]
