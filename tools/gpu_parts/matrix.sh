. /tmp/env72
cd build
gcc -std=gnu11 -O1 -g -D_GNU_SOURCE -I../common -I../tests -I. -isystem /usr/local/cuda/include -c tools/gpu_parts/matrix.c -o tools/gpu_parts/matrix.o || exit 1
line=$(ninja -t commands test_cudnn_plans_cuda | tail -1 | sed 's/^: && //; s/ && :$//')
line=$(sed -E 's# tests/CMakeFiles/test_cudnn_plans_cuda.dir/test_cudnn_plans.c.o# tools/gpu_parts/matrix.o#; s# -o [^ ]+# -o tools/gpu_parts/matrix#' <<<"$line")
eval "$line"
