# shellcheck shell=bash disable=SC2034,SC2154
# Which of 24 images two ranks take in a run; then the sampler alone, with numbers that are not so round.
# fails with: rank 1 took 12 images that rank 0 took too
build
know_images 24
learner two 2 "${seeing[@]}" --epochs 2
for rank in 0 1; do
    images two.$rank.jsonl 1 >took.$rank
done
both=$(in_both took.0 took.1)
if [ "$both" != 0 ]; then
    why="Both compute the same gradients then: the average of two equal ones is what one rank would have had alone."
    wrong "rank 1 took $both images that rank 0 took too" < <(
        echo "24 images, epoch 1"
        echo "rank 0   $(in_a_row took.0)"
        echo "rank 1   $(in_a_row took.1)")
fi
passed "no image is taken by both ranks"
equal "all of the 24 images are taken" "24 images" "$(sort -u took.0 took.1 | wc -l) images"

# The learner's, beside what should be: COUNT SIZE SEED EPOCH SHUFFLE DROP_LAST.
harness check.c sampler.c >/dev/null
compare()
{
    local what=$1
    shift
    run right "$harness" right "$@"
    run yours "$harness" yours "$@"
    beside "$what" same "" "what should be                " right.out "what your sampler says        " yours.out
}
why="The place of a rank's i-th image in the common order: rank 0 has 0, 2, 4 ..., rank 1 has 1, 3, 5 ..."
compare "together the ranks' images of a step are those of one process" 12 2 3 0 1 0
why="Seed and epoch are added up: each epoch has an order of its own, the same on all ranks."
compare "another epoch has another order" 12 2 3 5 1 0
why="A rank that has more than the others waits for them in its last step, for ever. So the order begins again behind
its end, until all have the same number."
compare "12 samples for 5 ranks: three are taken twice" 12 5 3 1 1 0
compare "3 samples for 8 ranks: the order begins again more than once" 3 8 3 1 1 0
why="--drop-last: those that cannot be shared equally are left out."
compare "12 samples for 5 ranks, with drop_last: two are left out" 12 5 3 1 1 1
why="--no-shuffle: 0 1 2 3 ..., which torch_order gives as well when it is told not to shuffle."
compare "they are not shuffled where that is not wanted" 7 2 3 1 0 0
