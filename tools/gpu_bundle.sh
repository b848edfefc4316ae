#!/usr/bin/env bash
# gpu_bundle.sh [FILE] - packs the CUDA programs, their tests and libraries into a .tar.xz (build/gpu-bundle.tar.xz) for
# a GPU machine without compilers. That machine needs a driver, CUDA 13's cuBLASLt, cuDNN 9 and NCCL 2 (PyTorch's pip
# packages have them), a glibc as new as this machine's, and a processor with the same instructions. There:
#
#   tar xf gpu-bundle.tar.xz && gpu-bundle/tools/gpu_tests.sh
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
. "$root/tools/shell.sh"
build=${BUILD:-$root/build} out=${1:-$root/build/gpu-bundle.tar.xz}
[ -x "$build/cuda-gloo/07_dist_eval/train" ] ||
    die "there are no CUDA programs in $build" "./ddp doctor shows what their build needs"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
to=$work/gpu-bundle
mkdir -p "$to"/{lib,tools/reference,tests,build/tests}
(cd "$build" && find cuda cuda-gloo -type f -perm -u+x -exec cp --parents -t "$to/build" {} +)
cp "$build"/tests/{test_*_cuda,tool_compare_weights} "$to/build/tests"
cp -r "$root"/tests/{run.sh,ranks.sh,reference} "$to/tests"
cp "$root"/tools/{shell.sh,gpu_tests.sh,bench.py,bench_torch.py} "$to/tools"
cp "$root/tools/reference/gpt.py" "$to/tools/reference"
mapfile -t programs < <(find "$to/build" -type f)
strip --strip-debug "${programs[@]}"

# All libraries but NVIDIA's, glibc's and the compiler's.
for program in "${programs[@]}"; do ldd "$program"; done | sed -nE 's/^[[:space:]]*([^ /]+) => (\/[^ ]+).*/\1 \2/p' |
    sort -u -k1,1 | while read -r name path; do
        case $name in
        lib[cm].so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libutil.so.* | \
            libstdc++* | libgcc_s* | libgomp* | libcu* | libnccl* | libnv*) ;;
        *) cp -L "$path" "$to/lib/$name" ;;
        esac
    done
{
    echo "revision: $(sed -n 's/.*DDP_GIT_REVISION "\(.*\)"/\1/p' "$build/revision/revision.h")"
    echo "made: $(date -u +%FT%TZ) on $(. /etc/os-release && echo "$PRETTY_NAME"), $(getconf GNU_LIBC_VERSION)"
    sed -nE 's/^(CMAKE_CUDA_ARCHITECTURES|DDP_MARCH):[A-Z]*=/\1: /p' "$build/CMakeCache.txt"
} >"$to/about"
mkdir -p "$(dirname "$out")"
tar -C "$work" --owner=0 --group=0 -cf - gpu-bundle | xz -T0 "--lzma2=preset=1,dict=64MiB" >"$work/bundle"
mv "$work/bundle" "$out"
say "$out: $(du -h "$out" | cut -f1); on the GPU machine: tar xf ${out##*/} && gpu-bundle/tools/gpu_tests.sh"
