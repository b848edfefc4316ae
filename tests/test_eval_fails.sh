#!/usr/bin/env bash
# ctest: TIMEOUT 240
# 07: while all ranks evaluate, one of them dies, stops, hangs, or is only slow; somebody asks for the end; images are
# broken, or taken away; files cannot be written. All end, in time; who it was is named; and nothing is left.
# shellcheck disable=SC2317,SC2016  # check calls functions; what is in '' is for another bash
. "$SRC/tests/test.sh"
. "$SRC/tests/eval.sh"
. "$SRC/tests/disk.sh"
cd "$TMP" || exit 1
ulimit -c 0
network
says() { grep -qE -- "$1" "$TMP/output"; }
nothing_temporary() { not compgen -G "*tmp*"; }
now() { begun=$EPOCHREALTIME; }
took() { awk -v a="$begun" -v b="$EPOCHREALTIME" -v least="$1" -v most="$2" \
    'BEGIN { print b - a, "s"; exit !(least <= b - a && b - a <= most) }'; }

# --- refused before there is any work -------------------------------------------------------------------

small=("${convnet[@]}" --amp off --train-samples 64 --test-samples 40 -b 8 --epochs 1 -p 1)
expect 2 "--predictions: that is the file of --confusion" "$train" "${small[@]}" --confusion one --predictions one
expect 2 "--confusion" "$train" --confusion
expect 2 "did you mean --predictions" "$train" --prediction one
mkdir folder
for option in --confusion --predictions; do
    now
    expect 1 "no/such/file: open its directory: No such file or directory" \
        ranks 3 "$train" "${small[@]}" $option no/such/file
    check "$option: it is rank 0 who says so" says "^\[rank 0/3 .*no/such/file"
    check "$option: the others go, too" took 0 10
    check "$option: before any training" not says "== step:"
    expect 1 "folder is a directory" "$train" "${small[@]}" $option folder
done
check "no file" test ! -e one -a "$(ls folder)" = ""
check "nothing temporary" nothing_temporary

# A part of a file that a killed program has left goes.
touch result.tmp
expect 0 "== test" "$train" "${small[@]}" --confusion result --predictions all
check "nothing temporary" nothing_temporary
check "whole files" test "$(wc -l <result) $(wc -l <all)" = "11 41"

# No test, no result: it is said, and the file that was there stays.
cp all before
expect 0 "== not written: all, since the run ended before its first test" \
    "$train" "${small[@]}" --max-steps 2 --predictions all
check "the old file" cmp all before

# --- killed at every call that writes them ----------------------------------------------------------------

# One evaluation writes both files where others are: each is the old or the new one, whole.
mkdir old new
for images in 40 48; do
    [ $images = 40 ] && folder=old || folder=new
    expect 0 "== test" "$train" "${small[@]}" -e --init net.st --test-samples $images --confusion "$folder/table" \
        --predictions "$folder/list"
done
check "old and new differ" not cmp old/table new/table
killed()    # killed [NAME=VALUE...]: its exit status is left in $status
{
    rm -rf results
    cp -r old results
    {   # the shell is not to report the killed
        env LD_PRELOAD="$TMP/fault.so" FAULT_PATH=results "$@" "$train" "${small[@]}" -e --init net.st \
            --test-samples 48 --confusion results/table --predictions results/list >output 2>&1
        status=$?
    } 2>/dev/null
}
killed FAULT_LOG=calls
check "the run itself" test $status = 0
check "write, fsync, rename, fsync of the directory" replaces results table list
check "both files are new" diff -r results new
for at in $(seq "$(wc -l <calls)"); do
    for what in kill torn; do
        [ $what = torn ] && ! sed -n "${at}p" calls | grep -q ^write && continue
        killed FAULT_AT="$at" FAULT_DO=$what
        check "call $at: $what" test $status = 137
        for file in table list; do
            check "call $at: $what: $file" eval "cmp -s results/$file old/$file || cmp -s results/$file new/$file"
        done
    done
done
rm -rf results

# --- the disk is full -------------------------------------------------------------------------------------

# It is tried with an old file there, which has to stay.
evaluate_here=("$train" "${small[@]}" -e --init net.st --test-samples 2000)
on_disk='mount -t tmpfs -o size=16k none folder && cp result folder/all || exit 99
    "$@"
    status=$?
    cmp result folder/all || exit 98
    [ "$(ls -A folder)" = all ] || exit 97
    exit $status'
