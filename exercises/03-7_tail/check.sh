# shellcheck shell=bash disable=SC2034,SC2154
# Two ranks must finish with 96 images, and with 97. Two and three must use all of 25 images, in the same number of
# steps, none of them three times in an epoch. The images used twice must not be the same in all epochs. Four ranks must
# share one image.
# fails with: two ranks finish with 97 images
# fails with: rank 0 has 7 steps in the epoch and finished 6
build
why="With 96 images nothing is left over."
learner even 2 --train-samples 96
passed "two ranks finish with 96 images"
why="96 images for two ranks are 48 for each: six batches of 8, and not one image more."
equal "each takes 6 steps, as before" "6 and 6" \
    "$(values even.0.jsonl step step | wc -l) and $(values even.1.jsonl step step | wc -l)"

try_learner odd 2 --train-samples 97 --timeout 3
if all_wait odd && [ "$(value odd.0.jsonl step steps)" != "$(value odd.1.jsonl step steps)" ]; then
    why="A step needs all ranks. A rank that takes one more waits for gradients that no other rank sends."
    wrong "two ranks finish with 97 images" < <(
        for rank in 0 1; do
            echo "rank $rank has $(value odd.$rank.jsonl step steps) steps in the epoch" \
                "and finished $(values odd.$rank.jsonl step step | wc -l)"
        done
        last_lines odd 6)
fi
why="A rank whose share is rounded up asks for a place beyond the end of the order, where there is no image."
learner odd 2 --train-samples 97
passed "two ranks finish with 97 images"

know_images 25
for n in 2 3; do
    why="Each place of a rank's share needs an image, also those beyond the end of the order."
    learner $n $n "${seeing[@]}" --epochs 3
    rm -f expected found again
    for epoch in 1 2 3; do
        rm -f took steps
        for ((rank = 0; rank < n; rank++)); do
            images $n.$rank.jsonl $epoch >one
            wc -l <one >>steps
            cat one >>took
        done
        echo "25 images of 25, $(((25 + n - 1) / n)) on each rank, 0 unknown" >>expected
        echo "$(sort -u took | grep -c '[0-9]') images of 25, $(sort -nu steps | paste -sd/) on each rank," \
            "$(grep -c '?' took) unknown" >>found
        sort -n took | uniq -c | awk '$1 > 2 { print "image " $2 ": " $1 " times in an epoch" }' >>again
        sort -n took | uniq -d | paste -sd' ' >>again.$n
    done
    why="Every image must be used. If they do not divide evenly, a few are used twice, on two ranks."
    beside "$n ranks use all 25 images and take the same number of steps" same epoch \
        "expected                                " expected "found" found
    why="If the padding is always the last image, or a fixed one, the model trains on it more than on the others."
    equal "none of them is used three times in an epoch" "" "$(sort -u again | head -3)"
    why="Each epoch has a new order. If the images to use twice come from this order, they differ each time."
    [ "$(sort -u again.$n | wc -l)" -gt 1 ] ||
        wrong "the images used twice differ from epoch to epoch" <<<"in each of 3 epochs: $(head -1 again.$n)"
    passed "the images used twice differ from epoch to epoch"
done
know_images 24
learner before 2 "${seeing[@]}"
finished before.right 2 "${seeing[@]}"
for rank in 0 1; do
    images before.right.$rank.jsonl 1 >right
    images before.$rank.jsonl 1 >took
    in_a_row right >expected
    in_a_row took >found
    why="Only places beyond the end of the order needed a change. Rank r takes every second image of it, from place
r on, so that a step has the images that one process would have in its batch."
    beside "rank $rank takes its images as before" same "" expected expected found found
done

know_images 1
# Fills new memory: an image number read from beyond the end of the order must not be 0, which would be right by luck.
MALLOC_PERTURB_=91 try_learner one 4 "${seeing[@]}"
for rank in 0 1 2 3; do echo "rank $rank: image $(images one.$rank.jsonl 1 | paste -sd' ')"; done >found
printf 'rank %s: image 0\n' 0 1 2 3 >expected
why="The order has one image, so ranks 1, 2 and 3 have places 1, 2 and 3. A place
may be beyond the end by several times the number of images."
[ "$status" = 0 ] || wrong "4 ranks share one image" < <(last_lines one 3)
beside "4 ranks share one image" same "" expected expected found found
