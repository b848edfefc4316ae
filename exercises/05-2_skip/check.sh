# shellcheck shell=bash disable=SC2034,SC2154
# Without an overflow it trains as the finished step. With one in rank 1's fifth step all ranks must leave out that
# step, and it must have changed nothing: five steps have the weights of four.
# fails with: in rank 0: the step in which rank 1's gradients overflow is left out
build --with check.c --wrap loss_cross_entropy
same=(--amp fp16 --train-samples 128 --seed 5 --timeout 5)

learner calm 2 "${same[@]}"
finished right 2 "${same[@]}"
values calm.0.jsonl step loss >found
values right.0.jsonl step loss >expected
why="The average is the sum over ranks, divided by their number, and by the loss scale once."
beside "without an overflow it learns what it should" 1e-4 step expected expected found found

export OVERFLOW_IN_STEP=5
try_learner two 2 "${same[@]}"
printf '%s\n' 0 0 0 0 1 1 1 1 >expected
for rank in 0 1; do
    values two.$rank.jsonl step skipped_steps >skipped.$rank
    values two.$rank.jsonl step loss >loss.$rank
done
why="The numbers are of steps left out so far. A rank that leaves none out has gone on with what rank 1 has put into
the sum."
beside "in rank 0: the step in which rank 1's gradients overflow is left out" same step \
    expected expected "rank 0" skipped.0 "rank 1" skipped.1 "rank 0's loss" loss.0
beside "in rank 1 too" same step expected expected "rank 1" skipped.1 "rank 0" skipped.0
why="Only the weights can tell now: have all ranks the same?"
[ "$status" = 0 ] || wrong "and the run goes on" < <(said two)
passed "and the run goes on"

learner five 2 "${same[@]}" --max-steps 5
OVERFLOW_IN_STEP=0
learner four 2 "${same[@]}" --max-steps 4
why="A step that is left out leaves weights and momentum as they are."
equal "the step has changed nothing: the weights are those of four steps" \
    "$(value four.0.jsonl end weight_hash)" "$(value five.0.jsonl end weight_hash)"
