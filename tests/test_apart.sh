#!/usr/bin/env bash
# Ranks whose weights differ: the run ends with a status after which no launcher restarts it, and no file of the run
# holds such weights.
#
# ctest: TIMEOUT 300 PROCESSORS 2
# shellcheck disable=SC2016  # words in single quotes are C
. "$SRC/tests/test.sh"
launch=$BUILD/04_ddp_launcher/launch
small=(-a lenet --data synthetic --train-samples 640 --test-samples 32 -b 16 --threads 1 --seed 3 --epochs 2
    --timeout 20)
checks="gradients_check(job->ops, model->grad_count"
# In rank 1, one gradient is wrong in each step from the 30th on. That is in epoch 2: an epoch has 20 steps.
wrong="static int steps; if (job->world.rank == 1 && ++steps >= 30) model->grads[7] = 1; $checks"
says() { check "it prints: $1" grep -qF -- "$1" "$TMP/output"; }
apart="the ranks have diverged: the weights of rank 1"
final="status 200, no restart: it would hide why the weights differ"

check "apart: builds" build_with apart 04_ddp_launcher train.c "$checks" "$wrong"
expect 0 "weight hash" "$launch" -n 2 -- "$BUILD/04_ddp_launcher/train" "${small[@]}" --epochs 1 --save one.st
expect 200 "$apart" "$launch" -n 2 --max-restarts 3 -- ./apart "${small[@]}" --save run.st --resume auto
says "$final"
check "no restart" not grep -q "restart 1" "$TMP/output"
check "the first rank to leave is not blamed" not grep -q " rank [0-9] of 2 " "$TMP/output"
check "the file is that of epoch 1" cmp run.st one.st
check "so is .best" cmp run.st.best one.st.best
expect 200 "$apart" "$launch" -n 2 --max-restarts 3 -- ./apart "${small[@]}" \
    --save every.st --save-every 4
expect 0 "weight hash" "$launch" -n 2 -- "$BUILD/04_ddp_launcher/train" "${small[@]}" --max-steps 28 --save until.st
check "the file is that of step 28" cmp every.st until.st
expect 200 "$apart" "$launch" -n 2 -- ./apart "${small[@]}"      # at the end, without --save

by_hand 1 2 ./apart "${small[@]}" >other 2>&1 &
expect 200 "$apart" by_hand 0 2 ./apart "${small[@]}"
wait $!
check "rank 1's status is 200, too" is $? 200
check "rank 1 prints nothing" not grep -q "hint: " other

if type -P mpirun >/dev/null; then
    expect 200 "$apart" mpirun -np 2 ./apart "${small[@]}"
fi

# The mistake of step 03 that has no other symptom: the optimizer does not wait for the average.
check "hasty: builds" build_with hasty 04_ddp_launcher \
    ddp.c "stream_wait(device_stream(ddp->device), ddp->averaged);" ""
expect 200 "the ranks have diverged" "$launch" -n 2 --max-restarts 3 -- ./hasty "${small[@]}" --bucket-mb 0.05 \
    --save hasty.st --resume auto
check "nothing was saved" not made hasty.st

# A gradient that backward does not announce would not be averaged.
check "left out: builds" build_with left_out 03_ddp_fork \
    ddp.c "CHECK(offset == ddp->end &&" "if (offset + count == ddp->count) return; CHECK(offset == ddp->end &&"
expect 1 "; the others would not be averaged" ./left_out -n 2 "${small[@]}" --save left.st
check "nothing was saved" not made left.st
test_done
