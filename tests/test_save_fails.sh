#!/usr/bin/env bash
# ctest: TIMEOUT 300
# Whatever goes wrong while a checkpoint is written - an error of a call, a kill before any call - the complete old or
# new checkpoint must exist. tests/shim/fault.c causes the errors.
# shellcheck disable=SC2016,SC2317  # words in single quotes are for the bash inside
. "$SRC/tests/test.sh"
. "$SRC/tests/disk.sh"
train=$BUILD/01_single_gpu/train
options=(--data synthetic --arch lenet --train-samples 64 --test-samples 32 -b 32 -j 0 --threads 1)

# The run in which errors occur resumes after epoch 1, trains epoch 2, and saves within it and after it.
second_epoch()  # second_epoch [NAME=VALUE...]: its exit status is left in $status
{
    {   # hides the shell's reports of killed processes
        env LD_PRELOAD="$TMP/fault.so" FAULT_PATH=saved "$@" \
            "$train" "${options[@]}" --epochs 2 --resume saved/net --save saved/net --save-every 1 >stdout 2>output
        status=$?
    } 2>/dev/null
}

before()        # the state after epoch 1
{
    rm -rf saved
    mkdir saved
    cp old/* saved
}

is_whole()
{
    local state
    for state in old middle trained new; do
        ! cmp -s "$1" "$state/${1#*/}" || return 0
    done
    return 1
}
nothing_temporary() { ! compgen -G 'saved/*tmp*'; }
says() { grep -qF -- "$1" output; }

# The right files: after epoch 1 (old), within epoch 2 (middle), and after epoch 2 (new).
mkdir saved
"$train" "${options[@]}" --epochs 1 --save saved/net >stdout 2>output || { cat stdout output; exit 1; }
mv saved old
before
second_epoch FAULT_LOG=calls
check "the run itself" is "$status" 0
cp -r saved new
before
expect 0 "saved" "$train" "${options[@]}" --max-steps 3 --resume saved/net --save saved/net --save-every 1
mv saved middle
check "there is a checkpoint within epoch 2" not cmp -s old/net middle/net

check "write, fsync, rename" replaces saved net net net

# The right files before the evaluation of epoch 2 (trained): the run is killed after the last rename but one.
before
second_epoch FAULT_AT=$(($(grep -n ^rename calls | tail -2 | head -1 | cut -d: -f1) + 1)) FAULT_DO=kill
mv saved trained

calls=$(wc -l <calls)
check "a save is made of many calls" [ "$calls" -ge 10 ]
for at in $(seq 1 $calls); do
    before
    second_epoch FAULT_AT="$at" FAULT_DO=kill
    check "call $at: killed" is $status 137
    check "call $at: the checkpoint" is_whole saved/net
    [ -e saved/net.best ] && check "call $at: the best checkpoint" is_whole saved/net.best
done
before
second_epoch FAULT_CALL=fsync FAULT_AT=1 FAULT_DO=kill
second_epoch
check "the run after a kill" is $status 0
check "... ends with the checkpoint of an undisturbed run" cmp saved/net new/net

fails()
{
    before
    second_epoch FAULT_CALL="$1" FAULT_AT=1 FAULT_DO=fail
    check "$1: exit status" is $status 1
    check "$1: it says so" grep -q "saved/net: cannot $1.*: Input/output error" output
    check "$1: the old checkpoint" cmp saved/net old/net
    check "$1: nothing temporary" nothing_temporary
}
fails write
fails fsync
fails rename

# A run holds the lock until it ends. The files of a killed run do not keep the next run out.
before
"$train" "${options[@]}" --epochs 100000 --save saved/net >stdout 2>output &
until_so 60 grep "== saved" stdout
expect 1 "another run is writing saved/net" "$train" "${options[@]}" --epochs 1 --save saved/net --resume auto
{ kill -KILL $!; wait $!; } 2>/dev/null
expect 0 "== resumed" "$train" "${options[@]}" --epochs 1 --resume saved/net --save saved/net
mv saved/net kept
expect 0 "saved/net.best: this run will overwrite this checkpoint" "$train" "${options[@]}" --epochs 1 --resume kept \
    --save saved/net
test_done
