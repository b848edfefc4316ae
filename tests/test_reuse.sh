#!/usr/bin/env bash
# The example of docs/reuse.md must find the weights 1, 2, 3 and 4 on one to three ranks: in processes of its own
# (fork), under MPI, and with NCCL. So must perceptron.c with step 03's files, unchanged, and without common/. Here NCCL
# is the library of exercises/gpu, which needs no GPU. Where NVIDIA's libraries are, both are also compiled with them.
. "$SRC/tests/test.sh"
cp "$SRC"/docs/reuse/*.[ch] .
strict=(-std=c99 -pedantic -Wall -Wextra -Werror)
tree=${BUILD%/*}

fits()
{
    for ranks in 1 2 3; do
        expect 0 "equal on all $ranks ranks" timeout 60 "${@/RANKS/$ranks}"
        check "it finds 1 2 3 4" \
            grep -qE 'weights (0\.999|1\.000). (1\.999|2\.000). (2\.999|3\.000). (3\.999|4\.000).,' output
    done
}
# broken RULE: without the lines of this rule, line.c must fail
broken()
{
    sed "/$1/d" line.c >broken.c
    expect 0 "" cc -o broken broken.c exchange_fork.c
    expect 1 "NOT equal on all 2 ranks" timeout 60 ./broken 2
}

for compiler in cc clang; do
    type -P $compiler >/dev/null || { echo "there is no $compiler"; continue; }
    expect 0 "" $compiler "${strict[@]}" line.c exchange_fork.c
    fits ./a.out RANKS
done
broken "Rule 1:"
broken "Rule 3:"

type -P mpicc mpirun >/dev/null || { echo "there is no mpicc or mpirun"; test_done; }
expect 0 "" mpicc "${strict[@]}" -o line line.c exchange_mpi.c
fits mpirun -np RANKS ./line
if [ -f "$tree/libgpu_shim.so" ]; then
    expect 0 "" mpicc "${strict[@]}" -I"$SRC/exercises/gpu" -o line_shim line.c exchange_nccl.c "$tree/libgpu_shim.so" \
        -Wl,-rpath,"$tree"
    fits mpirun -np RANKS ./line_shim
fi

# --- a program of its own with ddp.c, broadcast.c and sampler.c --------------------------------------

mkdir perceptron
cp "$SRC"/docs/reuse/{perceptron.c,nccl_backend.c,comm.h,check.h,rng.h} perceptron
for file in ddp broadcast sampler; do cp "$SRC/03_ddp_fork/$file".[ch] perceptron; done
cp "$SRC/03_ddp_fork/ddp_naive.c" .

strict=(-std=c11 -Wall -Wextra -Wno-unused-parameter -Werror)
# perceptron NAME SOURCES...: builds the program NAME from these files.
perceptron()
{
    mpicc "${strict[@]}" -Iperceptron -I"$SRC/exercises/gpu" -o "$@" "$tree/libgpu_shim.so" -Wl,-rpath,"$tree" -lm
}
ranks() { timeout 60 mpirun --oversubscribe -np "$@"; }
if [ -f "$tree/libgpu_shim.so" ]; then
    check "perceptron.c: builds" perceptron buckets perceptron/*.c
    check "with ddp_naive.c: builds" \
        perceptron naive ddp_naive.c perceptron/{perceptron,nccl_backend,broadcast,sampler}.c
    expect 0 "equal on all 1 ranks" ranks 1 ./buckets
    one=$(sed -n 's/^weights \([-0-9.]*\),.*/\1/p' output)
    check "it learns" \
        awk '/^epoch 1,/ { first = $NF } /^epoch 8,/ { last = $NF } END { exit !(last < first / 4) }' output
    for n in 2 4; do
        for program in buckets naive; do
            expect 0 "weights $one, equal on all $n ranks" ranks $n ./$program
        done
    done
fi

include=$(cached NCCL_INCLUDE_DIR) nccl=$(cached NCCL_LIBRARY) cudart=$(cached CUDA_cudart_LIBRARY)
if [ -f "$include/cuda_runtime_api.h" ] && [ "$nccl" ] && [ "$cudart" ]; then
    expect 0 "" mpicc "${strict[@]}" -isystem "$include" -o line_nccl line.c exchange_nccl.c "$nccl" "$cudart"
    expect 0 "" mpicc "${strict[@]}" -isystem "$include" -o perceptron_nccl perceptron/*.c "$nccl" "$cudart" -lm
else
    echo "no CUDA or no NCCL: exchange_nccl.c and nccl_backend.c are not compiled with them"
fi
test_done