if unshare -rm mount -t tmpfs none folder 2>/dev/null; then
    expect 1 "folder/all: write at byte 12288: No space left on device" \
        unshare -rm bash -c "$on_disk" - "${evaluate_here[@]}" --predictions folder/all
    check "the hint" says "hint: make room; the file that was there before is whole"
else
    echo "not tried: a disk that is full (this user may not mount)"
fi
old=$(cat all)
(ulimit -f 4; trap '' XFSZ; "${evaluate_here[@]}" --predictions all >output 2>&1)
check "a file too large: status $?" test $? = 1
check "a file too large" says "all: write at byte 4096: File too large"
check "the old file" test "$(cat all)" = "$old"
check "nothing temporary" nothing_temporary

# --- what is evaluated is broken -----------------------------------------------------------------------------

digits()
{
    local set
    mkdir -p digits
    for set in train t10k; do
        { printf '\0\0\10\3\0\0\0\144\0\0\0\34\0\0\0\34'; head -c 78400 /dev/zero | tr '\0' '\7'; } \
            >digits/$set-images-idx3-ubyte
        { printf '\0\0\10\1\0\0\0\144'; head -c 100 /dev/zero | tr '\0' '\3'; } >digits/$set-labels-idx1-ubyte
    done
}
digits
lenet=(--arch lenet --data digits -b 8 --threads 1 -j 1 --epochs 1 -p 1)
expect 0 "== test" ranks 2 "$train" "${lenet[@]}" --save lenet.st --confusion digits.confusion
printf '\13' | dd of=digits/t10k-labels-idx1-ubyte bs=1 seek=50 conv=notrunc status=none
expect 1 "digits/t10k-labels-idx1-ubyte: label 11 of image 42" ranks 2 "$train" "${lenet[@]}" -e --init lenet.st
expect 1 "digits/t10k-labels-idx1-ubyte: label 11 of image 42" ranks 2 "$train" "${lenet[@]}"
check "before any training" not says "== step:"
digits
truncate -s 50000 digits/t10k-images-idx3-ubyte
expect 1 "digits/t10k-images-idx3-ubyte: read at byte 50000: the file is too short" ranks 2 "$train" "${lenet[@]}" -e --init lenet.st

# A loss that is not finite has a status of its own, and no result. (Weights that are not are refused as they are read.)
cp net.st nan.st
for _ in {1..64}; do printf '\377\377\177\177'; done |
    dd of=nan.st bs=1 seek="$(offset_of fc.weight nan.st)" conv=notrunc status=none
for n in 1 3; do
    expect 3 "the loss is not finite" ranks $n "$train" "${small[@]}" -e --init nan.st --predictions nan.predictions \
        --confusion nan.confusion
    check "$n: no result" not says "== test"
    check "$n: no files" not compgen -G "nan.[pc]*"
done

# --- something happens to a rank in the middle of it ----------------------------------------------------------

# In a copy of the step: STRIKE=SIGNAL:RANK:BATCH, or 0:RANK:BATCH to be slow from there on, -1:... to hang; batch -1
# is the barrier. The launcher gets the signal with PARENT=1.
strike='
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static void strike(int here, int index)
{
    int signal, rank, batch;
    const char *plan = getenv("STRIKE");
    if (!plan || sscanf(plan, "%d:%d:%d", &signal, &rank, &batch) != 3 || here != rank)
        return;
    if (signal == 0 && index >= batch)
        nanosleep(&(struct timespec){ .tv_nsec = 700000000 }, NULL);
    if (signal == 0 || index != batch)
        return;
    FILE *out = fopen("struck", "w");
    fprintf(out, "%d\n", (int)getpid());
    fclose(out);
    while (signal < 0)
        ;
    kill(getenv("PARENT") ? getppid() : getpid(), signal);
}'
check "a copy of the step" shown build ./strike \
    eval.c "#include <string.h>" "#include <string.h>$strike" \
    eval.c "    judge_rows(eval->model->ops, batch->rows" \
    "    strike(comm_rank(eval->comm), batch->index); judge_rows(eval->model->ops, batch->rows" \
    eval.c "    comm_barrier(eval->comm);" "    strike(comm_rank(eval->comm), -1); comm_barrier(eval->comm);"
