# shellcheck shell=bash disable=SC2034,SC2154
# The images in forward passes, the bytes sent and the losses must equal those of the whole batch. Each rank has 45
# images in batches of 20, so the last batch has 5. No part may be smaller than necessary, and the last part's ranges
# must reach ddp_ready while backward runs.
# fails with: in 3 parts every image of a batch is used
# fails with: whole batches still give the right losses
build --with check.c --wrap model_forward --wrap comm_all_reduce --wrap sgd_update --wrap model_backward \
    --wrap ddp_ready
same=(--amp off -b 20 --train-samples 90 --seed 5 --lr 0.1 --timeout 5)
# per_step WHAT NAME: prints the spy's numbers for WHAT in NAME.out, a line for each step: "7 7 6"
per_step()
{
    awk -v what="$1" '
        { sub(/.*spy /, "spy ") }
        $1 == "spy" && $2 == what { line = line sep $3; sep = " " }
        $1 == "spy" && $2 == "update" { print line; line = sep = "" }' "$2.out"
}
sums() { awk '{ sum = 0; for (i = 1; i <= NF; i++) sum += $i; print sum }'; }

why="Without --accumulate there is one part, both first and last, and a->sum is NULL."
learner whole 2 "${same[@]}"
finished right 2 "${same[@]}"
values right.0.jsonl step loss >expected
values whole.0.jsonl step loss >found
why="Without --accumulate there is one part, the whole batch."
beside "whole batches still give the right losses" 1e-4 step expected expected found found
per_step forward whole | sums >images
per_step all-reduce whole | sums >bytes

for parts in 3 4; do
    why="Parts have 20 / $parts rows, rounded up: the model has no room for more. ddp_ready must get each gradient
once per step."
    learner $parts 2 "${same[@]}" --accumulate $parts
    per_step forward $parts >rows
    sums <rows >found
    why="The model never learns from images that are left out, although the loss falls."
    beside "in $parts parts every image of a batch is used" same step \
        "images" images found found "in parts of" rows
    case $parts in
    3) printf '%s\n' "7 7 6" "7 7 6" 5 ;;
    4) printf '%s\n' "5 5 5 5" "5 5 5 5" 5 ;;
    esac >full
    why="The model has room for a->model->input.n rows, also if a batch is smaller. More and smaller parts take
longer."
    beside "in $parts parts each part but the last is full" same step expected full found rows
    values $parts.0.jsonl step loss >found
    why="The first loss depends only on the parts' images and labels, the later ones also on the sum of gradients."
    beside "in $parts parts the losses are those of whole batches" 1e-4 step \
        "whole batches" expected "$parts parts" found
    per_step all-reduce $parts | sums >found
    why="The losses are right, but the ranks should exchange the sum of all parts, once."
    beside "in $parts parts each step sends as many bytes as a whole batch" same step \
        "whole batches" bytes "$parts parts" found
    per_step held $parts >found
    printf '%s\n' 0 0 0 >expected.held
    why="The numbers count the last part's ranges that accumulate_ready has not passed to ddp_ready when it returns.
Buckets travel while backward computes the next ranges. A range that is held back travels later, and the step takes
longer."
    beside "in $parts parts the last part's ranges are passed on at once" same step expected expected.held found found
done

finished right 2 "${same[@]}" --amp bf16
why="In bf16 each number of an image has 2 bytes. shape_bytes returns the bytes of a shape in its own type."
learner short 2 "${same[@]}" --amp bf16 --accumulate 3
values right.0.jsonl step loss >expected
values short.0.jsonl step loss >found
beside "in bf16 the losses are nearly those of whole batches" 0.02 step "whole batches" expected "3 parts" found
