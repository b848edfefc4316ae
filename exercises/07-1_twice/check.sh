# shellcheck shell=bash disable=SC2034,SC2154
# 1 to 4 ranks evaluate one checkpoint with 40 images in 3 batches. Each image must count once, and the result must
# equal that of one rank.
# fails with: each test image counts once
build
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

why="The sums are right. Rank 0 also collects the prediction for each image: see gather."
learner each 2 "${same[@]}" --evaluate --resume net.st --predictions found.csv
holds "nor do the predictions" diff right.csv found.csv
