# shellcheck shell=bash disable=SC2034,SC2154
# Two, four and three devices must learn what 01 learns from the same batches. The last batch of an epoch has 5 rows: 2,
# 2, 1 and none for four devices.
# fails with: 2 devices learn what one learns from the whole batch
build
same=(--train-samples 61 --epochs 2 --lr 0.05 --seed 5)
one one "${same[@]}"
values one.0.jsonl step loss >one.losses

for n in 2 4 3; do
    learner $n $n "${same[@]}"
    values $n.0.jsonl step loss >$n.losses
    why="Step 1 has the same loss in any case: the weights are the same, and the logits of all devices come together.
What the first device then does with the gradients is not what one device would have done."
    [ $n = 2 ] || why="With two devices it is right. Which device has how many rows of a batch of 8? And of the last
batch of an epoch, which has 5 and is step 8?"
    beside "$n devices learn what one learns from the whole batch" 1e-4 step "one device" one.losses \
        "$n devices" $n.losses
done

learner again 3 "${same[@]}"
why="Sums of floats depend on the order. It must not depend on who is ready first."
equal "another run ends with the same bits" "$(value 3.0.jsonl end weight_hash)" \
    "$(value again.0.jsonl end weight_hash)"
