#!/usr/bin/env bash
# ctest: TIMEOUT 300
# The kernels' PTX: where rows allow it, loops over cells and columns load 16 bytes at a time. No kernel has variables
# in local memory, which is as slow as global memory.
. "$SRC/tests/test.sh"
nvcc=$(cached CMAKE_CUDA_COMPILER)
[ -x "$nvcc" ] || { echo "skipped: no CUDA compiler"; exit 77; }

for file in "${BUILD%/*}"/ops/*.cu "$SRC"/common/cuda/kernels_*.cu; do
    "$nvcc" -w --ptx -arch=compute_80 -std=c++17 -O2 -I "$SRC/common" -o "$(basename "$file" .cu).ptx" "$file"
done

# Prints kernels that use local memory, and loops over cells and columns that never load 16 bytes at a time, except
# columns_loop<..., 1>, which cannot. Fails if it prints any, or if there are suspiciously few kernels.
narrow()
{
    awk '/\.entry / { f = $0; sub(/.*\.entry /, "", f); sub(/\(.*/, "", f); kernels++
                      wide[f] = f !~ /cells_loop|columns_loop/ || f ~ /columns_loop.*ELi1E/ }
        /ld\.global\.(v4\..32|v2\..64)/ { wide[f] = 1 }
        /\.local / { print "local memory: " f; bad = 1 }
        END { for (f in wide) if (!wide[f]) { print "narrow loads: " f; bad = 1 }
              exit bad || kernels < 40 }' "$@"
}
check "kernels load 16 bytes at a time, and use no local memory" narrow ./*.ptx

sed -E 's/ld\.global\.(v4\..32|v2\..64)/ld.global.v2.f32/' norm.ptx >mistake.ptx
noticed() { narrow mistake.ptx step.ptx >found; [ $? -eq 1 ] && grep -q "narrow loads: .*normalise" found; }
check "narrow loads are noticed" noticed
test_done
