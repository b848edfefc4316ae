#!/usr/bin/env bash
# The mock of the exercises (fake_cuda/exercises.c), used by gpu_shim.c: what the checks of gpu-1 to gpu-4 do not show.
# Where NVIDIA's headers are, gpu_shim.c and the finished exercises compile with them.
# ctest: TIMEOUT 120 SANITIZERS asan tsan LABELS deadlines
. "$SRC/tests/test.sh"
tree=${BUILD%/*}
library=$tree/libgpu_shim.so
[ -f "$library" ] || { echo "skipped: this build has no gpu_shim, which needs Gloo and MPI"; exit 77; }
found() { sed -n "s/^$1:[A-Z]*=//p" "$tree/CMakeCache.txt" | grep -v NOTFOUND; }
compiler=$(found CMAKE_C_COMPILER) sanitizers=$(found DDP_SANITIZE)
strict=(-std=gnu11 -Wall -Wextra -Werror)

expect 0 "" "$compiler" "${strict[@]}" -g ${sanitizers:+"-fsanitize=$sanitizers"} -I"$SRC/exercises/gpu" -o program \
    "$SRC/tests/gpu_shim.c" "$library" -Wl,-rpath,"$tree"
expect 0 "" timeout 60 ./program
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
