#!/usr/bin/env bash
# Runs with the same seed and the same number of threads give bit-identical weights. So does a run that ended at any
# step and was resumed.
#
# ctest: TIMEOUT 300 PROCESSORS 2 LABELS quick
. "$SRC/tests/test.sh"
# An epoch has 7 steps (with samples=36, 3), the last one of 4 samples.
train() { expect 0 "weight hash: " run "$@"; }
run() { "$BUILD/01_single_gpu/train" --arch "$arch" --data synthetic --train-samples "${samples:-100}" \
    --test-samples 64 -b 16 --threads 2 -p 1 --seed 3 --epochs 3 --optim "${optim:-sgd}" "$@"; }
losses() { paste <(field "$1" step epoch) <(field "$1" step step) <(field "$1" step loss); }

resumes() # resumes ARCH STEPS...
{
    local whole step
    arch=$1
    shift
    train --metrics whole.jsonl --save whole.st
    whole=$(hash_of)
    train
    check "$arch: the same bits twice" is "$(hash_of)" "$whole"
    for step in "$@"; do
        rm -f part.st part.jsonl
        train --save part.st --max-steps "$step" --metrics part.jsonl
        train --save part.st --resume auto --metrics part.jsonl
        check "$arch: ended after step $step and resumed" is "$(hash_of)" "$whole"
        check "$arch: all losses, ended after step $step" diff <(losses part.jsonl) <(losses whole.jsonl)
        check "$arch: all accuracies, ended after step $step" \
            is "$(field part.jsonl epoch top1)" "$(field whole.jsonl epoch top1)"
        check "$arch: the last checkpoint" cmp part.st whole.st
    done
}
resumes lenet 3 7
samples=36 resumes resnet18 4
optim=adamw resumes convnet 3 10

# The learning rate follows the epochs, not the steps.
arch=lenet
train --save lr.st --epochs 2 --schedule step --milestones 2
train --save lr.st --resume auto -b 50 --schedule step --milestones 2 --metrics lr.jsonl
check "the rate after a change of batch size" is "$(field lr.jsonl step lr | sort -u)" 0.001

# A run resumes in the middle of an epoch only with the same training samples in the same order; after an epoch,
# with any.
train --save order.st --max-steps 9
for other in --no-shuffle "--train-samples 99"; do
    # shellcheck disable=SC2086  # several words
    expect 1 "order.st was saved in an epoch with different" run --save order.st --resume auto $other
done
train --save order.st --resume auto --epochs 2
train --save order.st --resume auto --no-shuffle

# A run that is killed in its second epoch. The first epoch has 7 forwards of training and 4 of the evaluation.
${CC:-cc} -shared -fPIC -O1 -o crash.so "$SRC/tests/shim/crash.c" || exit 1
LD_PRELOAD=$TMP/crash.so RANK=0 CRASH_RANK=0 CRASH_TEXT='"name":"forward"' CRASH_AT=15 CRASH_DO=KILL \
    expect 137 "step: [  3/7] [2/3]" run --save killed.st --save-every 2 --trace killed.trace
train --save killed.st --resume auto
check "it continues after the second step of that epoch" not grep -qF "[  2/7] [2/3]" output
resumed=$(hash_of)
train
check "killed and resumed: the same bits" is "$resumed" "$(hash_of)"

# A run that dies in the evaluation after its last step: the next run has no step left, and evaluates.
LD_PRELOAD=$TMP/crash.so RANK=0 CRASH_RANK=0 CRASH_TEXT='"name":"evaluate"' CRASH_DO=KILL \
    expect 137 "== saved" run --max-steps 7 --save late.st --trace late.trace
check "killed while it evaluates" not grep -q '== test' output
train --max-steps 7 --save late.st --resume auto --metrics late.jsonl
resumed=$(hash_of)
check "and evaluated by the next run" is "$(grep -c '== test' output) $(field late.jsonl epoch top1 | wc -l)" "1 1"
check "and .best" test -s late.st.best
train --max-steps 7
check "with the weights of an uninterrupted run" is "$resumed" "$(hash_of)"
test_done
