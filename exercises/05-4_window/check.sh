# shellcheck shell=bash disable=SC2034,SC2154
# Which images go forward, what is sent, and the losses: in parts they are those of the whole batch. 45 images a rank,
# in batches of 20: the last has 5.
# fails with: in 3 parts every image of a batch goes forward
# fails with: whole batches are learned as ever
build --with check.c --wrap model_forward --wrap comm_all_reduce --wrap sgd_update
same=(--amp off -b 20 --train-samples 90 --seed 5 --lr 0.1 --timeout 5)
# per_step WHAT NAME: the numbers of a step, one step a line: "7 7 6"
per_step()
{
    awk -v what="$1" '
        { sub(/.*spy /, "spy ") }
        $1 == "spy" && $2 == what { line = line sep $3; sep = " " }
        $1 == "spy" && $2 == "update" { print line; line = sep = "" }' "$2.out"
}
sums() { awk '{ sum = 0; for (i = 1; i <= NF; i++) sum += $i; print sum }'; }

why="Without --accumulate there is one part, which is the first and the last; and amp->sum is NULL."
learner whole 2 "${same[@]}"
finished right 2 "${same[@]}"
values right.0.jsonl step loss >expected
values whole.0.jsonl step loss >found
why="Without --accumulate there is one part: all of the batch."
beside "whole batches are learned as ever" 1e-4 step expected expected found found
per_step forward whole | sums >images
per_step all-reduce whole | sums >bytes

for parts in 3 4; do
    why="Parts have 20 / $parts rows, rounded up; and ddp_ready is told of each gradient once in a step."
    learner $parts 2 "${same[@]}" --accumulate $parts
    per_step forward $parts >rows
    sums <rows >found
    why="What is left out is never learned from, though the loss falls."
    beside "in $parts parts every image of a batch goes forward" same step \
        "images" images found found "in parts of" rows
    values $parts.0.jsonl step loss >found
    why="The first step's loss depends on the parts' images and labels alone; those behind it, on the sum of gradients."
    beside "in $parts parts it learns what it learns from whole batches" 1e-4 step \
        "whole batches" expected "$parts parts" found
    per_step all-reduce $parts | sums >found
    why="The losses are right, but ranks need to talk only once for all parts."
    beside "and sends as many bytes" same step "whole batches" bytes "$parts parts" found
done
