#!/usr/bin/env bash
# ctest: TIMEOUT 240 PROCESSORS all
# Ranks that share a global batch compute what one process computes with it: the same losses and the same
# weights, however many they are, and however the gradients travel. And twice the same bits.
. "$SRC/tests/test.sh"
. "$SRC/tests/ranks.sh"
cd "$TMP" || exit 1
train=$BUILD/03_ddp_fork/train
check "one process" one

for n in 2 3 4; do
    check "$n ranks, buckets" same_as_one "$train" $n
done
check "2 ranks, one all-reduce" same_as_one "$train" 2 --bucket-mb 0
check "2 ranks, small buckets that wait" same_as_one "$train" 2 --bucket-mb 0.001 --overlap 0
check "3 ranks, collectives compared" same_as_one "$train" 3 --check-collectives

# A share that does not divide is padded; a tail that is left out is left out on all ranks.
expect 0 "weight hash" "$train" -n 3 "${lenet[@]}" -b 7 --train-samples 100 --metrics odd.jsonl
check "100 samples, 3 ranks of 7: 5 steps an epoch" test "$(losses odd.jsonl | wc -l)" = 10
expect 0 "weight hash" "$train" -n 3 "${lenet[@]}" -b 11 --train-samples 100 --drop-last --metrics odd.jsonl
check "without the tail: 3 steps an epoch" test "$(losses odd.jsonl | wc -l)" = 6
expect 1 "2 samples are not enough for 3 ranks" "$train" -n 3 "${lenet[@]}" -b 1 --train-samples 2 --drop-last

# The same bits twice, though messages and threads take their own time.
hash_of() { sed -n 's/^weight hash: //p' "$TMP/output"; }
convnet=(--arch convnet --data synthetic --train-samples 96 --test-samples 32 --epochs 1 --threads 1 -b 16 -n 3)
for more in "--sync-bn" "--bucket-mb 0.02 --overlap 1"; do
    # shellcheck disable=SC2086
    expect 0 "weight hash: " "$train" "${convnet[@]}" $more
    first=$(hash_of)
    # shellcheck disable=SC2086
    expect 0 "weight hash: $first" "$train" "${convnet[@]}" $more
done
expect 0 "weight hash: $first" "$train" "${convnet[@]}" --bucket-mb 0.02 --overlap 0

# Saved by rank 0, resumed by any number of ranks with the same global batch, in mid-epoch too.
expect 0 "" "$train" -n 2 "${lenet[@]}" -b 24 --save whole.st
whole=$(hash_of)
expect 0 "" "$train" -n 2 "${lenet[@]}" -b 24 --save part.st --max-steps 13
expect 0 "weight hash: $whole" "$train" -n 2 "${lenet[@]}" -b 24 --resume part.st
expect 0 "resumed: part.st, epoch 2, step 3" "$train" -n 4 "${lenet[@]}" -b 12 --resume part.st --save part.st
check "4 ranks go on where 2 were" same_weights part.st

# Every rank's numbers go on in its own file.
expect 0 "" "$train" -n 2 "${lenet[@]}" -b 24 --save own.st --max-steps 13 --metrics own.%r.jsonl
expect 0 "resumed" "$train" -n 2 "${lenet[@]}" -b 24 --save own.st --resume auto --metrics own.%r.jsonl
check "20 steps of rank 0" test "$(losses own.0.jsonl | wc -l)" = 20
check "20 steps of rank 1" test "$(losses own.1.jsonl | wc -l)" = 20
check "a test is said by who has done it" not grep -q top1 own.1.jsonl

# What is printed says whose it is; only one rank prints.
expect 0 "| rank 0" "$train" -n 4 "${lenet[@]}" -b 12
check "one line a step" test "$(grep -c '== step:' "$TMP/output")" = 20
check "the global batch" grep -q "global batch 48 " "$TMP/output"
check "one warning where there are more ranks than cores" test "$(grep -c '4 devices of 1 thread share' "$TMP/output")" = \
    "$([ "$(nproc)" -lt 4 ] && echo 1 || echo 0)"
expect 0 "top1" "$train" -n 2 "${lenet[@]}" -b 24 -e --resume whole.st
# The parent, which forks, has started nothing that a child could not inherit.
"$train" -n 2 "${lenet[@]}" -b 24 --epochs 100000 >endless.out 2>&1 &
parent=$!
until grep -q "== step:" endless.out || ! kill -0 $parent; do sleep 0.05; done
threads_of() { sed -n 's/^Threads:[[:space:]]*//p' "/proc/$1/status"; }
check "the parent has one thread" test "$(threads_of $parent)" = 1
check "a rank has more" test "$(threads_of "$(pgrep -P $parent | head -1)")" -gt 1
check "the parent has no socket" test "$(find /proc/$parent/fd -lname 'socket:*' | wc -l)" = 0
kill -TERM $parent
wait $parent
check "TERM" test $? = 143

test_done
