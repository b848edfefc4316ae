# shellcheck shell=bash disable=SC2034,SC2154
# Checks which of 24 images two ranks use in a run, then tests the sampler alone, also with numbers that do not divide
# evenly.
# fails with: rank 1 used 12 images that rank 0 also used
build
know_images 24
learner two 2 "${seeing[@]}" --epochs 2
for rank in 0 1; do
    images two.$rank.jsonl 1 >took.$rank
done
both=$(in_both took.0 took.1)
if [ "$both" != 0 ]; then
    why="Both ranks then compute the same gradients, and their average is what one rank would have had alone."
    wrong "rank 1 used $both images that rank 0 also used" < <(
        echo "24 images, epoch 1"
        echo "rank 0   $(in_a_row took.0)"
        echo "rank 1   $(in_a_row took.1)")
fi
passed "no image is used by both ranks"
equal "all 24 images are used" "24 images" "$(sort -u took.0 took.1 | wc -l) images"

# compare WHAT COUNT SIZE SEED EPOCH SHUFFLE DROP_LAST: the learner's sampler beside the right one.
harness check.c sampler.c >/dev/null
compare()
{
    local what=$1
    shift
    run right "$harness" right "$@"
    run yours "$harness" yours "$@"
    beside "$what" same "" "expected                      " right.out "your sampler                  " yours.out
}
why="Places in the common order: rank 0 takes 0, 2, 4 ..., rank 1 takes 1, 3, 5 ..."
compare "the ranks' images of a step are those of one process" 12 2 3 0 1 0
why="The order depends on the sum of seed and epoch: a new order in each epoch, the same on all ranks."
compare "a different epoch has a different order" 12 2 3 5 1 0
why="A rank with more samples than the others would hang in its last step. So the order is padded with its own beginning
until it divides evenly among the ranks."
compare "12 samples for 5 ranks: three are used twice" 12 5 3 1 1 0
compare "3 samples for 8 ranks: the padding is longer than the order" 3 8 3 1 1 0
why="--drop-last drops the samples that do not divide evenly."
compare "12 samples for 5 ranks, with drop_last: two are dropped" 12 5 3 1 1 1
why="--no-shuffle: 0 1 2 3 ..., which torch_order also gives if its first argument is false."
compare "without shuffling the order is 0, 1, 2 ..." 7 2 3 1 0 0
