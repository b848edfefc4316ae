#!/usr/bin/env bash
# Runs with equal seeds and threads give bit-identical weights. So does a run that was killed at any step,
# even in the middle of an epoch, and resumed from its checkpoint.
#
# ctest: TIMEOUT 300 PROCESSORS 2
set -u
failed=0 passed=0 optim=sgd
train() { "$BUILD/01_single_gpu/train" --arch "$arch" --data "$data" --train-samples 100 --test-samples 64 \
    -b 16 --threads 2 -p 1 --seed 3 --epochs 3 --optim $optim "$@" > "$TMP/out" 2>&1; }
hash_of() { sed -n 's/^weight hash: //p' "$TMP/out"; }
expect() {  # expect WHAT GOT WANTED
    if [ -n "$3" ] && [ "$2" = "$3" ]; then passed=$((passed + 1)); return; fi
    failed=$((failed + 1)); echo "$1: got '$2', wanted '$3'" >&2; tail -3 "$TMP/out" >&2
}
losses() { sed -n 's/.*"event":"step".*"epoch":\([0-9]*\),"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2 \3/p' "$1"; }
top1() { sed -n 's/.*"event":"epoch".*"top1":\([0-9.]*\).*/\1/p' "$1"; }

check() {   # check ARCH DATA STEPS...: an epoch has 7 steps, the last one of 4 samples
    arch=$1 data=$2; shift 2
    train --metrics "$TMP/whole.jsonl" --save "$TMP/whole.st"
    whole=$(hash_of)
    train
    expect "$arch: the same bits twice" "$(hash_of)" "$whole"
    for step in "$@"; do
        rm -f "$TMP/part.st" "$TMP/part.jsonl"
        train --save "$TMP/part.st" --max-steps "$step" --metrics "$TMP/part.jsonl"
        train --save "$TMP/part.st" --resume auto --metrics "$TMP/part.jsonl"
        expect "$arch: ended after step $step and resumed" "$(hash_of)" "$whole"
        expect "$arch: all losses, ended after step $step" "$(losses "$TMP/part.jsonl" | md5sum)" \
            "$(losses "$TMP/whole.jsonl" | md5sum)"
        expect "$arch: all accuracies, ended after step $step" "$(top1 "$TMP/part.jsonl")" "$(top1 "$TMP/whole.jsonl")"
        cmp -s "$TMP/part.st" "$TMP/whole.st" || expect "$arch: the last checkpoint" differs same
    done
}
check lenet fashion-mnist 1 3 7 10 20
check resnet18 synthetic 5 14
optim=adamw check convnet synthetic 3 10

# The batch size may change between two epochs, because the learning rate follows the epochs, not the steps.
arch=lenet data=fashion-mnist
rm -f "$TMP/lr.st" "$TMP/lr.jsonl"
train --save "$TMP/lr.st" --epochs 2 --schedule multistep --milestones 2
train --save "$TMP/lr.st" --resume auto -b 50 --schedule multistep --milestones 2 --metrics "$TMP/lr.jsonl"
expect "the rate after a change of batch size" \
    "$(sed -n 's/.*"event":"step".*"lr":\([^,]*\),.*/\1/p' "$TMP/lr.jsonl" | sort -u)" 0.001

# In the middle of an epoch only the same samples in the same order continue; other data follows after the epoch.
arch=lenet data=fashion-mnist
rm -f "$TMP/order.st"
train --save "$TMP/order.st" --max-steps 9
for other in --no-shuffle "--train-samples 99"; do
    # shellcheck disable=SC2086  # several words
    train --save "$TMP/order.st" --resume auto $other
    expect "$other in the middle of an epoch" \
        "$? $(grep -c 'order.st stopped in the middle of an epoch of other' "$TMP/out")" "1 1"
done
train --save "$TMP/order.st" --resume auto --epochs 2
train --save "$TMP/order.st" --resume auto --no-shuffle
expect "--no-shuffle after an epoch" "$?" 0

# A run is killed again and again until it finishes. It must only ever resume complete checkpoints.
arch=convnet data=fashion-mnist
train; whole=$(hash_of)
kills=0
for wait in 0.1 0.2 0.3 0.4 0.6 0.9 5 30; do
    timeout -s KILL $wait "$BUILD/01_single_gpu/train" --arch $arch --data $data --train-samples 100 --test-samples 64 \
        -b 16 --threads 2 -p 1 --seed 3 --epochs 3 --save "$TMP/kill.st" --resume auto > "$TMP/out" 2>&1 && break
    kills=$((kills + 1))
done
expect "killed $kills times" "$(hash_of)" "$whole"
expect "and no temporary file is left" "$(find "$TMP" -maxdepth 1 -name '*tmp' | wc -l)" 0

# A run that is killed while it evaluates has saved the epoch. The resumed run evaluates it.
arch=lenet data=synthetic
${CC:-cc} -shared -fPIC -O1 -o "$TMP/crash.so" "$SRC/tests/shim/crash.c" || exit 1
LD_PRELOAD=$TMP/crash.so RANK=0 CRASH_RANK=0 CRASH_TEXT='"name":"evaluate"' CRASH_DO=KILL train --epochs 2 \
    --save "$TMP/late.st" --trace "$TMP/late.trace"
expect "killed while it evaluates" "$(grep -c '== saved' "$TMP/out") $(grep -c '== test' "$TMP/out")" "1 0"
train --epochs 2 --save "$TMP/late.st" --resume auto --metrics "$TMP/late.jsonl"
resumed=$(hash_of)
expect "and evaluated by the next run" "$(grep -c '== test' "$TMP/out") $(top1 "$TMP/late.jsonl" | wc -l)" "2 2"
train --epochs 2
expect "with the weights of an uninterrupted run" "$resumed" "$(hash_of)"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