# struck N SIGNAL RANK BATCH OPTIONS: evaluates, and so much happens.
struck()
{
    rm -f struck result
    now
    STRIKE=$2:$3:$4 ranks "$1" ./strike "${small[@]}" -e --init net.st --timeout 2 --confusion result "${@:5}"
}
by_hand()
{
    local rank status=0 pids=() n=$1
    rm -f struck result
    now
    for ((rank = 0; rank < n; rank++)); do
        RANK=$rank WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port STRIKE=$2:$3:$4 timeout -k 5 60 ./strike \
            "${small[@]}" -e --init net.st --timeout 2 --confusion result "${@:5}" >"hand.$rank" 2>&1 &
        pids+=($!)
    done
    port=$((port + 20))
    for rank in "${!pids[@]}"; do
        wait "${pids[rank]}" 2>/dev/null
        status=$?
        echo "status of $rank: $status"
    done
    cat hand.*
}
port=$((10000 + $$ % 20000))
pid() { cat struck; }
ended() # ended SECONDS: in time, without a result
{
    check "nobody was struck" test -s struck
    check "in time" took 0 "$1"
    check "there is no result" test ! -e result
    check "nor a part of one" nothing_temporary
}

for batch in 1 -1; do
    expect 1 "" struck 3 9 1 $batch
    check "killed ($batch): who" says "rank 1 of 3 \(.*, pid $(pid)\) was killed by SIGKILL"
    ended 10
    expect 0 "status of 1: 137" by_hand 3 9 1 $batch
    check "killed ($batch): the others end" says "status of 0: 4$"
    check "killed ($batch): all the others" says "status of 2: 4$"
    check "killed ($batch): they say who" says "^\[rank 0/3 .*rank 1"
    ended 15
done
expect 1 "" struck 2 9 0 1
check "rank 0 is killed: who" says "rank 0 of 2 \(.*, pid $(pid)\) was killed by SIGKILL"
ended 10
expect 1 "" struck 2 19 1 1
check "stopped: who" says "rank 1 of 2 \(.*pid $(pid)\) is stopped for 2[.0-9]* s"
ended 15
expect 1 "" struck 2 -1 0 1
check "hangs: who" says "rank 0 of 2 \(.*pid $(pid)\) has given no sign of life for 2"
ended 15

# One that is slow, but gets on, is waited for, however long: here 3.5 s, where 2 s without a sign are too many.
expect 0 "== test: " struck 2 0 1 0 -b 4
check "slow: it took its time" took 3 30
check "slow: as it would have been" shown is "$(md5sum <result)" "$("$train" "${small[@]}" -e --init net.st -b 4 \
    --confusion wanted >out && md5sum <wanted)"

# Asked to end: this evaluation has its result; after it nothing more is begun.
export PARENT=1
expect 143 "== test: " struck 2 15 0 1
check "asked to end: in time" took 0 10
check "asked to end: the file is there" test -s result
expect 130 "== test: " struck 2 2 0 1
rm -f asked.st
expect 143 "Training Interrupted" env STRIKE=15:0:1 timeout -k 5 60 "$step/launch" -n 2 -- ./strike "${small[@]}" \
    --epochs 9 --save asked.st
check "asked to end after an epoch: one test" test "$(grep -c '== test' "$TMP/output")" = 1
expect 0 "== resumed: asked.st, epoch 2" ranks 2 "$train" "${small[@]}" --epochs 2 --resume asked.st
unset PARENT

# Twice: at once, though it hangs.
rm -f struck
STRIKE=-1:0:1 "$step/launch" -n 2 -- ./strike "${small[@]}" -e --init net.st --timeout 20 >twice 2>&1 &
for _ in {1..200}; do [ -s struck ] && break; sleep 0.05; done
kill -TERM $!
sleep 0.3
check "once is not enough" kill -0 $!
now
kill -TERM $!
wait $!
check "twice: status $?" test $? = 143
check "twice: at once" took 0 2

# The images are in memory before the first is looked at: to take the file away harms nobody.
digits
by_itself() { STRIKE=19:0:1 ranks 2 ./strike "${lenet[@]}" -e --init lenet.st --timeout 20 --confusion result; }
rm -f struck
by_itself >away 2>&1 &
for _ in {1..200}; do [ -s struck ] && break; sleep 0.05; done
truncate -s 100 digits/t10k-images-idx3-ubyte
sleep 0.2
kill -CONT "$(pid)"
wait $!
check "taken away: status $?" grep -q "== test: .* 100 images" away
check "taken away: as it would have been" cmp result digits.confusion
check "nothing temporary" nothing_temporary
test_done
