#!/usr/bin/env bash
# ctest: PROCESSORS 2 TIMEOUT 400 LABELS slow
# The bundle for GPU machines is packed, and then unpacked elsewhere. It must have every library but NVIDIA's and the
# system's, report a missing GPU, and tell passed tests from failed ones.
# shellcheck disable=SC2016,SC2153,SC2317  # words in single quotes are for another sh; expect calls bundle
. "$SRC/tests/test.sh"
build=$(dirname "$BUILD")
[ -x "$build/cuda-gloo/07_dist_eval/train" ] || { echo "skipped: no cuda backend in this build"; exit 77; }
there="$TMP/any where/gpu-bundle"
unset DDP_LIBRARIES DDP_RESULTS DDP_CIFAR10 DDP_PYTHON CUDNN_ROOT NCCL_ROOT
export CUDA_VISIBLE_DEVICES=

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

# NVIDIA's libraries are looked for in DDP_LIBRARIES first, then in pip's packages, then on the system.
nccl=$(sed -n 's/^libnccl.so.2 //p' "$TMP/output")
mkdir -p "$TMP/site/nvidia/nccl/lib" "$TMP/broken"
ln -s "$(readlink -f "$nccl")" "$TMP/site/nvidia/nccl/lib/libnccl.so.2"
if type -P python3 >/dev/null; then
    PYTHONPATH=$TMP/site expect 0 "libnccl.so.2 $TMP/site/nvidia/nccl/lib/" libraries
fi
touch "$TMP/broken/libnccl.so.2"
expect 1 "too old or broken: $TMP/broken/libnccl.so.2" env DDP_LIBRARIES="$TMP/broken" "$there/run" test nothing

expect 77 "NOTHING RAN ON ONE" "$there/run" report

expect 77 "NOTHING RAN ON ONE" "$there/run" test '^(test_(ops|step_amp)_cuda|twice_f32|gloo_2_ranks)$'
check "four are skipped" test "$(grep -c ' skipped .* no GPU' "$there/results/gpu-test/table.txt")" = 4
expect 77 "NO GPU HERE" "$there/run" bench
expect 1 "install a driver, or start the container" \
    "$there/run" exec "$there/build/cuda/01_single_gpu/train" --max-steps 1
"$there/run" doctor >"$TMP/doctor" 2>&1      # its exit status depends on nvidia-smi
check "the doctor names the glibc that is needed" grep -q '^ok  glibc .* or newer is needed' "$TMP/doctor"
expect 2 "there is no command 'nonsense'" "$there/run" nonsense
expect 2 "no test has a name that matches" "$there/run" test nonsense

# The CPU's programs take the place of the GPU's, but not in 07. So the check recorded_f32 must fail: there is no GPU.
rm -r "$there"/build/{cuda,cuda-gloo}/0[1345]*
for step in 01_single_gpu 03_ddp_fork 05_ddp_amp; do
    ln -s "$BUILD/$step" "$there/build/cuda/$step"
    ln -s "$BUILD/$step" "$there/build/cuda-gloo/$step"
done
printf '#!/bin/sh\n' >"$there/build/tests/test_streams_cuda"
printf '#!/bin/sh\nwhile [ "$1" != "${1#-}" ]; do shift 2; done\nexec "$@"\n' >"$TMP/compute-sanitizer"
chmod +x "$TMP/compute-sanitizer"
expect 1 "2 passed, 1 failed, 0 skipped" "$there/run" test '^(test_streams|gloo_2_ranks|recorded_f32)'
check "the end of the failed test's output" grep -q "^    | hint: install a driver" "$TMP/output"
expect 0 "2 ranks, twice" "$there/run" test gloo_2_ranks
expect 0 "1 passed, 0 failed" env PATH="$TMP:$PATH" "$there/run" sanitize memcheck_lenet

pretend() { mkdir -p "$(dirname "$1")"; rm -f "$1"; printf '#!/bin/sh\n%s\n' "$2" >"$1"; chmod +x "$1"; }
pretend "$TMP/bin/nvidia-smi" 'echo "GPU 0: Stand-in (UUID: GPU-1)"'
rm -f "$there"/build/tests/test_*_cuda
pretend "$there/build/tests/test_streams_cuda" 'exit 0'
pretend "$there/build/tests/test_amp_ops_cuda" 'seq 1 500; echo "not so: 1 is 2" >&2; exit 1'
pretend "$there/build/tests/test_loader_cuda" 'echo "3 passed, 0 failed"'
printf '%s 9\n' test_{streams,amp_ops,loader}_cuda >"$there/tests/list"
sed -i 's/^checks=.*/checks=(/; s/^small=/checks=()\nsmall=/; s/^shared=.*/shared=("connects 30")/' "$there/run"
report() { PATH="$TMP/bin:$TMP:$PATH" "$there/run" report "$@"; }
unset CUDA_VISIBLE_DEVICES
expect 2 "takes -o FILE" report x
expect 1 "cannot be written" report -o /proc/report
expect 1 "report: $TMP/report.txt" report -o "$TMP/report.txt"
reports() { check "the report has: $1" grep -qE -- "$1" "$TMP/report.txt"; }
reports "^revision: "
reports "^GPU 0: Stand-in"
reports "^test_amp_ops_cuda +FAIL"
reports "^    \| not so: 1 is 2"
reports "^test_loader_cuda +pass .*3 passed, 0 failed"
reports "^2 passed, 1 failed, 0 skipped"
reports "^shared_connects +pass .*two ranks"
reports "^memcheck_lenet +pass"

tree=$TMP/tree
mkdir -p "$tree/build"
cp -r "$SRC/ddp" "$SRC/tools" "$SRC/cmake" "$tree"
bare() { env PATH="$TMP/bin:/usr/bin:/bin" "$tree/ddp" "$@"; }
pretend "$TMP/bin/cmake" 'case "$1" in --version) echo "cmake version 3.30.0" ;; *) exit 1 ;; esac'
pretend "$TMP/bin/nvcc" 'echo "release 13.0"'
expect 1 "the tests cannot be built here, and there is no build/gpu-bundle.tar.xz" bare doctor --gpu --report
pretend "$TMP/carried/gpu-bundle/run" 'echo "it runs: $*"'
tar -C "$TMP/carried" -cJf "$tree/build/gpu-bundle.tar.xz" gpu-bundle
expect 0 "it runs: report -o build/gpu-report.txt" bare doctor --gpu --report
expect 0 "it runs: ranks" bare doctor --gpu --ranks
rm "$tree/build/gpu-bundle.tar.xz"
expect 0 "it runs: report -o build/gpu-report.txt" bare doctor --gpu --report
pretend "$TMP/bin/nvidia-smi" 'exit 9'
expect 1 "nvidia-smi shows no GPU here" bare doctor --gpu --report
test_done
