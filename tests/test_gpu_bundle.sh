#!/usr/bin/env bash
# ctest: PROCESSORS 2 TIMEOUT 120
# The bundle for GPU machines: packed, unpacked elsewhere, it has every library but the machine's own; without a GPU
# it says so; and its table knows what passes from what fails, with the CPU's programs in place of the GPU's.
# shellcheck disable=SC2016,SC2153,SC2317  # words in single quotes are for another sh; expect calls bundle
. "$SRC/tests/test.sh"
build=$(dirname "$BUILD")
[ -x "$build/cuda-gloo/07_dist_eval/train" ] || { echo "skipped: no cuda backend in this build"; exit 77; }
ending=zst
type -P zstd >/dev/null || ending=xz
there="$TMP/any where/gpu-bundle"
unset DDP_LIBRARIES DDP_RESULTS DDP_CIFAR10 DDP_PYTHON CUDNN_ROOT NCCL_ROOT
export CUDA_VISIBLE_DEVICES=

# --- packing ----------------------------------------------------------------------------------------------------

bundle() { "$SRC/tools/gpu_bundle.sh" --build "$build" "$@"; }
expect 2 "unknown option --nonsense" bundle --nonsense
expect 2 "it can be .tar.xz" bundle -o "$TMP/x.zip"
expect 1 "is no bundle" bundle -o "$SRC/tests"
expect 1 "no CUDA programs in $TMP" bundle --build "$TMP"
expect 0 "$TMP/b.tar.$ending: " bundle -o "$TMP/b.tar.$ending"
check "less than 60 MiB" test "$(stat -c %s "$TMP/b.tar.$ending")" -lt $((60 << 20))
mkdir "$TMP/any where"
check "it unpacks" tar -C "$TMP/any where" -xf "$TMP/b.tar.$ending"
rm "$TMP/b.tar.$ending"

# --- libraries ----------------------------------------------------------------------------------------------------

expect 0 "$there/lib/libgloo.so.0" "$there/run" libraries
needs=$(sed -n 's/^needs: //p' "$there/about")
strange=$(while read -r name path; do
    case $path in "$there"/*) continue ;; esac
    case " $needs " in *" $name "*) continue ;; esac
    [ -d "$there/lib/spare/$name" ] || echo "$name $path"
done <"$TMP/output" | grep -vE '^(lib(c|m|dl|rt|pthread|cap|resolv|util)|ld-linux[a-z0-9-]*)\.so\.[0-9]+ ')
check "all others are the machine's own: ${strange:-yes}" test -z "$strange"

# NVIDIA's are looked for in pip's packages first; one that cannot be loaded is told.
nccl=$(sed -n 's/^libnccl.so.2 //p' "$TMP/output")
mkdir -p "$TMP/site/nvidia/nccl/lib" "$TMP/broken"
ln -s "$(readlink -f "$nccl")" "$TMP/site/nvidia/nccl/lib/libnccl.so.2"
if type -P python3 >/dev/null; then
    expect 0 "libnccl.so.2 $TMP/site/nvidia/nccl/lib/" env PYTHONPATH="$TMP/site" "$there/run" libraries
fi
touch "$TMP/broken/libnccl.so.2"
expect 1 "too old or broken: $TMP/broken/libnccl.so.2" env DDP_LIBRARIES="$TMP/broken" "$there/run" test nothing

# --- without a GPU ------------------------------------------------------------------------------------------------

expect 77 "NOTHING RAN ON ONE" "$there/run" test '^(test_(ops|step_amp)_cuda|twice_f32|gloo_2_ranks)$'
check "four are skipped" test "$(grep -c ' skipped .* no GPU' "$there/results/gpu-test/table.txt")" = 4
expect 77 "NO GPU HERE" "$there/run" bench
expect 1 "nvidia-smi shows" "$there/run" train 01_single_gpu -- --dry-run
"$there/run" doctor >"$TMP/doctor" 2>&1      # its exit status depends on nvidia-smi
check "the doctor tells which glibc is needed" grep -q '^ok  glibc .* or newer is needed' "$TMP/doctor"
expect 2 "there is no step '09'" "$there/run" train 09
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
check "the failed one, and its end" grep -q "^    | exit status 0" "$TMP/output"
expect 0 "2 ranks, twice" "$there/run" test gloo_2_ranks
expect 0 "1 passed, 0 failed" env PATH="$TMP:$PATH" "$there/run" sanitize memcheck_lenet
expect 0 "weight hash: " "$there/run" train 03 -n 2 -- -a lenet --data synthetic --train-samples 64 --test-samples 8 \
    -b 8 --epochs 1
test_done
