# shellcheck shell=bash disable=SC2034,SC2154
# The losses, and the bytes that a rank sends per step, must not depend on the number of parts, with buckets or without.
# fails with: with buckets, many parts cost as many bytes as one
# fails with: the losses in 4 parts are those of the whole batch
build --with check.c --wrap comm_all_reduce
same=(--amp off --train-samples 48 --seed 5)
sent() { awk '/all-reduce: / { sum += $NF } END { printf "%d bytes\n", sum / 3 }' "$1.out"; }

for parts in 1 2 3 4; do
    why="Is every gradient sent? And does each step call ddp_wait?"
    learner $parts 2 "${same[@]}" --accumulate $parts
    why=''
    sent $parts >>bytes
    sent 1 >>once
done
values 1.0.jsonl step loss >whole
for parts in 2 3 4; do
    values $parts.0.jsonl step loss >found
    why="What the optimizer gets must be the average over ranks of the sum over parts."
    beside "the losses in $parts parts are those of the whole batch" 1e-4 step "one part" whole "$parts parts" found
done
why="The table shows the bytes that one rank sends per step. There is one gradient per weight, however many parts."
beside "with buckets, many parts cost as many bytes as one" same parts "for one" once found bytes

learner 5 2 "${same[@]}" --bucket-mb 0
learner 6 2 "${same[@]}" --bucket-mb 0 --accumulate 2
{ sent 5; sent 5; } >once
{ sent 5; sent 6; } >bytes
why="Without buckets, ddp_wait sends everything at once."
beside "without buckets, many parts also cost as many bytes as one" same parts "for one" once found bytes
values 6.0.jsonl step loss >found
beside "without buckets the losses are also right" 1e-4 step "one part" whole "2 parts" found
