# shellcheck shell=bash disable=SC2034,SC2154
# Two and three ranks must have the losses of one process with all their images. If not, a third column shows one
# process with an N times larger learning rate: without weight decay, a sum of gradients has exactly that effect. AdamW
# takes almost the same steps with a sum and a mean, so its runs fail if the learning rate is divided instead.
# fails with: two ranks learn what one process with all their images learns
# fails with: one, lr x 2
build
same=(--train-samples 288 --lr 0.02 --wd 0 --seed 5)
one one "${same[@]}" -b 48
values one.0.jsonl step loss >one.losses

for n in 2 3; do
    learner $n $n "${same[@]}" -b $((48 / n))
    for ((rank = 0; rank < n; rank++)); do
        values $n.$rank.jsonl step loss >$n.$rank.losses
    done
    mean $n.?.losses >$n.losses
    one fast "${same[@]}" -b 48 --lr 0.0$((2 * n))
    values fast.0.jsonl step loss >fast.losses
    words=(- - two three)
    why="Each step is too long or too short. Compare the third column."
    beside "${words[n]} ranks learn what one process with all their images learns" 1e-4 step \
        "one process" one.losses "$n ranks" $n.losses "one, lr x $n" fast.losses
done

adam=(--train-samples 288 --optim adamw --lr 0.002 --seed 5)
one adam.one "${adam[@]}" -b 48
learner adam 2 "${adam[@]}" -b 24
values adam.one.0.jsonl step loss >one.losses
for rank in 0 1; do values adam.$rank.jsonl step loss >2.$rank.losses; done
mean 2.?.losses >2.losses
why="AdamW divides each gradient by its own size, so a sum and a mean take the same steps, and the learning rate must
stay as it is. The gradients have to be right, not only SGD's steps."
beside "with AdamW they also learn what one process learns" 1e-3 step "one process" one.losses "2 ranks" 2.losses
