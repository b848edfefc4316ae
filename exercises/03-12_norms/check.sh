# shellcheck shell=bash disable=SC2034,SC2154
# With --sync-bn, the mean loss of two or three ranks must be the loss of one process with all their images. A failed
# claim also shows the losses without --sync-bn. The messages must be those of step 03.
# fails with: 2 ranks with --sync-bn learn what one process learns
build
same=(--arch convnet --train-samples 96 --lr 0.01 --seed 5)
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

learner yours 2 "${same[@]}" -b 6 --sync-bn --max-steps 2 --trace yours.json
finished right 2 "${same[@]}" -b 6 --sync-bn --max-steps 2 --trace right.json
calls_of right.json norms >expected
calls_of yours.json norms >found
why="The losses are right. But a BatchNorm waits for each message, so a second one costs as much as the first, and an
all-reduce of all ranks' numbers carries zeros. One call gives every rank what each rank has."
beside "each BatchNorm sends its own numbers once, in one message" same call "one call each" expected yours found
