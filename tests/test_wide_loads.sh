#!/usr/bin/env bash
# ctest: TIMEOUT 300
# nvcc's code for the kernels: where rows are whole packs, each loop over cells and columns loads 16 bytes at a time. No
# kernel keeps variables in local memory, which is as far away as global memory.
. "$SRC/tests/test.sh"
nvcc=$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' "${BUILD%/*}/CMakeCache.txt")
[ -x "$nvcc" ] || { echo "skipped: no CUDA compiler"; exit 77; }

for file in "${BUILD%/*}"/ops/*.cu "$SRC"/common/cuda/kernels_*.cu; do
    "$nvcc" -w --ptx -arch=compute_80 -std=c++17 -O2 -I "$SRC/common" -o "$(basename "$file" .cu).ptx" "$file"
done

# Prints loops over cells and columns that never load 16 bytes at a time (columns_loop<..., 1> cannot), and kernels
# that use local memory. Fails if there are any, or suspiciously few kernels in all.
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
