#!/usr/bin/env bash
# ctest: TIMEOUT 480 PROCESSORS 2 LABELS deadlines
# Runs that end early: Ctrl-C, Ctrl-C twice, TERM, a loss that is not finite, no memory.
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

"$BUILD/04_ddp_launcher/launch" -n 2 -- "$BUILD/04_ddp_launcher/train" --arch lenet $small --train-samples 80 \
    --test-samples 20000 --epochs 2 --save stopped.st >begun 2>&1 &
pid=$!
until_so 60 grep "== saved" begun
kill -INT $pid
wait $pid
status=$?
check "INT while rank 0 evaluates: status $status" test $status = 130
check "it was evaluating" grep -q "stopping after this step or evaluation" begun
check "the evaluation is finished, and no more steps" \
    test "$(grep -o '== test\|\[2/2\]\|Interrupted' begun | tr '\n' ' ')" = "== test Interrupted "
rm -f ./*

# 03's parent: the rest of its work is in test_crashes. A death must not be hidden by a shell that ignores SIGCHLD, and
# the parent needs no reader of its output.
forked() { exec "$BUILD/03_ddp_fork/train" -n 2 --arch lenet $small "$@"; }
(trap '' CHLD; forked) >begun 2>&1 &
pid=$!
until_so 60 grep "step:.*\[ *3/" begun
kill -KILL "$(pgrep -P $pid | tail -1)"
wait $pid
status=$?
check "SIGCHLD ignored: status $status" test $status = 137
check "SIGCHLD ignored: the dead rank is named" grep -q "rank 1 of 2 (pid [0-9]*) was killed by signal 9" begun
{ (forked --max-steps 30) 2>&1; echo $? >status; } | true
check "03 without a reader" test "$(cat status)" = 0
rm -f ./*

# The second Ctrl-C ends the run at once, before the step ends and is saved. A batch this large takes seconds.
begin 1 --data synthetic --train-samples 4000 -b 2000 --threads 1 -p 1 --save never.st
kill -INT $pid
sleep 0.05
kill -INT $pid
wait $pid
status=$?
check "Ctrl-C twice: status $status" test $status = 130
check "Ctrl-C twice: nothing is saved" test "$(ls)" = begun

train --epochs 1 --lr 900 -p 5 --save nan.st >out 2>err
status=$?
check "not finite: status $status" test $status = 3
check "not finite: one line and a hint" test "$(wc -l <err)" = 2
check "not finite: the message" grep -q "the loss is not finite in epoch 1, at or before step" err
check "not finite: nothing saved" test ! -e nan.st -a ! -e nan.st.best

train --epochs 1 --save piped.st 2>&1 | head -1 >out
check "a closed pipe: saved nevertheless" test -s piped.st
rm -f piped.st piped.st.best

expect 1 "hint: " train --epochs 1 --data cifer10 --save never.st --metrics never.jsonl
expect 1 "out of memory" train --epochs 1 --image-size 1024 --train-samples 100000000 --save never.st
check "nothing is written" not compgen -G "never*"

# Without a checkpoint, -e is an error: random weights get no score.
expect 1 "missing.st: there is no such file" train -e --resume auto --save missing.st

# OpenMP may give fewer threads than requested. oneDNN would then wait forever for the missing threads. So the program
# must request no more than it can get.
OMP_THREAD_LIMIT=1 OMP_DYNAMIC=true timeout -k 1 60 "$BUILD/01_single_gpu/train" --arch convnet $small -j 0 \
    --threads 2 \
    --max-steps 3 >out 2>&1
check "OMP_THREAD_LIMIT=1: status $?" grep -q "1 thread$" out
check "OMP_THREAD_LIMIT=1: it ends" grep -q "weight hash" out

# With less and less memory, a run must say why it fails. Only LLVM's OpenMP may crash. (With even less, oneDNN would.)
crash=1
! ldd "$BUILD/01_single_gpu/train" | grep -q libomp || crash=139
for megabytes in 1000 700 500 350 300; do
    (ulimit -v $((megabytes * 1024)) && "$BUILD/01_single_gpu/train" --data synthetic --max-steps 1 -j 1 --threads 1 \
        --save $megabytes.st) >out 2>err
    status=$?
    check "$megabytes MB: status $status" \
        test $status = 1 -o $status = $crash -o \( $status = 0 -a $megabytes -ge 700 \)
    [ $status != 1 ] || check "$megabytes MB: $(head -1 err)" grep -qE "out of memory|pthread_create" err
    [ $status = 0 ] || check "$megabytes MB: a line and perhaps a hint" test "$(wc -l <err)" -le 2
done
test_done
