#!/usr/bin/env bash
# gpu_bundle.sh - packs the CUDA programs, their tests and libraries for a GPU machine without compilers. The machine
# needs a driver, CUDA 13, cuDNN 9 and NCCL 2, system-wide or as the pip packages that come with PyTorch. Its glibc and
# processor must be new enough: gpu-bundle/run doctor checks them.
#
#   gpu_bundle.sh [-o OUT] [--build FOLDER]
#     -o       a .tar.xz (default gpu-bundle.tar.xz in the folder of --build), or a folder
#     --build  the folder with cuda/ and cuda-gloo/ (default build/)
#
# On the GPU machine:  tar xf gpu-bundle.tar.xz; gpu-bundle/run doctor; gpu-bundle/run test
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
. "$root/tools/shell.sh"

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d'; }

build=$root/build out=''
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage; exit ;;
    -o) out=${2:-} ;;
    --build) build=${2:-} ;;
    *) die_usage "unknown option $1" "tools/gpu_bundle.sh --help" ;;
    esac
    [ -n "${2:-}" ] || die_usage "$1 needs a path" "tools/gpu_bundle.sh --help"
    shift 2
done
out=${out:-$build/gpu-bundle.tar.xz}

[ -x "$build/cuda-gloo/07_dist_eval/train" ] ||
    die "there are no CUDA programs in $build" \
        "./ddp setup builds them if CUDA, cuDNN and NCCL are installed, which ./ddp doctor shows"
if [[ $out = *.tar.xz ]]; then
    have xz || die "xz is not installed" "apt install xz-utils, or make a folder: -o FOLDER"
elif [[ $out = *.tar.* || $out = *.tgz || $out = *.zip ]]; then
    die_usage "$out: an archive can only be a .tar.xz" "tools/gpu_bundle.sh --help"
elif [ -e "$out" ] && [ -n "$(ls -A "$out")" ] && [ ! -f "$out/about" ]; then
    die "$out exists and is not a bundle"
fi
have objdump || die "objdump is not installed" "apt install binutils"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
to=$work/gpu-bundle
mkdir -p "$to"/{lib/spare,tools,tests,build/tests}

# --- programs, and what they read -------------------------------------------------------------------------------

for backend in cuda cuda-gloo; do
    (cd "$build" && find $backend -type f -perm -u+x -exec cp --parents -t "$to/build" {} +)
done
cp "$build/tests/tool_compare_weights" "$to/build/tests"
# tests/list: each test's name and time limit in seconds: the TIMEOUT of its ctest: line, or 60.
for source in "$root"/tests/test_*.c; do
    name=$(basename "$source" .c)_cuda
    [ -x "$build/tests/$name" ] || continue
    cp "$build/tests/$name" "$to/build/tests"
    limit=$(sed -nE 's,^// .*ctest: .*TIMEOUT ([0-9]+).*,\1,p' "$source" | head -1)
    echo "$name ${limit:-60}"
done >"$to/tests/list"
cp -r "$root"/tests/{run,test,ranks}.sh "$root/tests/reference" "$to/tests"
cp "$root"/tools/{shell.sh,bench.py,bench_torch.py} "$to/tools"
cp "$root/tools/gpu_bundle/run.sh" "$to/run"
chmod +x "$to/run"
mapfile -t programs < <(find "$to/build" -type f)
strip --strip-debug "${programs[@]}"

# --- shared libraries -------------------------------------------------------------------------------------------
# glibc and NVIDIA's libraries come from the GPU machine. lib/spare holds libraries that the GPU machine probably
# has, each in its own folder. A spare is used only if the machine's own is missing or too old, because the machine's
# other libraries may need a newer libstdc++ than the spare.

nvidia=()
while read -r name path; do
    case $name in
    ld-linux* | lib[cm].so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* | libutil.so.*) continue ;;
    libcu* | libnccl* | libnv*) nvidia+=("$name"); continue ;;
    libstdc++* | libgcc_s* | libgomp* | libz.* | libudev*) folder=$to/lib/spare/$name ;;
    *) folder=$to/lib ;;
    esac
    [ "$path" != not ] || die "$name: not found on this machine" "ldd $build/cuda-gloo/07_dist_eval/train"
    mkdir -p "$folder"
    cp -L "$path" "$folder/$name"
