# shellcheck shell=bash disable=SC2034,SC2154
# Compares the predictions in answers.txt with runs of steps 01 and 03, and the fourth with a formula.
# fails with: 1. the global batch of 3 ranks with 8 images each
build
# answer NUMBER: the first word of the answer, in lower case: "yes" for "Yes", 18 for "18 MB" and "18.0"
answer()
{
    sed -n "s/^$1[a-z0-9_]*[[:space:]]*=[[:space:]]*\([^[:space:]#]*\).*/\1/p" "$copy/answers.txt" |
        tr '[:upper:]' '[:lower:]' | sed 's/^\([0-9]*\)mb$/\1/; s/^\([0-9]*\)\.0*$/\1/'
}
know_images 97
finished three 3 --train-samples 97
finished seen 3 "${seeing[@]}"

why="-b is the batch of one rank; the ranks' batches make one step together."
equal "1. the global batch of 3 ranks with 8 images each" "$(global_batch three)" \
    "$(answer 1)"
why="97 samples on 3 ranks are 33 for each, rounded up. With batches of 8, the last batch is smaller."
equal "2. steps in an epoch" "$(value three.0.jsonl step steps)" "$(answer 2)"
for rank in 0 1 2; do images seen.$rank.jsonl 1; done | sort | uniq -d | wc -l >twice
why="3 ranks take 33 samples each, and there are 97."
equal "3. samples that are used twice" "$(cat twice)" "$(answer 3)"
why="The data has 4 parts of 3 MB. A rank sends 3 parts while they are added up, and 3 finished ones: 2 (N - 1) / N
times 12 MB, with N = 4."
equal "4. megabytes that a rank sends in a ring of 4" "$((2 * 3 * 12 / 4))" "$(answer 4)"

same=(--train-samples 96 --seed 5)
hash() { value "$1.0.jsonl" end weight_hash; }
finished buckets 2 "${same[@]}" -b 8 --bucket-mb 0.01
set_command naive 2 "$build/cpu/$program/train_naive" "" "${same[@]}" -b 8
run naive "${command[@]}"
one one "${same[@]}" -b 16
why="With two ranks each gradient is a sum of two numbers, in buckets or not, and a + b is b + a."
equal "5. the same hash with buckets and without" "$([ "$(hash buckets)" = "$(hash naive)" ] && echo yes || echo no)" \
    "$(answer 5)"
why="One process adds up 16 images in one order. Two ranks add up 8 each, then the two sums. The rounding differs."
equal "6. the same hash in one process and in two ranks" \
    "$([ "$(hash buckets)" = "$(hash one)" ] && echo yes || echo no)" \
    "$(answer 6)"
