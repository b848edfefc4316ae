# shellcheck shell=bash disable=SC2034,SC2154
# 1 to 4 ranks evaluate one checkpoint with 40 images in 3 batches. Each image must count once, and the result must
# equal that of one rank. A spy (check.c) reports how many images each rank evaluates: not too many, and 40 together.
# fails with: each test image counts once
build --with check.c --wrap loader_start
same=(-b 16 --test-samples 40 --seed 5)
finished trained 1 "${same[@]}" --save net.st
finished right 1 "${same[@]}" --evaluate --resume net.st --predictions right.csv
for n in 1 2 3 4; do
    learner $n $n "${same[@]}" --evaluate --resume net.st
    echo 40 >>images
    value $n.0.jsonl eval n >>found.images
    for key in test_loss top1; do
        value right.0.jsonl eval $key >>expected.$key
        value $n.0.jsonl eval $key >>found.$key
    done
done
why="40 images in batches of 16 are three batches: 16, 16 and 8. Which rank takes which?"
beside "each test image counts once" same ranks images images found found.images loss found.test_loss
why="The number of images is right, but is each one used once?"
beside "the loss does not depend on the number of ranks" 1e-9 ranks expected expected.test_loss found found.test_loss
beside "nor does the accuracy" 1e-9 ranks expected expected.top1 found found.top1

for n in 2 3 4; do
    for ((rank = 0; rank < n; rank++)); do sed -n "s/^spy: rank $rank evaluates //p" $n.out; done >shares
    most=$((16 * ((3 + n - 1) / n)))
    why="The result is right, but a rank with more than its share of the three batches keeps the others waiting."
    [ "$(awk -v most=$most '$1 > most' shares | wc -l)" = 0 ] ||
        wrong "no rank of $n evaluates more than $most images" < <(
            awk '{ print "rank " NR - 1 ": " $1 " images" }' shares)
    passed "no rank of $n evaluates more than $most images"
    why="A rank evaluates a batch that another rank has too, and does not count it: right, but wasted work."
    equal "$n ranks together evaluate 40 images" 40 "$(awk '{ sum += $1 } END { print sum }' shares)"
done

why="The sums are right. Rank 0 also collects the prediction for each image: see gather."
for n in 2 4; do
    learner each $n "${same[@]}" --evaluate --resume net.st --predictions $n.csv
    holds "$n ranks have the predictions of one" diff right.csv $n.csv
done
