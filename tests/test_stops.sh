#!/usr/bin/env bash
# ctest: PROCESSORS 2 LABELS deadlines
# Runs that end early: Ctrl-C, TERM, a closed pipe. Ranks: test_crashes.sh.
. "$SRC/tests/test.sh"
mkdir "$TMP/here" && cd "$TMP/here" || exit 1
small="--data synthetic --train-samples 4000 --test-samples 64 -b 20 --threads 1 --seed 3 -p 1"
train() { "$BUILD/01_single_gpu/train" --arch lenet $small "$@"; }

# begin STEPS OPTION...: starts a run in the background and waits until it has printed STEPS steps; sets $pid.
begin()
{
    local steps=$1
    shift
    rm -f begun     # else the steps of an earlier run may be found there, before this one has begun
    "$BUILD/01_single_gpu/train" "$@" >begun 2>&1 &
    pid=$!
    until_so 60 grep "step:.*\[ *$steps/" begun
}

train --epochs 1 >begun 2>&1
alone=$(hash_of begun)
for signal in INT TERM; do
    begin 3 --arch lenet $small --epochs 1 --save stopped.st
    kill -$signal $pid
    wait $pid
    status=$?
    check "$signal: status $status" test $status = $((128 + $(kill -l $signal)))
    check "$signal: it is reported" grep -q "Training Interrupted" begun
    check "$signal: one checkpoint, nothing else" test "$(ls | tr '\n' ' ')" = "begun stopped.st "
    train --epochs 1 --resume stopped.st >resumed 2>&1
    check "$signal: the same weights in the end" test -n "$alone" -a "$(hash_of resumed)" = "$alone"
    rm -f ./*
done

train --epochs 1 --save piped.st 2>&1 | head -1 >out
check "a closed pipe: saved nevertheless" test -s piped.st

# After USR1 rank 0 cannot save. Rank 1's status must not say that the run has stopped as asked: job.sbatch would start
# it again.
pids=()
for rank in 0 1; do
    (   [ $rank = 1 ] || ulimit -f 100
        by_hand $rank 2 exec "$BUILD/04_ddp_launcher/train" --arch lenet $small --save late.st >rank$rank 2>&1 ) &
    pids+=($!)
done
until_so 60 grep "step:.*\[ *3/" rank0
kill -USR1 "${pids[@]}"
wait "${pids[0]}"
check "rank 0 cannot save: status $?" grep -q "late.st: cannot write" rank0
wait "${pids[1]}"
status=$?
check "rank 1: status $status" test $status = 4

# OpenMP may give fewer threads than requested. oneDNN would then wait forever for the missing threads. So the program
# must request no more than it can get.
OMP_THREAD_LIMIT=1 OMP_DYNAMIC=true timeout -k 1 60 "$BUILD/01_single_gpu/train" --arch convnet $small -j 0 \
    --threads 2 \
    --max-steps 3 >out 2>&1
check "OMP_THREAD_LIMIT=1: status $?" grep -q "1 thread$" out
check "OMP_THREAD_LIMIT=1: it ends" grep -q "weight hash" out
test_done
