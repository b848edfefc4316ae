#!/usr/bin/env bash
# ctest: PROCESSORS 2 TIMEOUT 400
# The bundle for GPU machines is packed and unpacked elsewhere. It must have every library except the machine's own,
# report a missing GPU, and tell passed tests from failed ones, here with the CPU's programs in place of the GPU's.
# shellcheck disable=SC2016,SC2153,SC2317  # words in single quotes are for another sh; expect calls bundle
. "$SRC/tests/test.sh"
build=$(dirname "$BUILD")
[ -x "$build/cuda-gloo/07_dist_eval/train" ] || { echo "skipped: no cuda backend in this build"; exit 77; }
there="$TMP/any where/gpu-bundle"
unset DDP_LIBRARIES DDP_RESULTS DDP_CIFAR10 DDP_PYTHON CUDNN_ROOT NCCL_ROOT
export CUDA_VISIBLE_DEVICES=

# --- packing ----------------------------------------------------------------------------------------------------

bundle() { "$SRC/tools/gpu_bundle.sh" --build "$build" "$@"; }
expect 2 "unknown option --nonsense" bundle --nonsense
expect 2 "can only be a .tar.xz" bundle -o "$TMP/x.zip"
expect 1 "is not a bundle" bundle -o "$SRC/tests"
expect 1 "no CUDA programs in $TMP" bundle --build "$TMP"
expect 0 "$TMP/b.tar.xz: " bundle -o "$TMP/b.tar.xz"
check "less than 60 MiB" test "$(stat -c %s "$TMP/b.tar.xz")" -lt $((60 << 20))
mkdir "$TMP/any where"
check "it unpacks" tar -C "$TMP/any where" -xf "$TMP/b.tar.xz"
rm "$TMP/b.tar.xz"

# --- libraries ----------------------------------------------------------------------------------------------------

