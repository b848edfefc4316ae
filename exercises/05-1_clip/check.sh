# shellcheck shell=bash disable=SC2034,SC2154
# The norms must be step 05's: with fp16's scale of 65536, and on two ranks, where the norms of the ranks' own
# gradients would differ. In f32, --loss-scale must not change the losses. A spy (check.c) counts calls that read all
# gradients, and in the runs of two ranks delays them so that gradients that still travel would be changed.
# fails with: in fp16 the norm does not include the loss scale
build --with check.c --wrap gradients_norm --wrap gradients_unscale --wrap comm_all_reduce --wrap values_scale
same=(--clip-norm 0.5 --seed 5)
norms() { values "$1" step gradient_norm; }
# calls NAME: how often the run computed the norm, and how often it unscaled
calls() { echo "the norm $(grep -c norm "$1.calls") times, unscaled $(grep -c unscale "$1.calls") times"; }

CALLS=half.calls learner half 1 "${same[@]}" --amp fp16
finished right 1 "${same[@]}" --amp fp16
norms half.0.jsonl >found
norms right.0.jsonl >expected
values half.0.jsonl step loss_scale >scales
why="The third column is the loss scale. A gradient longer than 0.5 is clipped to 0.5. If its norm includes the scale,
how long is a gradient of length 1 after clipping?"
beside "in fp16 the norm does not include the loss scale" 1e-3 step \
    expected expected found found "loss scale" scales
why="Each call reads all gradients, also if its result is not used."
equal "12 steps compute 12 norms" "the norm 12 times, unscaled 12 times" "$(calls half)"

CALLS=free.calls try_learner free 1 "${same[@]}" --amp fp16 --clip-norm 0
finished right 1 "${same[@]}" --amp fp16 --clip-norm 0
values right.0.jsonl step loss >expected
values free.0.jsonl step loss >found
why="Without --clip-norm, too, the optimizer needs gradients that do not include the scale."
beside "without --clip-norm the losses are right" 1e-3 step expected expected found found
why="Without --clip-norm amp_clip needs no norm. The log computes its own, in amp_describe."
equal "without --clip-norm only the log computes norms" "the norm 12 times, unscaled 12 times" "$(calls free)"
[ "$status" = 0 ] || wrong "without --clip-norm the run ends well" < <(last_lines free)

# In f32, multiplying and dividing by a power of two changes no bit, unless a number leaves the range of f32.
CALLS=plain.calls learner plain 1 "${same[@]}" --amp off
learner scaled 1 "${same[@]}" --amp off --loss-scale 4096
values plain.0.jsonl step loss >plain
values scaled.0.jsonl step loss >scaled
why="If the norm included the scale, the limit would have to include it too."
beside "the loss scale does not change the losses" 1e-6 step "no scale" plain "scale 4096" scaled
why="Without a loss scale there is nothing to divide by."
equal "without a loss scale nothing is unscaled" "the norm 12 times, unscaled 0 times" "$(calls plain)"

for mode in fp16 off; do
    SLOW=1 try_learner two.$mode 2 "${same[@]}" --amp $mode --timeout 5
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
