#!/usr/bin/env bash
# The example of docs/reuse.md: compiled as its first lines say, it fits the same line on every number of ranks. A rank
# that starts with weights of its own is noticed. The NCCL variant runs without a GPU (exercises/gpu). With NVIDIA's
# libraries it is compiled where they are, and not run.
. "$SRC/tests/test.sh"
type -P mpicc mpirun >/dev/null || { echo "skipped: there is no mpicc or mpirun"; exit 77; }
cp "$SRC"/docs/reuse/*.[ch] .
strict=(-std=c11 -Wall -Wextra -Werror)

expect 0 "" mpicc "${strict[@]}" -o line line.c exchange_mpi.c
for ranks in 1 2 3; do
    expect 0 "equal on all $ranks ranks" timeout 60 mpirun -np $ranks ./line
    check "it finds 1 2 3 4" \
        grep -qE 'weights (0\.999|1\.000). (1\.999|2\.000). (2\.999|3\.000). (3\.999|4\.000).,' output
done

tree=${BUILD%/*}
if [ -f "$tree/libgpu_shim.so" ]; then
    expect 0 "" mpicc "${strict[@]}" -I"$SRC/exercises/gpu" -o line_shim line.c exchange_nccl.c "$tree/libgpu_shim.so" \
        -Wl,-rpath,"$tree"
    for ranks in 1 2 3; do
        expect 0 "equal on all $ranks ranks" timeout 60 mpirun -np $ranks ./line_shim
        check "it finds 1 2 3 4" \
            grep -qE 'weights (0\.999|1\.000). (1\.999|2\.000). (2\.999|3\.000). (3\.999|4\.000).,' output
    done
fi

sed -i '/MPI_Bcast(weights/d' line.c
expect 0 "" mpicc "${strict[@]}" -o line line.c exchange_mpi.c
expect 1 "NOT equal on all 2 ranks" timeout 60 mpirun -np 2 ./line

# found NAME: what CMake found
found() { sed -n "s/^$1:[A-Z]*=//p" "$tree/CMakeCache.txt" | grep -v NOTFOUND; }
include=$(found NCCL_INCLUDE_DIR) nccl=$(found NCCL_LIBRARY) cudart=$(found CUDA_cudart_LIBRARY)
if [ -f "$include/cuda_runtime_api.h" ] && [ "$nccl" ] && [ "$cudart" ]; then
    expect 0 "" mpicc "${strict[@]}" -isystem "$include" -o line_nccl line.c exchange_nccl.c "$nccl" "$cudart"
else
    echo "no CUDA or no NCCL: exchange_nccl.c is not compiled"
fi
test_done
