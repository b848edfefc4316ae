#!/usr/bin/env bash
# The mock of the exercises (fake_cuda/exercises.c), used by gpu_shim.c with one to three ranks. Mistakes end the run
# with a sentence that names them: two are here, the others in the checks of gpu-1 to gpu-4. Where NVIDIA's headers are,
# gpu_shim.c and the finished exercises compile with them.
# ctest: TIMEOUT 120 SANITIZERS asan tsan LABELS deadlines
# shellcheck disable=SC2317  # expect calls the functions
. "$SRC/tests/test.sh"
tree=${BUILD%/*}
library=$tree/libgpu_shim.so
[ -f "$library" ] || { echo "skipped: this build has no gpu_shim, which needs Gloo and MPI"; exit 77; }
found() { sed -n "s/^$1:[A-Z]*=//p" "$tree/CMakeCache.txt" | grep -v NOTFOUND; }
compiler=$(found CMAKE_C_COMPILER) sanitizers=$(found DDP_SANITIZE)
strict=(-std=gnu11 -Wall -Wextra -Werror)

build_program()
{
    "$compiler" "${strict[@]}" -g ${sanitizers:+"-fsanitize=$sanitizers"} -I"$SRC/exercises/gpu" -o program \
        "$SRC/tests/gpu_shim.c" "$library" -Wl,-rpath,"$tree"
}
ranks()
{
    local rank pids=() status=0
    rm -f id
    for ((rank = 0; rank < $1; rank++)); do
        timeout 60 ./program $rank "$1" "$TMP/id" "$2" &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do wait "$rank" || status=1; done
    return $status
}

expect 0 "" build_program
for n in 1 2 3; do
    expect 0 "rank $((n - 1)) of $n: good" ranks $n all
done
export GPU_TIMEOUT=2
[ -z "$sanitizers" ] || GPU_TIMEOUT=8
expect 1 "rank 0 is in ncclAllReduce of 4, rank 1 in ncclBroadcast of 4" ranks 2 other_call
expect 1 "rank 0 sends 4 values to rank 1, which receives 16" ranks 2 counts
expect 1 "rank 0 gives up" ranks 2 abort
[ -z "$sanitizers" ] || test_done

include=$(found NCCL_INCLUDE_DIR) cuda=$(found CUDA_cudart_LIBRARY) nccl=$(found NCCL_LIBRARY)
if [ -f "$include/cuda_runtime.h" ] && [ "$nccl" ] && [ "$cuda" ] && type -P mpicc >/dev/null; then
    for source in "$SRC"/exercises/gpu-*/finished/*.c "$SRC"/docs/reuse/exchange_nccl.c "$SRC"/tests/gpu_shim.c; do
        expect 0 "" mpicc "${strict[@]}" -isystem "$include" -fsyntax-only "$source"
    done
    export DDP_BUILD=$tree DDP_EXERCISES_WORK=$TMP/work OMPI_CC=$compiler
    expect 0 "" "$SRC/ddp" exercise start gpu-3
    # without a GPU the program says so; with one, mpirun starts two ranks
    GPU=real "$SRC/ddp" exercise run gpu-3 >"$TMP/output" 2>&1 </dev/null
    check "GPU=real links it with NVIDIA's libraries" grep -q libnccl <(ldd work/.build/gpu-3/real)
else
    echo "no CUDA or no NCCL: nothing is compiled with NVIDIA's headers"
fi
test_done
