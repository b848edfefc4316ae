#!/usr/bin/env bash
# ctest: TIMEOUT 400
# shellcheck disable=SC2317  # check calls functions
# The compiled CUDA programs on simulated GPUs. fake_cuda/fake.h says what that proves and what it does not. The results
# must be bit-identical however the work of streams and graphs happens to interleave.
. "$SRC/tests/test.sh"
type -P mpirun >/dev/null || { echo "skipped: there is no mpirun"; exit 77; }
. "$SRC/tests/fake.sh"
shopt -s nullglob

fake=$tree/tests/CMakeFiles/fake_cuda.dir
for step in 01_single_gpu 02_data_parallel 03_ddp_fork 05-6 07_dist_eval; do
    ln -s "$tree/fake/$step/train" "${step%%_*}"
done
check "03, with Gloo, is linked" mpicc "$tree"/03_ddp_fork/CMakeFiles/03_ddp_fork_cuda-gloo.dir/*.o \
    "$fake"/fake_cuda/*.o "$fake"/simt/*.o "$tree/libddp_cuda-gloo.a" -o 03-gloo \
    -fopenmp -lgloo -lstdc++ -ljansson -lz -ljpeg -lpng -lm -lpthread

# 2 epochs of 5 batches, so that steps are launched directly, recorded and replayed. With one process the last batch is
# short. Each of two ranks gets half of a batch; the sampler fills up the last one.
common=(--arch lenet --data synthetic --image-size 28 --train-samples 19 --test-samples 8 --seed 3 --epochs 2)
one=(-b 4 "${common[@]}")
two=(-b 2 "${common[@]}")
safe=(--slow-network 1e6)       # steps are not recorded

# like HASH COMMAND...: the command ends with weights of this hash and, whatever the delays, the same results.
like()
{
    local wanted=$1 terms
    shift
    rm -f seen.first
    for terms in "300 1 last" "3000 2 first"; do
        read -r FAKE_DELAY FAKE_SEED FAKE_ORDER <<<"$terms"
        export FAKE_DELAY FAKE_SEED FAKE_ORDER
        trains "$@" || return 1
        [ "$hash" = "$wanted" ] || { echo "delay, seed and order $terms: $hash, not $wanted"; return 1; }
        grep -E '^ *== (step|test):' "$TMP/output" >seen
        [ -s seen ] && { [ -f seen.first ] || mv seen seen.first; }
        [ ! -f seen ] || diff seen.first seen || { echo "delay, seed and order $terms: different results"; return 1; }
    done
}

at_once() { FAKE_DELAY=0 "$@"; }
seven=("$tree/cuda/07_dist_eval/launch" -n 2 -- ./07)

check "one device" at_once trains ./01 "${one[@]}"
alone=$hash
check "01" like "$alone" ./01 "${one[@]}"
check "02, one device, nothing is recorded" like "$alone" ./02 --devices 1 "${one[@]}"
check "03, one rank" like "$alone" ./03 -n 1 "${one[@]}"
check "07, one rank, small buckets" like "$alone" ./07 --amp off --bucket-mb 0.02 "${one[@]}"

# A part of three images has 16200 bytes, no multiple of 16: cuDNN would not accept the address of the next part.
odd=(-b 6 "${common[@]}" --arch convnet --image-size 30 --amp fp16 --accumulate 2)
check "parts of an odd size" at_once trains ./07 "${odd[@]}" "${safe[@]}"
odd_hash=$hash
check "the same when recorded" like "$odd_hash" ./07 "${odd[@]}"

export FAKE_GPUS=3
check "three devices" at_once trains ./02 --devices 3 "${one[@]}"
three=$hash
check "02, three devices" like "$three" ./02 --devices 3 "${one[@]}"

export FAKE_GPUS=2
check "two ranks, not recorded" at_once trains ./03 -n 2 "${two[@]}" "${safe[@]}"
pair=$hash
check "two ranks round differently from one" test "$pair" != "$alone"
check "03, two ranks" like "$pair" ./03 -n 2 "${two[@]}"
check "07, two ranks, small buckets" like "$pair" "${seven[@]}" "${two[@]}" --amp off --bucket-mb 0.02
FAKE_GPUS=1 check "03, two ranks on one GPU, with Gloo" like "$pair" ./03-gloo -n 2 "${two[@]}"

# With this --growth-interval, some gradients overflow.
all=("${two[@]}" --arch convnet --amp fp16 --accumulate 2 --clip-norm 5 --compress fp16 --sync-bn --growth-interval 3)
check "fp16 and more, not recorded" at_once trains "${seven[@]}" "${all[@]}" "${safe[@]}"
check "steps were skipped" grep -qE "step.*skipped: [1-9]" "$TMP/output"
check "fp16 and more" like "$hash" "${seven[@]}" "${all[@]}"
# Virtual ranks that take turns. As above, the address of the second batch is no multiple of 16.
virtual=("${common[@]}" --arch convnet --image-size 30 -b 3 --amp fp16 --growth-interval 3 --virtual-ranks 2 --sync-bn)
check "two virtual ranks" at_once trains ./05-6 "${virtual[@]}"
virtual_hash=$hash
check "the same with delays" like "$virtual_hash" ./05-6 "${virtual[@]}"
check "the same on two" like "$virtual_hash" "$tree/cuda/07_dist_eval/launch" -n 2 -- ./05-6 "${virtual[@]}"

expect 1 "has no bf16 instructions" env FAKE_MAJOR=7 ./07 "${one[@]}" --amp bf16
FAKE_MAJOR=7 check "fp16 works there" at_once trains ./07 "${one[@]}" --max-steps 1
check "and is its type" grep -q "== amp: fp16" "$TMP/output"

check "it stops after seven steps" at_once trains "${seven[@]}" "${two[@]}" --amp off --max-steps 7 --save stopped.st
check "and resumes: the same weights" like "$pair" "${seven[@]}" "${two[@]}" --amp off --resume stopped.st
test_done