done < <(for program in "${programs[@]}"; do ldd "$program"; done |
    sed -nE 's/^[[:space:]]*([^ /]+) => ([^ ]+).*/\1 \2/p' | sort -u -k1,1)
[ ${#nvidia[@]} -gt 0 ] || die "these programs use no NVIDIA library" "is $build/cuda a build with CUDA?"

# --- the file `about`, which ./run reads ------------------------------------------------------------------------

# newest PREFIX FILE...: the largest N of the symbol versions PREFIX_N that these files need or define
newest()
{
    local what=$1
    shift
    objdump -p "$@" | grep -oE "\b${what}_[0-9.]+" | sort -uV | tail -1 | sed 's/.*_//'
}
mapfile -t carried < <(find "$to/lib" -type f)
cache() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
defined() { sed -nE "s/^#define $2 ([0-9]+).*/\1/p" "$1" 2>/dev/null | head -1; }
# version FOLDER FILE PREFIX LEVEL: a library's version, from the macros PREFIX_MAJOR, PREFIX_MINOR and PREFIX_PATCH of
# its header FILE. LEVEL is appended to PREFIX_PATCH. FOLDER: the variable in CMake's cache with the header's folder.
version()
{
    local file
    file=$(cache "$1")/$2
    echo "$(defined "$file" "$3_MAJOR").$(defined "$file" "$3_MINOR").$(defined "$file" "$3_PATCH$4")"
}
{
    echo "revision: $(sed -n 's/.*DDP_GIT_REVISION "\(.*\)"/\1/p' "$build/revision/revision.h")"
    echo "made: $(date -u +%FT%TZ) on $(. /etc/os-release && echo "$PRETTY_NAME")"
    echo "machine: $(uname -m)"
    echo "glibc: $(newest GLIBC "${programs[@]}" "${carried[@]}")"
    echo "libstdc++: $(newest GLIBCXX "${programs[@]}" "${carried[@]}")"
    echo "needs: ${nvidia[*]}"
    echo "CUDA: $(cat "$build"/CMakeFiles/*/CMakeCUDACompiler.cmake |
        sed -n 's/^set(CMAKE_CUDA_COMPILER_VERSION "\(.*\)")/\1/p')"
    echo "cuDNN: $(version CUDNN_INCLUDE_DIR cudnn_version.h CUDNN LEVEL)"
    echo "NCCL: $(version NCCL_INCLUDE_DIR nccl.h NCCL '')"
    echo "architectures: $(cache CMAKE_CUDA_ARCHITECTURES)"
    # The instructions that files compiled for DDP_MARCH, such as gloo_reduce.c, may use.
    used='(avx|fma|bmi|f16c).*'
    [ "$(cache DDP_MARCH)" != x86-64-v3 ] || used='avx2?|fma|bmi[12]|f16c'
    echo "cpu: $(sed -n 's/^flags.*: //p' /proc/cpuinfo | head -1 | tr ' ' '\n' |
        grep -xE "$used" | grep -v vp2intersect | sort | paste -sd' ')"
} >"$to/about"

# --- one file, or a folder --------------------------------------------------------------------------------------

size() { du -sh --apparent-size "$1" | cut -f1; }
mkdir -p "$(dirname "$out")"
if [[ $out != *.tar.xz ]]; then
    rm -rf "$out"
    cp -r "$to" "$out"
    say "$out: $(size "$out")"
else
    # The programs have much in common, which xz finds in a large window.
    trap 'rm -rf "$work" "$out.part"' EXIT
    tar -C "$work" --owner=0 --group=0 -cf - gpu-bundle | xz -T0 "--lzma2=preset=1,dict=64MiB" >"$out.part"
    mv "$out.part" "$out"
    say "$out: $(size "$out"), unpacked $(size "$to"); on the GPU machine: tar xf ${out##*/}; gpu-bundle/run doctor"
fi
