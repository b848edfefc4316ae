# shellcheck shell=bash disable=SC2034,SC2154
# In three epochs, each rank must use images in three orders: those of step 03. A run that is resumed after
# the first epoch must use the orders of the second and third, and a run that is resumed within the third epoch the
# order of the third.
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

learner first 2 "${seeing[@]}" --epochs 1 --save first.st
learner resumed 2 "${seeing[@]}" --epochs 3 --resume first.st
why="The first epoch of this program was epoch 2 of the training. The checkpoint has that number: job->state.epoch
counts the finished epochs of the whole training, not those of this program."
for rank in 0 1; do
    sed -n 2,3p expected.$rank >expected
    for epoch in 2 3; do
        images resumed.$rank.jsonl $epoch >took
        printf 'epoch %d   %s\n' $epoch "$(in_a_row took)"
    done >found
    beside "rank $rank uses the orders of epochs 2 and 3 after a restart" same "" expected expected found found
done

learner begun 2 "${seeing[@]}" --epochs 3 --max-steps 27 --save middle.st
learner continued 2 "${seeing[@]}" --epochs 3 --resume middle.st
why="An epoch has 12 steps here, so the run stopped after step 3 of epoch 3, and continued with step 4, whose image
is the fourth of epoch 3's order. A program may begin with any epoch, at any step."
for rank in 0 1; do
    sed -n 3p expected.$rank >expected
    for name in begun continued; do images $name.$rank.jsonl 3; done >took
    printf 'epoch 3   %s\n' "$(in_a_row took)" >found
    beside "rank $rank keeps epoch 3's order if the run is interrupted in it" same "" expected expected found found
done
