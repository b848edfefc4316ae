#!/usr/bin/env bash
# ctest: LABELS deadlines
# The rule that ends a run which is stuck (common/store.h), in training. A slow disk and a full pipe end no
# run, although they last longer than --timeout. A rank that is stopped or has not arrived is named after 10 s in one
# line. A rank that waits for a file is named after --timeout, and the run ends. test_crashes.sh has ranks that hang.
# shellcheck disable=SC2317  # functions are called by in_turn
. "$SRC/tests/test.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT DDP_TOKEN
train=$BUILD/04_ddp_launcher/train
. "$SRC/tests/disk.sh"
"$BUILD/as_folder" --data synthetic --as-folder pictures --train-samples 64 --test-samples 32 >/dev/null

pictures=(-a convnet --data "$TMP/pictures" --image-size 32 -b 4 --threads 1 --epochs 1 -p 100)
long=(-a lenet --data synthetic --train-samples 4000 --test-samples 8 -b 1 --threads 1 --epochs 1 -p 1)
two() { timeout -k 5 60 "$BUILD/04_ddp_launcher/launch" -n 2 -- "$train" "$@"; }
# slowly RANK CALL PATH NUMBER MS OPTION...: the NUMBERth CALL of RANK on a path with PATH takes MS longer.
slowly()
{
    FAULT_RANK=$1 FAULT_CALL=$2 FAULT_PATH=$3 FAULT_AT=$4 FAULT_DO=wait$5 LD_PRELOAD=$TMP/fault.so two "${@:6}"
}
rank1() { for pid in $(pgrep -f -- "$TMP/$1\.st"); do ! grep -qszx RANK=1 "/proc/$pid/environ" || echo "$pid"; done; }

endless_read() { slowly 1 read train/ 6 60000 "${pictures[@]}" -j 2 --timeout 3; }
slow_fsync() { slowly 0 fsync slow_fsync.st 1 5000 "${pictures[@]}" --timeout 2 --save slow_fsync.st; }
pipe()
{
    { two "${long[@]}" --timeout 2 2>pipe.err; echo "status $?"; } | { head -3; sleep 5; tail -1; }
    cat pipe.err
}
said() { until_so 60 grep -qE "$2" "$1"; }      # said FILE WORDS: waits until they are there
pause()         # a rank is stopped until rank 0 says so
{
    two "${long[@]}" --save "$TMP/pause.st" >pause.run 2>&1 &
    until_so 30 grep -q 'step: \[ *5/' pause.run
    kill -STOP "$(rank1 pause)"
    said pause.run "no rank has made progress"
    kill -CONT "$(rank1 pause)"
    wait $!
    echo "status $?"
    cat pause.run
}
# late RANK: starts RANK, and the other rank when the first has said that it waits.
late()
{
    local port=$((port + $1)) status=0
    by_hand "$1" 2 timeout -k 5 60 "$train" "${long[@]}" --max-steps 5 2>&1 &
    said "late_$1.out" "ranks connected within|could not join rank 0"
    by_hand $((1 - $1)) 2 timeout -k 5 60 "$train" "${long[@]}" --max-steps 5 || status=$?
    wait $! || status=$?
    echo "status $status"
}
late_0() { late 0; }
late_1() { late 1; }

# They mostly wait, so they run at the same time.
all=(endless_read slow_fsync pipe pause late_0 late_1)
for name in "${all[@]}"; do
    { $name >"$name.out" 2>&1; echo "exit $?" >>"$name.out"; } &
done
wait
says() { cp "$1.out" output; check "$1: $2" grep -qE -- "$2" "$1.out"; }
once() { says "$@" && check "$1: once" is "$(grep -cE -- "$2" "$1.out")" 1; }
silent()
{
    cp "$1.out" output
    check "$1: no line" not grep -q "no rank has made progress\|ranks connected\|is lost" "$1.out"
}

says endless_read "exit 1"
once endless_read "no rank has made progress for 3 s \(--timeout\); all wait for rank 1 of 2 .*, reading .*/train/"
says slow_fsync "exit 0" && silent slow_fsync
says pipe "status 0" && silent pipe
says pause "status 0"
once pause "no rank has made progress for 1[0-9.]+ s; all wait for rank 1 of 2 \(.*\): stopped or cut off, silent for "
once pause "hint: the run ends after 300 s without progress \(--timeout\)"
says late_0 "status 0" && once late_0 "only 1 of 2 ranks connected within 1[0-9][.0-9]* s; waiting for rank 1$"
says late_1 "status 0" && once late_1 "rank 1 of 2 could not join rank 0 within 1[.0-9]* s, and tries again: .*refused"
test_done
