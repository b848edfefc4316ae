# shellcheck shell=bash disable=SC2034,SC2154
# The norms must be the finished step's: with fp16's scale of 65536, and on two ranks, where the norms of the ranks' own
# gradients would differ. In f32, --loss-scale must not change the losses.
# fails with: in fp16 the norm does not include the loss scale
build
same=(--bucket-mb 0 --clip-norm 0.5 --seed 5)
norms() { values "$1" step gradient_norm; }

learner half 1 "${same[@]}" --amp fp16
finished right 1 "${same[@]}" --amp fp16
norms half.0.jsonl >found
norms right.0.jsonl >expected
values half.0.jsonl step loss_scale >scales
why="The third column is the loss scale. A gradient longer than 0.5 is clipped to 0.5. If its norm includes the scale,
how long is a gradient of length 1 after clipping?"
beside "in fp16 the norm does not include the loss scale" 1e-3 step \
    expected expected found found "loss scale" scales

# In f32, multiplying and dividing by a power of two changes no bit, unless a number leaves the range of f32.
learner plain 1 "${same[@]}" --amp off
learner scaled 1 "${same[@]}" --amp off --loss-scale 4096
values plain.0.jsonl step loss >plain
values scaled.0.jsonl step loss >scaled
why="If the norm included the scale, the limit would have to include it too."
beside "the loss scale does not change the losses" 1e-6 step "no scale" plain "scale 4096" scaled

for mode in fp16 off; do
    try_learner two.$mode 2 "${same[@]}" --amp $mode --timeout 5
    finished both.$mode 2 "${same[@]}" --amp $mode
    norms both.$mode.0.jsonl >expected
    for rank in 0 1; do norms two.$mode.$rank.jsonl >found.$rank; done
    why="Each rank's own gradients differ. Only the average is the same on all ranks."
    beside "two ranks compute the norm of their averaged gradients (--amp $mode)" 1e-3 step \
        expected expected "rank 0" found.0 "rank 1" found.1
    beside "rank 1 also computes that norm of the average (--amp $mode)" 1e-3 step expected expected "rank 1" found.1
    why="The ranks started with the same weights, so they must have clipped differently."
    [ "$status" = 0 ] || wrong "two ranks keep the same weights" < <(last_lines two.$mode)
    passed "two ranks keep the same weights"
done
