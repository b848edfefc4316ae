#!/usr/bin/env bash
# ctest: TIMEOUT 240 PROCESSORS 2 LABELS deadlines
# Ranks are asked to end (Ctrl-C, TERM, one of them alone), at every point of their lives; their parent is
# killed; the disk is full; two runs are in each other's way; an evaluation takes longer than --timeout.
. "$SRC/tests/test.sh"
. "$SRC/tests/crashes.sh"
${CC:-cc} -shared -fPIC -O1 -o fault.so "$SRC/tests/shim/fault.c" || exit 1

answered() { so "said is: $(cat "$1/err")" diff "$1/err" <(printf '\nstopping after this step; once more: at once\n'); }

# asked NAME N SIGNAL WHOM WHEN: the parent gets a signal, alone or with its group (as from Ctrl-C).
asked()
{
    strike "$1" "$2" CRASH_RANK=0 CRASH_DO="$3" CRASH_WHOM="$4" CRASH_TEXT="${moment[$5]}" CRASH_AT="${nth[$5]:-1}"
    is_over "$1" $((128 + $(kill -l "$3"))) 5
    answered "$1"
    case $5 in
        load|forward|backward|all_reduce|optimizer)
            so "not stopped in mid-epoch" grep -q "Training Interrupted" "$1/out"
            so "not saved" grep -q "saved: net$" "$1/out" ;;
    esac
    goes_on "$1"
}

# one_asked NAME N RANK WHEN: TERM to one rank alone: all stop after the same step, and save.
one_asked()
{
    strike "$1" "$2" CRASH_RANK="$3" CRASH_DO=TERM CRASH_TEXT="${moment[$4]}" CRASH_AT="${nth[$4]:-1}"
    is_over "$1" 143 5
    so "something was said: $(cat "$1/err")" [ ! -s "$1/err" ]
    so "not stopped in mid-epoch" grep -q "Training Interrupted" "$1/out"
    so "not saved" grep -q "saved: net$" "$1/out"
    goes_on "$1"
}

one_asked_early()
{
    strike "$1" "$2" CRASH_RANK="$3" CRASH_DO=TERM CRASH_TEXT="${moment[$4]}" CRASH_AT="${nth[$4]:-1}"
    is_over "$1" "1|143" 5
    # Where the ranks had met by then, they have agreed to stop.
    grep -q "Training Interrupted" "$1/out" || names "$1" '1|2' "rank $3 of $2 \\([^,]*, pid $(cat "$1/struck")\\) (ended with status 143|was killed by SIGTERM \\(Terminated\\)): before it had met"
    goes_on "$1"
}

# orphans NAME N RANK WHEN: the parent is killed. What a killed rank was writing the next run removes.
orphans()
{
    strike "$1" "$2" CRASH_RANK="$3" CRASH_DO=KILL CRASH_WHOM=parent CRASH_TEXT="${moment[$4]}" CRASH_AT="${nth[$4]:-1}"
    so "processes are left: $(left_of "$1")" at_last nothing_left "$1"
    so "exit status $(cat "$1/status")" [ "$(cat "$1/status")" = 137 ]
    so "something was said: $(cat "$1/err")" [ ! -s "$1/err" ]
    goes_on "$1"
}

# twice NAME RANK WHEN: it does not get on; the first Ctrl-C waits for it, the second does not.
twice()
{
    local pid begun took i
    strike "$1" 2 CRASH_RANK="$2" CRASH_DO=HOLD CRASH_TEXT="${moment[$3]}" CRASH_AT="${nth[$3]:-1}" &
    for ((i = 0; i < 200; i++)); do
        [ -s "$1/struck" ] && break
        sleep 0.05
    done
    pid=$(cat "$1/pid")
    kill -INT "$pid"
    sleep 0.3
    so "once was enough" kill -0 "$pid"
    begun=$EPOCHREALTIME
    kill -INT "$pid"
    wait
    took=$(awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')
    so "it took $took s" between 0 "$took" 1.5
    is_over "$1" 130 6
    answered "$1"
    so "another checkpoint" cmp "$1/net" old.2
    goes_on "$1"
}

# disk NAME CALL AT WHAT STATUS LINES TEXT: the disk is full, or rank 0 is killed in the middle of saving.
disk()
{
    strike "$1" 2 LD_PRELOAD="$TMP/fault.so" FAULT_PATH=net FAULT_CALL="$2" FAULT_AT="$3" FAULT_DO="$4"
    so "exit status $(cat "$1/status")" [ "$(cat "$1/status")" = "$5" ]
    so "processes are left" at_last nothing_left "$1"
    names "$1" "$6" "$7"
    goes_on "$1"
}

prepare 2 3
for what in born set_up meet store broadcast load forward backward all_reduce optimizer evaluate save compare end; do
    at_most 2 asked int-$what 2 INT group $what
    at_most 2 asked term-$what 3 TERM parent $what
done
for what in forward all_reduce optimizer; do
    at_most 2 one_asked one-0-$what 2 0 $what
    at_most 2 one_asked one-2-$what 3 2 $what
done
for what in born meet store; do
    at_most 2 one_asked_early one-1-$what 2 1 $what
done
for what in born meet forward all_reduce evaluate save end; do
    at_most 2 orphans orphans-$what 2 0 $what
done
at_most 2 twice twice-forward 1 forward
at_most 2 twice twice-all_reduce 0 all_reduce
at_most 2 twice twice-evaluate 0 evaluate
at_most 2 twice twice-save 0 save
at_most 2 disk disk-full write 2 ENOSPC 1 3 "net(.best)?: write at byte .*: No space left on device"
at_most 2 disk killed-torn write 2 torn 1 2 "rank 0 of 2 .* was killed by SIGKILL"
at_most 2 disk killed-fsync fsync 1 kill 1 2 "rank 0 of 2 .* was killed by SIGKILL"
results

# Two runs in one directory, at the same time, each with options of its own.
two()
{
    "$train" -n 2 "${small[@]}" --save first --metrics first.jsonl --trace first.trace >first.out 2>&1 &
    "$train" -n 3 "${small[@]}" --lr 0.02 --sync-bn --save second --trace second.trace >second.out 2>&1
    wait
}
"$train" -n 2 "${small[@]}" >alone.first
"$train" -n 3 "${small[@]}" --lr 0.02 >alone.second 2>&1
for _ in 1 2 3; do
    two
    check "two runs at once: the first" [ "$(hash_of first.out)" = "$(hash_of alone.first)" ]
    check "two runs at once: the second" [ "$(hash_of second.out)" = "$(hash_of alone.second)" ]
done
check "these are two" [ "$(hash_of first.out)" != "$(hash_of second.out)" ]
test_done
