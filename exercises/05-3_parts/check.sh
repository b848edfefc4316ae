# shellcheck shell=bash disable=SC2034,SC2154
# The losses with many parts are those with one; and so are the bytes that a rank gives to all-reduce in a step, with
# buckets and without.
# fails with: with buckets, ranks send no more for many parts than for one
# fails with: the losses in 4 parts are those of the whole batch
build --with check.c --wrap comm_all_reduce
same=(--amp off --train-samples 48 --seed 5)
sent() { awk '/all-reduce: / { sum += $NF } END { printf "%d bytes\n", sum / 3 }' "$1.out"; }

for parts in 1 2 3 4; do
    why="Is all there that travels? And does ddp.c know where a step ends? (ddp_wait tells it.)"
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
why="So much one rank gives to all-reduce in a step. The gradients are no more: one number for each weight."
beside "with buckets, ranks send no more for many parts than for one" same parts "for one" once found bytes

learner 5 2 "${same[@]}" --bucket-mb 0
learner 6 2 "${same[@]}" --bucket-mb 0 --accumulate 2
{ sent 5; sent 5; } >once
{ sent 5; sent 6; } >bytes
why="Without buckets everything is sent at once, by ddp_wait."
beside "without buckets neither" same parts "for one" once found bytes
values 6.0.jsonl step loss >found
beside "and the losses are right there too" 1e-4 step "one part" whole "2 parts" found
