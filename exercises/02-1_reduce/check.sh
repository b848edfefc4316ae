# shellcheck shell=bash disable=SC2034,SC2154
# Two, four and three devices must learn what step 01 learns from the same batches. The last batch of an epoch has only
# 5 rows: four devices get 2, 2, 1 and none. The last runs simulate devices with memory of their own (check.c).
# fails with: 2 devices learn what one device learns from the whole batch
build --with check.c --wrap add_into --wrap copy_on_device --wrap replicas_add \
    --wrap device_shares_memory --wrap device_alloc --wrap device_open --wrap ops_new
same=(--train-samples 61 --epochs 2 --lr 0.05 --seed 5)
one one "${same[@]}"
values one.0.jsonl step loss >one.losses

for n in 2 4 3; do
    why="On a CPU the devices share memory, and all->scratch is NULL: no copy is needed."
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

OWN_MEMORY=1 try_learner own 3 "${same[@]}"
why="On a CPU all devices share memory, so any code can read all gradients. A GPU reads only its own memory, and the
host reads none of it. So device 0 must first copy another device's gradients to all->scratch (count floats, not bytes),
and then add them from there, with its own ops."
equal "device 0 computes only with its own memory" "" "$(sed -n 's/^spy: //p' own.out | sort -u | head -3)"
why="Each batch of 8 or 5 rows leaves pieces for two other devices, whose gradients add_into adds: the host cannot
compute with a GPU's memory. There are 16 batches."
equal "device 0 adds the gradients of two devices in each step" "32 calls of add_into" \
    "$(grep -c '^add:' own.out) calls of add_into"
[ "$status" = 0 ] || wrong "the run with scratch memory succeeds" < <(last_lines own)
values own.0.jsonl step loss >own.losses
why="all->scratch has room for the gradients of one device. They must be added before the next ones arrive."
beside "with scratch memory they learn the same" 1e-4 step "one device" one.losses "3 devices" own.losses

OWN_MEMORY=1 try_learner large 2 --arch resnet18 --train-samples 16 -b 4 --max-steps 1
why="This ResNet-18 has more parameters than gradients: at 32x32 pixels, most of its weights only ever multiply padding
(model.h). grad_count is the number of gradients."
equal "a network with fewer gradients than parameters fits, too" "" \
    "$(sed -n 's/^spy: //p' large.out | sort -u | head -3)"
[ "$status" = 0 ] || wrong "this run succeeds" < <(last_lines large)
