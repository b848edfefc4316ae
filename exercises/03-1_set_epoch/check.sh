# shellcheck shell=bash disable=SC2034,SC2154
# Which images each rank takes in each of three epochs, compared with those that the finished step takes.
# fails with: rank 0 does not take its images in another order in each epoch
build
know_images 24
learner yours 2 "${seeing[@]}" --epochs 3
finished right 2 "${seeing[@]}" --epochs 3

for rank in 0 1; do
    for epoch in 1 2 3; do
        images yours.$rank.jsonl $epoch >found
        images right.$rank.jsonl $epoch >expected
        printf 'epoch %d   %s\n' $epoch "$(in_a_row expected)" >>expected.$rank
        printf 'epoch %d   %s\n' $epoch "$(in_a_row found)" >>found.$rank
    done
    if [ "$(sed 's/^epoch . *//' found.$rank | sort -u | wc -l)" != 3 ]; then
        why="The order depends on the seed and the number of the epoch. Here the number stays the same."
        wrong "rank $rank does not take its images in another order in each epoch" < <(
            echo "images that rank $rank should take"
            cat expected.$rank
            echo "images that it took"
            cat found.$rank)
    fi
    passed "rank $rank takes its images in another order in each epoch"
done

why="Epoch 1 is shuffled with the seed itself, epoch 2 with seed + 1, and so on, on every rank: else ranks take the same
images, and a run cannot be repeated or resumed."
for rank in 0 1; do
    beside "the orders of rank $rank are those of seed + epoch" same "" expected expected.$rank found found.$rank
done
