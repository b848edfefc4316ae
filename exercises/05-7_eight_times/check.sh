# shellcheck shell=bash disable=SC2034,SC2154
# Two ranks that compute their batches in parts must have the norms and losses of the finished program, which computes
# whole batches. The runs use AdamW, parts of different sizes, clipping, SGD, and several labels in each row (a GPT).
# fails with: a batch in 8 parts has the norms of the whole batch
build
adam=(--optim adamw --lr 0.002 --train-samples 208 --seed 5 -b 24)        # the last batch has 8 images of each rank

# agrees WORDS NAME NAME: claims that two runs' norms and losses differ by at most 1e-4, on rank 0 and on rank 1.
agrees()
{
    local rank
    for rank in 0 1; do
        values "$2.$rank.jsonl" step gradient_norm >expected
        values "$3.$rank.jsonl" step gradient_norm >found
        values "$2.$rank.jsonl" step loss >expected.losses
        values "$3.$rank.jsonl" step loss >found.losses
        beside "$1 has the norms of the whole batch (rank $rank)" 1e-4 step "whole batch" expected \
            "in parts" found "whole: loss" expected.losses "in parts: loss" found.losses
        why="The norms agree, so the printed norm is right and the gradient is not, or a rank takes other steps."
        beside "$1 has the losses of the whole batch (rank $rank)" 1e-4 step "whole batch" expected.losses \
            "in parts" found.losses
    done
}

finished whole 2 "${adam[@]}"
learner eight 2 "${adam[@]}" --accumulate 8
why="The losses in the last two columns hide the mistake: AdamW divides each gradient by its size. (The last batch of
the epoch has 8 images of each rank: three parts, of 3, 3 and 2.)"
agrees "a batch in 8 parts" whole eight
learner three 2 "${adam[@]}" --accumulate 5
why="A batch of 24 has parts of 5, 5, 5, 5 and 4 images, and the last batch of the epoch has 5 and 3."
agrees "a batch in 5 parts" whole three

why="1.2 is longer than all of these gradients, so nothing may be clipped."
learner clipped 2 "${adam[@]}" --accumulate 8 --clip-norm 1.2
agrees "with --clip-norm, a batch in 8 parts" whole clipped
sgd=(--optim sgd --lr 0.1 --train-samples 208 --seed 5 -b 24)
finished slow 2 "${sgd[@]}" --clip-norm 0.2
learner steps 2 "${sgd[@]}" --accumulate 8 --clip-norm 0.2
agrees "with SGD, a batch in 8 parts" slow steps

awk 'BEGIN { for (i = 0; i < 400; i++) print i * i "=" i "*" i }' >text
gpt=(--arch gpt --width 16 --layers 1 --heads 2 --block 16 --data text:text --train-samples 80 --max-steps 4 -b 6)
finished text 2 "${gpt[@]}"
learner letters 2 "${gpt[@]}" --accumulate 3
why="A row of a GPT's batch is a text of 16 letters, with 16 labels. The loss is the mean over labels, not over rows."
agrees "a batch of texts in 3 parts" text letters
