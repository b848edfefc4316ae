# shellcheck shell=bash disable=SC2034,SC2154
# Two, four and three devices must learn what step 01 learns from the same batches. The last batch of an epoch has only
# 5 rows: four devices get 2, 2, 1 and none.
# fails with: 2 devices learn what one device learns from the whole batch
build
same=(--train-samples 61 --epochs 2 --lr 0.05 --seed 5)
one one "${same[@]}"
values one.0.jsonl step loss >one.losses

for n in 2 4 3; do
    learner $n $n "${same[@]}"
    values $n.0.jsonl step loss >$n.losses
    why="The loss of step 1 is always right: the weights are equal, and device 0 gathers the logits of all devices.
But device 0 then updates the weights with different gradients than a single device would."
    [ $n = 2 ] || why="Two devices were right. How many of the 8 rows does each of $n devices get? And how many of the 5
rows of step 8, the last of the epoch?"
    beside "$n devices learn what one device learns from the whole batch" 1e-4 step "one device" one.losses \
        "$n devices" $n.losses
done

learner again 3 "${same[@]}"
why="A float sum depends on the order of its terms, so the order must not depend on which device finishes first."
equal "a second run ends with bit-identical weights" "$(value 3.0.jsonl end weight_hash)" \
    "$(value again.0.jsonl end weight_hash)"