libraries()
{
    "$there/run" exec ldd "$there"/build/cuda{,-gloo}/07_dist_eval/train |
        sed -n 's/^\t\([^ ]*\) => \(.*\) (0x.*/\1 \2/p' | sort -u
}
expect 0 "$there/lib/libgloo.so.0" libraries
needs=$(sed -n 's/^needs: //p' "$there/about")
strange=$(while read -r name path; do
    case $path in "$there"/*) continue ;; esac
    case " $needs " in *" $name "*) continue ;; esac
    [ -d "$there/lib/spare/$name" ] || echo "$name $path"
done <"$TMP/output" | grep -vE '^(lib(c|m|dl|rt|pthread|cap|resolv|util)|ld-linux[a-z0-9-]*)\.so\.[0-9]+ ')
check "no other library is missing: ${strange:-none}" test -z "$strange"

# NVIDIA's libraries are searched in pip's packages first. A library that cannot be loaded is reported.
nccl=$(sed -n 's/^libnccl.so.2 //p' "$TMP/output")
mkdir -p "$TMP/site/nvidia/nccl/lib" "$TMP/broken"
ln -s "$(readlink -f "$nccl")" "$TMP/site/nvidia/nccl/lib/libnccl.so.2"
if type -P python3 >/dev/null; then
    PYTHONPATH=$TMP/site expect 0 "libnccl.so.2 $TMP/site/nvidia/nccl/lib/" libraries
fi
touch "$TMP/broken/libnccl.so.2"
expect 1 "too old or broken: $TMP/broken/libnccl.so.2" env DDP_LIBRARIES="$TMP/broken" "$there/run" test nothing

# --- without a GPU ------------------------------------------------------------------------------------------------

expect 77 "our programs see no GPU here" "$there/run" first 1

expect 77 "NOTHING RAN ON ONE" "$there/run" test '^(test_(ops|step_amp)_cuda|twice_f32|gloo_2_ranks)$'
check "four are skipped" test "$(grep -c ' skipped .* no GPU' "$there/results/gpu-test/table.txt")" = 4
expect 77 "NO GPU HERE" "$there/run" bench
expect 1 "nvidia-smi shows" "$there/run" exec "$there/build/cuda/01_single_gpu/train" --dry-run
"$there/run" doctor >"$TMP/doctor" 2>&1      # its exit status depends on nvidia-smi
check "the doctor names the glibc that is needed" grep -q '^ok  glibc .* or newer is needed' "$TMP/doctor"
expect 2 "there is no command 'nonsense'" "$there/run" nonsense
expect 2 "no name matches" "$there/run" test nonsense

# --- what passes, and what fails: the CPU's programs do not refuse two ranks ----------------------------------------

rm -r "$there"/build/{cuda,cuda-gloo}/0[1345]*
for step in 01_single_gpu 03_ddp_fork 05_ddp_amp; do
    ln -s "$BUILD/$step" "$there/build/cuda/$step"
    ln -s "$BUILD/$step" "$there/build/cuda-gloo/$step"
done
printf '#!/bin/sh\n' >"$there/build/tests/test_streams_cuda"
printf '#!/bin/sh\nwhile [ "$1" != "${1#-}" ]; do shift 2; done\nexec "$@"\n' >"$TMP/compute-sanitizer"
chmod +x "$TMP/compute-sanitizer"
expect 1 "2 passed, 1 failed, 0 skipped" "$there/run" test '^(test_streams|gloo_2_ranks|nccl_refuses_two)'
check "the end of the failed test's output" grep -q "^    | exit status 0" "$TMP/output"
expect 0 "2 ranks, twice" "$there/run" test gloo_2_ranks
expect 0 "1 passed, 0 failed" env PATH="$TMP:$PATH" "$there/run" sanitize memcheck_lenet

# --- first: a plan, parts with limits, one report. The GPU and the programs are simulated --------------------------

pretend() { mkdir -p "$(dirname "$1")"; rm -f "$1"; printf '#!/bin/sh\n%s\n' "$2" >"$1"; chmod +x "$1"; }
pretend "$TMP/bin/nvidia-smi" 'echo "GPU 0: Stand-in (UUID: GPU-1)"'
pretend "$there/build/tests/test_amp_ops_cuda" 'seq 1 500; echo "not so: 1 is 2" >&2; exit 1'
pretend "$there/build/tests/test_ops_cuda" 'echo "it hangs"; exec sleep 100'
pretend "$there/build/tests/test_loader_cuda" 'echo "3 passed, 0 failed"'
for step in cuda/07_dist_eval cuda-gloo/03_ddp_fork; do
    rm -r "$there/build/$step"
    pretend "$there/build/$step/train" \
        'case "$*" in *fp16*--check*) echo "weight hash: 2" ;; *) echo "weight hash: 1" ;; esac'
    pretend "$there/build/$step/launch" 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
done
first() { PATH="$TMP/bin:$PATH" "$there/run" first "$@"; }
unset CUDA_VISIBLE_DEVICES
expect 0 "in all at most 25 minutes" first --plan
expect 2 "there is no part '6'" first 6
expect 2 "first: --limit needs seconds" first --limit x
expect 2 "first: -o needs a path" first -o
expect 1 "cannot be written" first -o /proc/report
expect 1 "report: $TMP/report.txt" first --limit 45 4 1 -o "$TMP/report.txt"
reports() { check "the report has: $1" grep -qE -- "$1" "$TMP/report.txt"; }
reports "^revision: "
reports "^GPU 0: Stand-in"
reports "^gpu: GPU 0: Stand-in"
reports "^result: recorded_fp16 FAIL"
reports "=== part 4: ./run test \^recorded_: FAILED, exit status 1"
reports "recorded_f32 +pass"
reports "recorded_fp16 +FAIL"
reports "=== part 4: ./run test \^\(devices\|nccl\)_: FAILED, exit status 1, "
reports "nccl_2_ranks +skipped .* it needs two GPUs"
reports "=== part 1: ./run doctor: "
reports "=== part 1: ./run test .*: stopped after [0-9]+ s, exit status 124"
reports "^    : 41[0-9] lines"
reports "^    \| not so: 1 is 2"
reports "^    \| it hangs"
check "the summary is last" grep -q "stopped after.*exit status 124.*part 1" <(tail -3 "$TMP/report.txt")
check "parts come in the order of the command line" \
    test "$(grep -oE '^=== part [0-9]' "$TMP/report.txt" | uniq | paste -sd' ')" = "=== part 4 === part 1"

# An archive in build/, or what was unpacked from it, is used; else the programs must be built. Here the compiler is
# there, and a library is missing.
tree=$TMP/tree
mkdir -p "$tree/build"
cp -r "$SRC/ddp" "$SRC/tools" "$SRC/cmake" "$tree"
bare() { env PATH="$TMP/bin:/usr/bin:/bin" "$tree/ddp" "$@"; }
pretend "$TMP/bin/cmake" 'case "$1" in --version) echo "cmake version 3.30.0" ;; *) exit 1 ;; esac'
pretend "$TMP/bin/nvcc" 'echo "release 13.0"'
expect 1 "the bundle cannot be built here, and there is no build/gpu-bundle.tar.xz" bare bundle
pretend "$TMP/carried/gpu-bundle/run" 'echo "it runs: $*"'
tar -C "$TMP/carried" -cJf "$tree/build/gpu-bundle.tar.xz" gpu-bundle
expect 0 "it runs: first -o build/gpu-report.txt 1 2" bare bundle 1 2
rm "$tree/build/gpu-bundle.tar.xz"
expect 0 "it runs: first -o build/gpu-report.txt column" bare doctor --gpu --report
pretend "$TMP/bin/nvidia-smi" 'exit 9'
expect 1 "nvidia-smi shows no GPU here" bare bundle
test_done
