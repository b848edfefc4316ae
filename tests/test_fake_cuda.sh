#!/usr/bin/env bash
# ctest: TIMEOUT 400
# shellcheck disable=SC2317  # check calls functions
# The compiled CUDA programs on simulated GPUs. fake_cuda/fake.h says what that proves and what it does not. The results
# must be bit-identical however the work of streams and graphs happens to interleave.
. "$SRC/tests/test.sh"
. "$SRC/tests/fake.sh"
shopt -s nullglob

fake=$tree/tests/CMakeFiles/fake_cuda.dir
for step in 01_single_gpu 02_data_parallel 03_ddp_fork 05-6 07_dist_eval; do
    ln -s "$tree/fake/$step/train" "${step%%_*}"
done
check "03, with Gloo, is linked" mpicc "$tree"/03_ddp_fork/CMakeFiles/03_ddp_fork_cuda-gloo.dir/*.o \
    "$fake"/fake_cuda/*.o "$fake"/simt/*.o "$tree/libddp_cuda-gloo.a" -o 03-gloo \
    -fopenmp -lgloo -lstdc++ -ljansson -lz -ljpeg -lpng -lm -lpthread

# 2 epochs of 5 batches, the last one short, so that steps are launched directly, recorded and replayed. Each of two
# ranks gets half of a batch.
common=(--arch lenet --data synthetic --image-size 28 --train-samples 19 --test-samples 8 --seed 3 --epochs 2)
one=(-b 4 "${common[@]}")
two=(-b 2 "${common[@]}")
safe=(--slow-network 1e6)       # steps are not recorded

# like HASH COMMAND...: these weights and the same results, whatever the delays.
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
few_files() { (ulimit -n 45 && at_once trains ./03 -n 2 "${two[@]}"); }
check "NCCL's ranks need no file for each other rank" few_files
FAKE_GPUS=1 check "03, two ranks on one GPU, with Gloo" like "$pair" ./03-gloo -n 2 "${two[@]}"

# With this --growth-interval, some gradients overflow.
all=("${two[@]}" --arch convnet --amp fp16 --accumulate 2 --clip-norm 5 --compress fp16 --sync-bn --growth-interval 3)
check "fp16 and more, not recorded" at_once trains "${seven[@]}" "${all[@]}" "${safe[@]}"
check "steps were skipped" grep -qE "step.*skipped: [1-9]" "$TMP/output"
check "fp16 and more" like "$hash" "${seven[@]}" "${all[@]}"
# As above, the second batch begins at no multiple of 16 bytes.
virtual=("${common[@]}" --arch convnet --image-size 30 -b 3 --amp fp16 --growth-interval 3 --virtual-ranks 2)
two_processes=("$tree/cuda/07_dist_eval/launch" -n 2 -- ./05-6)
check "two virtual ranks" at_once trains ./05-6 "${virtual[@]}"
virtual_hash=$hash
check "the same on one rank" like "$virtual_hash" ./05-6 "${virtual[@]}" --bucket-mb 0.02
check "the same on two" like "$virtual_hash" "${two_processes[@]}" "${virtual[@]}"
virtual+=(--sync-bn)
check "two virtual ranks that take turns" at_once trains ./05-6 "${virtual[@]}"
virtual_hash=$hash
check "the same with delays" like "$virtual_hash" ./05-6 "${virtual[@]}"
check "the same on two" like "$virtual_hash" "${two_processes[@]}" "${virtual[@]}"

evaluate()
{
    FAKE_GPUS=3 timeout -k 5 60 "$tree/cuda/07_dist_eval/launch" -n "$1" -- ./07 -e --init net.st "${two[@]}" \
        --amp off --test-samples 45 --per-class --predictions "$2.csv" >"$TMP/output" 2>&1 </dev/null || return 1
    grep -E '^   == (test:|[0-9]+ )' "$TMP/output" >"$2.out"
}
evaluated_alike() { evaluate "$1" many && diff one.out many.out && cmp one.csv many.csv; }
check "weights to evaluate" at_once trains ./01 "${one[@]}" --epochs 1 --save net.st
check "one rank evaluates" at_once evaluate 1 one
check "two ranks evaluate" evaluated_alike 2
check "three ranks evaluate" evaluated_alike 3

export FAKE_GPUS=1
expect 1 "there is no GPU 1" ./02 --devices 2 "${one[@]}"
export FAKE_GPUS=2
expect 1 "NCCL 2.25 may hang with several communicators on a device" env FAKE_NCCL_VERSION=22500 \
    "${seven[@]}" "${two[@]}" --arch convnet --amp off --sync-bn
FAKE_NCCL_VERSION=22500 check "one rank needs no newer NCCL" at_once trains ./07 "${one[@]}" --arch convnet --amp off \
    --sync-bn
FAKE_NCCL_VERSION=22500 check "nor do two without --sync-bn" at_once trains "${seven[@]}" "${two[@]}" --amp off
expect 1 "this process finds no GPU" env CUDA_VISIBLE_DEVICES= ./03 "${two[@]}"
expect 1 "the NVIDIA driver is too old: it supports CUDA" env FAKE_FAIL="cudaGetDeviceCount 35" ./03 -n 2 "${two[@]}"
expect 1 "has no instructions for bf16" env FAKE_MAJOR=7 ./07 "${one[@]}" --amp bf16
check "the error names --amp fp16" grep -q -- "--amp fp16 works" "$TMP/output"
FAKE_MAJOR=7 check "fp16 works there" at_once trains ./07 "${one[@]}" --max-steps 1
check "and is its type" grep -q "== amp: fp16" "$TMP/output"
check "a run" at_once trains ./07 "${one[@]}"
check "a newer GPU's type is bf16" grep -q "== amp: bf16" "$TMP/output"
expect 1 "cuDNN has no engine" env FAKE_FAIL="cudnnBackendExecute 5000" ./01 "${one[@]}" --arch convnet

check "it stops after seven steps" at_once trains "${seven[@]}" "${two[@]}" --amp off --max-steps 7 --save stopped.st
check "and resumes: the same weights" like "$pair" "${seven[@]}" "${two[@]}" --amp off --resume stopped.st

FAKE_INIT_HANGS=1 expect 1 "waiting for NCCL to connect the ranks; " "${seven[@]}" "${two[@]}" --amp off --timeout 3

test_done
