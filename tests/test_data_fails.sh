#!/usr/bin/env bash
# ctest: PROCESSORS 2
# If data is missing or broken, the program must end with status 1 before any training, with one line that names the
# file and a hint, without a checkpoint. It must never hang. test_data.c tests more kinds of damage.
set -u
train=$BUILD/01_single_gpu/train
checks=0 failures=0

fail()
{
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# refused STATUS WORDS OPTIONS...: the program ends with STATUS and prints WORDS (a basic pattern).
refused()
{
    local status=$1 words=$2 got
    shift 2
    checks=$((checks + 1))
    timeout -k 5 60 "$train" --arch lenet --epochs 1 --max-steps 1 --threads 1 \
        --save "$TMP/run.safetensors" --metrics "$TMP/run.jsonl" "$@" >"$TMP/out" 2>"$TMP/err"
    got=$?
    [ $got = "$status" ] || fail "$*: exit status $got, wanted $status: $(cat "$TMP/err")"
    grep -q -e "$words" "$TMP/err" || fail "$*: no \"$words\" in: $(cat "$TMP/err")"
    [ "$(grep -vc '^hint: ' "$TMP/err")" = 1 ] || fail "$*: more than one line: $(cat "$TMP/err")"
    [ "$status" = 2 ] || grep -q '^hint: .' "$TMP/err" || fail "$*: no hint: $(cat "$TMP/err")"
    ! grep -q 'step:\|loss' "$TMP/out" || fail "$*: it trained: $(cat "$TMP/out")"
    [ ! -e "$TMP/run.safetensors" ] || fail "$*: a checkpoint was written"
}

refused 1 'no such data set or directory' --data cifer10
mkdir "$TMP/empty"
refused 1 "$TMP/empty: no data set in this directory" --data "$TMP/empty"
refused 2 'train-samples' --data synthetic --train-samples -1
refused 1 'out of memory' --data synthetic --image-size 1024 --train-samples 100000000

# Files with CIFAR-10's sizes, all zeros, mostly holes.
cifar=$TMP/cifar
mkdir "$cifar"
for name in data_batch_{1,2,3,4,5} test_batch; do
    truncate -s 30730000 "$cifar/$name.bin"
done
refused 1 '50000' --data "$cifar" --train-samples 50001
printf '\xff' | dd of="$cifar/test_batch.bin" bs=1 seek=$((4321 * 3073)) conv=notrunc status=none
refused 1 "$cifar/test_batch.bin: record 4321 has label 255" --data "$cifar"
truncate -s 15365000 "$cifar/data_batch_5.bin"
refused 1 "$cifar/data_batch_5.bin: read at byte 15365000: the file is too short" --data "$cifar"
rm "$cifar/data_batch_3.bin"
refused 1 "$cifar/data_batch_3.bin: .*No such file" --data "$cifar"
mkfifo "$cifar/data_batch_3.bin"
refused 1 "$cifar/data_batch_3.bin: not a regular file" --data "$cifar"

echo "$checks checked, $failures failed"
[ $failures = 0 ]
