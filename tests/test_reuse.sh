#!/usr/bin/env bash
# The example of docs/reuse.md must find the weights 1, 2, 3 and 4 on one to three ranks: in processes of its own
# (fork), under MPI, and with NCCL. Here NCCL is the library of exercises/gpu, which needs no GPU. Where NVIDIA's
# libraries are, the example is also compiled with them.
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
# broken RULE: deletes it from line.c, which then fails
broken()
{
    sed "/$1/d" line.c >broken.c
    expect 0 "" cc -o broken broken.c exchange_fork.c
    expect 1 "NOT equal on all 2 ranks" timeout 60 ./broken 2
}

for compiler in cc gcc clang; do
    type -P $compiler >/dev/null || { echo "there is no $compiler"; continue; }
    expect 0 "" $compiler "${strict[@]}" line.c exchange_fork.c
    fits ./a.out RANKS
done
expect 1 "how many ranks" ./a.out
expect 1 "how many ranks" ./a.out 65
broken "Rule 1:"
broken "Rule 3:"
for rank in 0 1 2; do
    sed "s/shuffle(order, epoch);/& if (rank == $rank \&\& epoch == 3) return 3;/" line.c >ends.c
    expect 0 "" cc -o ends ends.c exchange_fork.c
    timeout 60 ./ends 3 2>output | cat >/dev/null        # cat waits for all ranks
    check "the ranks end after rank $rank" is "${PIPESTATUS[0]}" $((rank > 0 ? 1 : 3))
    check "they say why" grep -q "a rank has ended" output
done

type -P mpicc mpirun >/dev/null || { echo "there is no mpicc or mpirun"; test_done; }
expect 0 "" mpicc "${strict[@]}" -o line line.c exchange_mpi.c
fits mpirun -np RANKS ./line
if [ -f "$tree/libgpu_shim.so" ]; then
    expect 0 "" mpicc "${strict[@]}" -I"$SRC/exercises/gpu" -o line_shim line.c exchange_nccl.c "$tree/libgpu_shim.so" \
        -Wl,-rpath,"$tree"
    fits mpirun -np RANKS ./line_shim
fi

found() { sed -n "s/^$1:[A-Z]*=//p" "$tree/CMakeCache.txt" | grep -v NOTFOUND; }
include=$(found NCCL_INCLUDE_DIR) nccl=$(found NCCL_LIBRARY) cudart=$(found CUDA_cudart_LIBRARY)
if [ -f "$include/cuda_runtime_api.h" ] && [ "$nccl" ] && [ "$cudart" ]; then
    expect 0 "" mpicc "${strict[@]}" -isystem "$include" -o line_nccl line.c exchange_nccl.c "$nccl" "$cudart"
else
    echo "no CUDA or no NCCL: exchange_nccl.c is not compiled"
fi
test_done
