# shellcheck shell=bash disable=SC2034,SC2154
# Two and four devices (equal pieces) and three (3, 3 and 2 rows) must learn what one device learns from whole batches.
# With four devices, this must also hold if the last batch of an epoch is smaller.
# fails with: 3 devices learn what one device learns from the whole batch
build
same=(--epochs 2 --lr 0.05 --seed 5)

# compare IMAGES DEVICES WORDS
compare()
{
    one one "${same[@]}" --train-samples "$1"
    learner many "$2" "${same[@]}" --train-samples "$1"
    values one.0.jsonl step loss >one.losses
    values many.0.jsonl step loss >many.losses
    beside "$2 devices learn what one device learns from the whole batch${3:-}" 1e-4 step \
        "one device" one.losses "$2 devices" many.losses
}

why="Here all pieces have the same size. The weights of the devices must add up to 1."
compare 48 2
why="Here all pieces have the same size. The weights of the devices must add up to 1."
compare 48 4
why="The devices get 3, 3 and 2 rows of each batch."
compare 48 3
why="Here the last batch of an epoch, step 6, has 5 rows, not 8. The devices get 2, 2, 1 and none."
compare 45 4 ", even from a small last batch"
