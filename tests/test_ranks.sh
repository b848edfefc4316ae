#!/usr/bin/env bash
# ctest: PROCESSORS all LABELS quick
# Ranks that share a global batch must have nearly the losses and weights of one process with the whole batch, whatever
# their number and however the gradients travel. A second run must give the same bits.
. "$SRC/tests/test.sh"
. "$SRC/tests/ranks.sh"
train=$BUILD/03_ddp_fork/train
check "one process" one

for n in 2 3; do
    check "$n ranks, buckets" same_as_one "$train" $n
done
check "2 ranks, one all-reduce after backward" same_as_one "${train}_naive" 2
one_message=$(hash_of ranks.out)
check "2 ranks, small buckets" same_as_one "$train" 2 --bucket-mb 0.001
check "with the same bits" is "$(hash_of ranks.out)" "$one_message"

expect 0 "weight hash" "$train" -n 3 "${lenet[@]}" -b 7 --train-samples 100 --metrics odd.jsonl
check "100 samples, 3 ranks of 7: 5 steps an epoch" test "$(losses odd.jsonl | wc -l)" = 10

convnet=(--arch convnet --data synthetic --train-samples 96 --test-samples 32 --epochs 1 --threads 1 -b 16 -n 3)
for more in "--sync-bn" "--bucket-mb 0.02"; do
    # shellcheck disable=SC2086
    expect 0 "weight hash: " "$train" "${convnet[@]}" $more
    first=$(hash_of)
    # shellcheck disable=SC2086
    expect 0 "weight hash: $first" "$train" "${convnet[@]}" $more
done

expect 0 "" "$train" -n 2 "${lenet[@]}" -b 24 --save part.st --max-steps 13
expect 0 "resumed: part.st, epoch 2, step 3" "$train" -n 4 "${lenet[@]}" -b 12 --resume part.st --save part.st
check "4 ranks continue the run of 2" same_weights part.st

# A run that resumes within an epoch with a different global batch begins that epoch again: with --lr 0, epochs with the
# same samples have almost the same loss.
still=("$BUILD/07_dist_eval/launch" --nproc-per-node)
same=("$BUILD/07_dist_eval/train" "${lenet[@]}" --lr 0 --no-augment --amp off --metrics still.jsonl)
expect 0 "" "${still[@]}" 2 -- "${same[@]}" -b 24 --save still.st --max-steps 13
expect 0 "batch was 48 and is now 24, so epoch 2 begins again" "${still[@]}" 3 -- "${same[@]}" -b 8 --resume still.st
sed -n 's/.*"event":"epoch".*"train_loss":\([^,]*\),.*/\1/p' still.jsonl >still.losses
check "both epochs have the same samples" awk '{ loss[NR] = $1 } END { d = loss[1] - loss[2]
    exit !(NR == 2 && d * d < 1e-10) }' still.losses

expect 0 "| rank 0" "$train" -n 4 "${lenet[@]}" -b 12
check "one line a step" test "$(grep -c '== step:' "$TMP/output")" = 20
check "the global batch" grep -q "global batch 48 " "$TMP/output"
# Ranks must not share a socket that the parent keeps open.
"$train" -n 2 "${lenet[@]}" -b 24 --epochs 100000 >endless.out 2>&1 &
check "it trains" until_so 60 grep "== step:" endless.out
check "the parent has no socket" test "$(find /proc/$!/fd -lname 'socket:*' | wc -l)" = 0 -a -e /proc/$!/fd/0
kill -TERM $!
wait $!

test_done
