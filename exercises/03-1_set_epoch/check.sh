# shellcheck shell=bash disable=SC2034,SC2154
# In three epochs, each rank must use images in three orders: those of the finished step.
# fails with: rank 0 uses the same order in several epochs
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
        why="The order depends on the seed and on the epoch's number. Here that number never changes."
        wrong "rank $rank uses the same order in several epochs" < <(
            echo "images that rank $rank should use"
            cat expected.$rank
            echo "images that it used"
            cat found.$rank)
    fi
    passed "rank $rank uses a new order in each epoch"
done

why="PyTorch's order: every rank shuffles epoch 1 with the seed itself, epoch 2 with seed + 1, and so on. If the order
also depended on the rank, two ranks would use some of the same images."
for rank in 0 1; do
    beside "rank $rank shuffles with seed + epoch" same "" expected expected.$rank found found.$rank
done
