# shellcheck shell=bash disable=SC2034,SC2154
# Two ranks must print the right losses in training. Then 1 to 4 ranks evaluate 34 images, in batches of 16, 16 and 2,
# and must find the loss and the accuracies of one rank. If a loss on rank 1 is infinite (check.c), no rank may print a
# result.
# fails with: the loss does not depend on the number of ranks
build --with check.c --wrap result_count
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

BAD_LOSS=1 try_learner bad 2 "${same[@]}" --test-samples 34 --evaluate --resume net.st
why="Here a loss of rank 1 is infinite. It is left out of loss_sum, and counted in not_finite. Rank 0 learns of it
only if the Stats that eval_end returns have the sum of all ranks' not_finite."
equal "if a loss on rank 1 is infinite, rank 0 prints no result" "no test_loss" \
    "$(value bad.0.jsonl eval test_loss | grep . || echo "no test_loss")"
[ "$status" != 0 ] || wrong "and the run fails" < <(last_lines bad)
