# shellcheck shell=bash disable=SC2034,SC2154
# The norms that are clipped by: those of the finished step, with fp16's scale of 65536; then with any scale; then on
# two ranks, where a norm of a rank's own gradients would differ from the other's.
# fails with: in fp16 gradients are as long as they are without their loss scale
build
same=(--bucket-mb 0 --clip-norm 0.5 --seed 5)
norms() { values "$1" step gradient_norm; }

learner half 1 "${same[@]}" --amp fp16
finished right 1 "${same[@]}" --amp fp16
norms half.0.jsonl >found
norms right.0.jsonl >expected
values half.0.jsonl step loss_scale >scales
why="The third column is the loss scale. Longer than 0.5 is clipped to 0.5: so what becomes of a gradient of length 1?"
beside "in fp16 gradients are as long as they are without their loss scale" 1e-3 step \
    expected expected found found "loss scale" scales

# In f32 a factor that is a power of two, and undone, costs not one bit.
learner plain 1 "${same[@]}" --amp off
learner scaled 1 "${same[@]}" --amp off --loss-scale 4096
values plain.0.jsonl step loss >plain
values scaled.0.jsonl step loss >scaled
why="Where the scale is in the norm, the limit must not be without it."
beside "the loss scale does not change what is learned" 1e-6 step "no scale" plain "scale 4096" scaled

try_learner two 2 "${same[@]}" --amp fp16 --timeout 5
finished both 2 "${same[@]}" --amp fp16
norms both.0.jsonl >expected
for rank in 0 1; do norms two.$rank.jsonl >found.$rank; done
why="Each rank has gradients of its own images, and only their average is everybody's."
beside "two ranks measure one gradient, their average" 1e-3 step \
    expected expected "rank 0" found.0 "rank 1" found.1
beside "and so does rank 1" 1e-3 step expected expected "rank 1" found.1
why="The ranks began with the same weights: so they have shortened their gradients differently."
[ "$status" = 0 ] || wrong "two ranks keep the same weights" < <(said two)
passed "two ranks keep the same weights"
