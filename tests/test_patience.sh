#!/usr/bin/env bash
# ctest: LABELS deadlines
# The watchdog's rules (common/world/watch.c), with real waits. If a rank waits for a file, or for ranks that have not
# arrived, one line is printed after --timeout. The run ends after --patience. If a rank waits for a paused pipe, the
# line is printed, but the run does not end.
# shellcheck disable=SC2317,SC2094  # functions are called by expect
. "$SRC/tests/test.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT DDP_TOKEN
train=$BUILD/04_ddp_launcher/train
${CC:-cc} -shared -fPIC -O1 -o slow.so "$SRC/tests/shim/slow.c" || exit 1
"$BUILD/as_folder" --data synthetic --as-folder pictures --train-samples 64 --test-samples 32 >/dev/null
head -c 20000 "$SRC/LICENSE" >text.txt
cat "$SRC"/common/*.h >>text.txt

pictures=(-a convnet --data pictures --image-size 32 -b 4 --threads 1 --epochs 1 -p 100)
two() { timeout -k 5 60 "$BUILD/04_ddp_launcher/launch" -n 2 -- "$train" "$@" --timeout 2; }
# slowly CALL PATH NUMBER MS OPTION...: in rank 1, the NUMBERth CALL (0: each) on a path with PATH takes MS longer.
slowly()
{
    SLOW_RANK=1 SLOW_CALL=$1 SLOW_PATH=$2 SLOW_AT=$3 SLOW_MS=$4 LD_PRELOAD=$TMP/slow.so two "${@:5}"
}
line() { grep -qE "rank 1 of 2 \(.*\) has been $1 for 2(\.[0-9]+)? s: " output; }

for workers in 0 2; do
    expect 0 "weight hash" slowly read train/ 6 4000 "${pictures[@]}" -j $workers
    check "-j $workers: a picture in training" line "reading pictures/train/[^ ]*"
done
expect 0 "weight hash" slowly open train/ 3 4000 "${pictures[@]}"
check "opening a picture" line "opening pictures/train/[^ ]*"
expect 0 "weight hash" slowly read text.txt 1 4000 -a gpt --block 16 --width 16 --heads 2 --layers 1 --max-steps 2 \
    --data text:text.txt -b 2 --threads 1 --epochs 1
check "a text" line "reading text.txt"
expect 1 " has been reading pictures/train/" slowly read train/ 3 20000 "${pictures[@]}" --patience 4
check "a line first" line "reading pictures/train/[^ ]*"
check "the hint" grep -q "hint: .*--patience SECONDS gives more time" output

paused()
{
    : >err
    { two -a lenet --data synthetic --train-samples 4000 --test-samples 8 -b 1 --threads 1 --epochs 1 -p 1 \
        --patience 4 2>err || echo "status $?" >>err; } | { until_so 30 grep "writing to" err; sleep 4; tail -1; }
    cat err
}
expect 0 "weight hash" paused
check "a line, and no end" grep -qE "rank 0 of 2 .* has been writing to stdout for 2(\.[0-9]+)? s: " output
check "only that" not grep -q "hint\|status" output

tiny=(-a lenet --data synthetic --train-samples 16 --test-samples 8 -b 4 --epochs 1 --threads 1)
port=$((10000 + $$ % 20000))
# by_hand FIRST DELAY OPTION...: starts rank FIRST, and DELAY s later the other one.
by_hand()
{
    local first=$1 delay=$2 status
    export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port
    RANK=$first timeout -k 5 60 "$train" "${tiny[@]}" "${@:3}" >first 2>&1 &
    sleep "$delay"
    RANK=$((1 - first)) timeout -k 5 60 "$train" "${tiny[@]}" "${@:3}" >second 2>&1
    status=$?
    wait $!
    echo "statuses $? $status"
    cat first second
    unset WORLD_SIZE MASTER_ADDR MASTER_PORT
    port=$((port + 1))
}
expect 0 "statuses 0 0" by_hand 0 3 --timeout 1
check "rank 0 waits" grep -q "only 1 of 2 ranks connected within 1 s; waiting for: 1$" output
expect 0 "statuses 0 0" by_hand 1 3 --timeout 1
check "rank 1 waits" \
    grep -qE "this process has been looking for rank 0 at 127.0.0.1:[0-9]+ \(.*refused\) for 1[.0-9]* s: " output
alone()
{
    RANK=$1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout -k 5 60 "$train" "${tiny[@]}" --patience 2
}
expect 1 "has been looking for rank 0 at 127.0.0.1:$port (" alone 1
expect 4 "only 1 of 2 ranks connected within 2 s; missing: 1" alone 0

expect 0 "weight hash" slowly read train/ 0 120 "${pictures[@]}" -b 2 -j 0 --epochs 2 --metrics run.jsonl \
    --trace run.json
check "the epoch's line" \
    grep -qE "== epoch: \[2/2\] .*\| slowest: rank 1 \(.*\): [0-9.]+ ms for data and .*; the others: " output
check "--metrics" grep -q '"slowest":"rank 1 ' run.jsonl
expect 0 "The run's last epoch: rank 1 (" "$SRC/ddp" why run.json run.jsonl
test_done
