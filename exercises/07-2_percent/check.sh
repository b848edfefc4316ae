# shellcheck shell=bash disable=SC2034,SC2154
# Two ranks must print the right losses in training. Then 1 to 4 ranks evaluate 34 images, in batches of 16, 16 and 2,
# and must find the loss and the accuracies of one rank. At last, eval_sum must add up made-up counts (check.c) of two
# ranks with unequal shares, one of which has a loss that is not finite.
# fails with: the loss does not depend on the number of ranks
build --with check.c --wrap eval_sum
same=(-b 16 --seed 5)
learner two 2 "${same[@]}"
finished right 2 "${same[@]}" --save net.st
for key in loss acc running_loss running_acc; do
    values two.0.jsonl step $key >found
    values right.0.jsonl step $key >expected
    why="Both ranks train on the same number of images, and the printed numbers are means over all of them."
    beside "in training, $key is that of all images" 1e-6 step expected expected found found
done

finished one 1 "${same[@]}" --test-samples 34 --evaluate --resume net.st
for n in 1 2 3 4; do
    learner $n $n "${same[@]}" --test-samples 34 --evaluate --resume net.st
    for key in test_loss top1 top5; do
        value one.0.jsonl eval $key >>expected.$key
        value $n.0.jsonl eval $key >>found.$key
    done
done
printf '%s\n' "34" "18 + 16" "16 + 16 + 2" "16 + 16 + 2 + 0" >shares
why="Each image is used once. What weight does it have in the mean? The third column shows the ranks' shares."
beside "the loss does not depend on the number of ranks" 1e-9 ranks "loss of 1 rank" expected.test_loss "your loss" \
    found.test_loss shares shares
beside "nor does the accuracy" 1e-9 ranks "top1 of 1 rank" expected.top1 "your top1" found.top1 shares shares
why="Top 5 counts an image if its label is among the five largest logits. It is a count, like top 1."
beside "nor does the top-5 accuracy" 1e-9 ranks "top5 of 1 rank" expected.top5 "your top5" found.top5 shares shares

SPY=1 learner sums 2 "${same[@]}" --train-samples 16
printf '%s\n' "sum of losses" images "right in top 1" "right in top 5" "the last batch's sum of losses" "its images" \
    "right in top 1 of these" "losses that are not finite" >names
printf '%s\n' "6 + 2.5" "3 + 1" "2 + 0" "3 + 1" "4 + 2.5" "2 + 1" "1 + 0" "0 + 1" >shares
printf '%s\n' 8.5 4 2 4 6.5 3 1 1 >expected
for rank in 0 1; do
    sed -n "s/^spy: rank $rank: //p" sums.out | head -1 | tr ' ' '\n' >found
    why="In training, equal shares hide a mean of means. But eval_sum promises the sum of all ranks' counts, for any
shares. And a loss that is not finite on any rank must end the run on all of them, so all must know of it."
    beside "rank $rank gets the sums of all ranks' counts" 1e-9 row expected expected found found ranks shares \
        what names
done
