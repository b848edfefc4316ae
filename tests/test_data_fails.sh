#!/usr/bin/env bash
# ctest: PROCESSORS 2
# The program with data that is missing or broken: exit status 1 before any training, one line that
# names the file, one line of advice, no checkpoint, and never a hang.
set -u
train=$BUILD/01_single_gpu/train
checks=0 failures=0

fail()
{
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# refused STATUS WORDS OPTIONS...: the program ends with STATUS and says WORDS (a basic pattern).
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

# CIFAR-10 as far as sizes and labels go: zeros, and mostly holes.
cifar=$TMP/cifar
make_cifar()
{
    rm -rf "$cifar"
    mkdir "$cifar"
    for name in data_batch_{1,2,3,4,5} test_batch; do
        truncate -s 30730000 "$cifar/$name.bin"
    done
}

# IDX: a header of 32-bit numbers, and so many zeros.
idx()
{
    local file=$1 zeros=$2
    shift 2
    for number in "$@"; do
        printf '%b' "$(printf '\\x%02x' $((number >> 24 & 255)) $((number >> 16 & 255)) \
            $((number >> 8 & 255)) $((number & 255)))"
    done >"$file"
    head -c "$zeros" /dev/zero >>"$file"
}
digits=$TMP/digits
make_digits()
{
    rm -rf "$digits"
    mkdir "$digits"
    idx "$digits/train-images-idx3-ubyte" $((64 * 784)) 0x803 64 28 28
    idx "$digits/train-labels-idx1-ubyte" 64 0x801 64
    idx "$digits/t10k-images-idx3-ubyte" $((32 * 784)) 0x803 32 28 28
    idx "$digits/t10k-labels-idx1-ubyte" 32 0x801 32
}

# --- first of all, good data is accepted

make_digits
timeout 60 "$train" --arch lenet --epochs 1 --threads 1 --data "$digits" >"$TMP/out" 2>"$TMP/err" ||
    fail "good data was refused: $(cat "$TMP/err")"

# --- missing

refused 1 'no such data set or directory' --data cifer10
refused 1 'no such data set or directory' --data "$TMP/nowhere"
mkdir "$TMP/empty"
refused 1 "$TMP/empty: no data set in this directory" --data "$TMP/empty"
refused 1 '64' --data "$digits" --train-samples 65
refused 2 'train-samples' --data "$digits" --train-samples -1
refused 1 'out of memory' --data synthetic --image-size 1024 --train-samples 100000000

# --- damaged (test_data.c knows more ways)

make_cifar
truncate -s 15365000 "$cifar/data_batch_5.bin"
refused 1 "$cifar/data_batch_5.bin: read at byte 15365000: the file is too short" --data "$cifar"
make_cifar
printf '\xff' | dd of="$cifar/test_batch.bin" bs=1 seek=$((4321 * 3073)) conv=notrunc status=none
refused 1 "$cifar/test_batch.bin: record 4321 has label 255" --data "$cifar"
make_cifar
rm "$cifar/data_batch_3.bin"
refused 1 "$cifar/data_batch_3.bin: .*No such file" --data "$cifar"
mkfifo "$cifar/data_batch_3.bin"
refused 1 "$cifar/data_batch_3.bin: not a regular file" --data "$cifar"

make_digits
gzip -n "$digits/train-images-idx3-ubyte"
truncate -s 60 "$digits/train-images-idx3-ubyte.gz"
refused 1 "$digits/train-images-idx3-ubyte.gz: read at byte .* of the uncompressed data: " --data "$digits"
make_digits
idx "$digits/t10k-images-idx3-ubyte" $((32 * 784)) 0x803 1000000000 28 28
gzip -n "$digits/t10k-images-idx3-ubyte"
refused 1 "$digits/t10k-images-idx3-ubyte.gz: 1000000000 items at byte 4" --data "$digits"

echo "$checks checked, $failures failed"
[ $failures = 0 ]
