# shellcheck shell=bash disable=SC2034,SC2154
# Two, four and three devices must learn what step 01 learns from the same batches. The last batch of an epoch has 5
# rows: 2, 2, 1 and none for four devices.
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
    [ $n = 2 ] || why="Two devices are right. How many of 8 rows does each device have? And how many of the last
batch of the epoch, step 8, which has 5?"
    beside "$n devices learn what one device learns from the whole batch" 1e-4 step "one device" one.losses \
        "$n devices" $n.losses
done

learner again 3 "${same[@]}"
why="Float sums depend on the order. The order must not depend on which device is ready first."
equal "a second run ends with the same bits" "$(value 3.0.jsonl end weight_hash)" \
    "$(value again.0.jsonl end weight_hash)"
