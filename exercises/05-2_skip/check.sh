# shellcheck shell=bash disable=SC2034,SC2154
# Without an overflow the program must train like the finished program. If rank 1's fifth step overflows, all ranks
# must skip that step: five steps end with the weights of four. So must they if only one gradient of one layer
# overflows. No message may be added, and each gradient is checked once: in ResNet-18, which has more weights than
# gradients, too.
# fails with: rank 0 skips the step in which rank 1's gradients overflow
build --with check.c --wrap loss_cross_entropy --wrap model_new --wrap ddp_ready --wrap gradients_check \
    --wrap comm_all_reduce --wrap ddp_wait
same=(--amp fp16 --train-samples 128 --seed 5 --timeout 5)

CHECKED=checked learner calm 2 "${same[@]}" --trace calm.json
finished right 2 "${same[@]}" --trace right.json
values calm.0.jsonl step loss >found
values right.0.jsonl step loss >expected
why="The average is the sum over ranks, divided by their number and, once, by the loss scale."
beside "without an overflow the losses are right" 1e-4 step expected expected found found

why="Which gradients do all ranks have anyway? An overflow on one rank also shows there."
equal "no message is added" "$(all_calls right.json) calls" "$(all_calls calm.json) calls"

export OVERFLOW_IN_STEP=5
# Messages are late (check.c). So a check before ddp_wait never sees the average.
LATE=1 try_learner two 2 "${same[@]}"
printf '%s\n' 0 0 0 0 1 1 1 1 >expected
for rank in 0 1; do
    values two.$rank.jsonl step skipped_steps >skipped.$rank
    values two.$rank.jsonl step loss >loss.$rank
done
why="The numbers count the steps skipped so far. A rank that does not skip step 5 uses rank 1's infinite gradients."
beside "rank 0 skips the step in which rank 1's gradients overflow" same step \
    expected expected "rank 0" skipped.0 "rank 1" skipped.1 "rank 0's loss" loss.0
beside "rank 1 also skips this step" same step expected expected "rank 1" skipped.1 "rank 0" skipped.0
why="Do all ranks still have the same weights?"
[ "$status" = 0 ] || wrong "the run continues after the overflow" < <(last_lines two)
passed "the run continues after the overflow"

learner five 2 "${same[@]}" --max-steps 5
OVERFLOW_IN_STEP=0
learner four 2 "${same[@]}" --max-steps 4
why="A skipped step leaves weights and momentum unchanged."
equal "the skipped step changes nothing: the weights are those of four steps" \
    "$(value four.0.jsonl end weight_hash)" "$(value five.0.jsonl end weight_hash)"

export OVERFLOW_ALONE=yes
try_learner alone 2 "${same[@]}"
printf '%s\n' 0 1 2 3 4 5 5 5 >expected
values alone.0.jsonl step skipped_steps >skipped
why="In steps 2 to 6 only one gradient of rank 1 overflows, each time in another layer: in step 2 in the layer whose
gradients are final first, in step 6 in the last one. One infinite gradient makes one infinite weight: check them all."
beside "the gradients of each layer are checked" same step expected expected "rank 0" skipped
[ "$status" = 0 ] || wrong "the run continues after these overflows" < <(last_lines alone)
unset OVERFLOW_ALONE

learner short 2 "${same[@]}" --compress bf16
finished right 2 "${same[@]}" --compress bf16
values short.0.jsonl step loss >found
values right.0.jsonl step loss >expected
why="With --compress the gradients are averaged in 16 bits."
beside "with --compress bf16 the losses are also right" 1e-4 step expected expected found found

for rank in 0 1; do
    why="A check reads all its gradients. If any rank's gradient is not finite, the average is not either, so to check
the rank's own gradients as well finds nothing more."
    equal "8 steps check all gradients 8 times (rank $rank)" "8 times" \
        "$(awk '{ sum += $1 } END { printf "%.4g times", sum }' checked.$rank)"
done

CHECKED=wide try_learner wide 2 "${same[@]}" --arch resnet18 -b 1 --test-samples 1 --max-steps 1
why="On small images some weights of ResNet-18 only ever meet padding. They have no gradient: param_count counts all
weights, grad_count those that have one. What follows the gradients in memory is not yours."
equal "one step of ResNet-18 checks its gradients, and nothing behind them" "1 x all gradients" \
    "$(awk '{ sum += $1 } END { printf "%.4g x all gradients", sum }' wide.1)"
[ "$status" = 0 ] || wrong "the run with ResNet-18 succeeds" < <(last_lines wide)
