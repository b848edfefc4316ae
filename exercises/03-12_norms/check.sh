# shellcheck shell=bash disable=SC2034,SC2154
# With --sync-bn, the mean loss of two or three ranks must be the loss of one process with all their images. A failed
# claim also shows the losses without --sync-bn.
# fails with: 2 ranks with --sync-bn learn what one process learns
build
same=(--arch convnet --train-samples 96 --lr 0.05 --seed 5)
one one "${same[@]}" -b 12
values one.0.jsonl step loss >one.losses
for n in 2 3; do
    learner $n $n "${same[@]}" -b $((12 / n)) --sync-bn
    finished own$n $n "${same[@]}" -b $((12 / n))
    for name in $n own$n; do
        for ((rank = 0; rank < n; rank++)); do values $name.$rank.jsonl step loss >$name.$rank.losses; done
        mean $name.?.losses >$name.losses
    done
    why="Compare the third column: ranks that never exchange their statistics."
    beside "$n ranks with --sync-bn learn what one process learns" 1e-4 step "one process" one.losses \
        "--sync-bn" $n.losses "without it" own$n.losses
done
