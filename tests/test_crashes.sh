#!/usr/bin/env bash
# ctest: TIMEOUT 240 PROCESSORS 2 LABELS deadlines
# A rank dies, stops or hangs, at every point of its life: the others end too, at once or after --timeout;
# it and nobody else is named; nothing is left; and the checkpoint is a whole one, from which the run goes
# on to the bits it would have had. tests/shim/crash.c strikes.
. "$SRC/tests/test.sh"
. "$SRC/tests/crashes.sh"

# What is said of how far it had come, by the moment.
declare -A progress=([born]=": before it had met" [set_up]=": before it had met" [meet]=": before it had met"
    [store]=": before it had met" [listen]=": before its first step" [broadcast]=": before its first step"
    [load]=": before its first step" [forward]=": before its first step" [backward]=": before its first step"
    [all_reduce]=": before its first step" [optimizer]=": before its first step"
    [compare]=": after epoch 2, step" [end]=": after epoch 2, step" [evaluate]=": after epoch 2, step"
    [save]=": after epoch 2, step")

declare -A fate=([KILL]="was killed by SIGKILL \\(Killed\\)" [SEGV]="was killed by SIGSEGV \\(Segmentation fault\\)"
    [ABRT]="was killed by SIGABRT \\(Aborted\\)" [EXIT0]="ended with status 0" [EXIT7]="ended with status 7")

# dies NAME N RANK DO WHEN [AT [VARIABLE=VALUE...]]
dies()
{
    local name=$1 n=$2 rank=$3 what=$4 when=$5 at=${6:-${nth[$5]:-1}} status=1 lines=2
    strike "$name" "$n" CRASH_RANK="$rank" CRASH_DO="$what" CRASH_TEXT="${moment[$when]}" CRASH_AT="$at" "${@:7}"
    [ "$what" = EXIT7 ] && status=7
    is_over "$name" $status 5
    names "$name" $lines "rank ${dead:-$rank} of $n \\([^,]*, pid $(cat "$name/struck")\\) ${fate[$what]}${progress[$when]}"
    goes_on "$name"
}

# One dies while another rank is there.
while_at() { local dead=$4; dies "$1" "$2" "$3" "$5" "$6" "" CRASH_WHOM="$4"; }

# stops NAME N RANK WHEN
stops()
{
    local name=$1 n=$2 rank=$3
    strike "$name" "$n" CRASH_RANK="$rank" CRASH_DO=STOP CRASH_TEXT="${moment[$4]}" CRASH_AT="${nth[$4]:-1}"
    is_over "$name" 1 8 2.9
    names "$name" 2 "rank $rank of $n \\([^,]*, pid $(cat "$name/struck")\\) is stopped for 3[.0-9]* s: "
    goes_on "$name"
}

# hangs NAME N RANK WHEN SAYS
hangs()
{
    local name=$1 n=$2 rank=$3 pid
    strike "$name" "$n" CRASH_RANK="$rank" CRASH_DO=HANG CRASH_TEXT="${moment[$4]}" CRASH_AT="${nth[$4]:-1}"
    pid=$(cat "$name/struck")
    is_over "$name" 1 10 2.9
    names "$name" "${6:-2}" "${5//PID/$pid}"
    goes_on "$name"
}

prepare 2 3

for what in born set_up meet store listen broadcast load forward backward all_reduce optimizer compare end; do
    at_most 2 dies kill-0-$what 2 0 KILL $what
    at_most 2 dies kill-1-$what 2 1 KILL $what
done
for what in evaluate save; do
    at_most 2 dies kill-0-$what 2 0 KILL $what
    at_most 2 while_at kill-1-$what 2 0 1 KILL $what
    at_most 2 dies segv-0-$what 3 0 SEGV $what
    at_most 2 while_at segv-2-$what 3 0 2 SEGV $what
    at_most 2 dies exit7-0-$what 3 0 EXIT7 $what
done
for what in born meet store backward all_reduce compare end; do
    at_most 2 dies segv-2-$what 3 2 SEGV $what
    at_most 2 dies exit0-2-$what 3 2 EXIT0 $what
    at_most 2 dies exit7-0-$what 3 0 EXIT7 $what
done
results

# They only wait: all at once.
for what in born meet store all_reduce backward compare end; do
    at_most 8 stops stop-0-$what 2 0 $what
    at_most 8 stops stop-2-$what 3 2 $what
done
at_most 8 stops stop-0-evaluate 2 0 evaluate
at_most 8 stops stop-0-save 2 0 save
at_most 2 hangs hang-1-backward 2 1 backward "rank 1 of 2 \\([^,]*, pid PID\\) has given no sign of life for 3"
at_most 2 hangs hang-0-evaluate 2 0 evaluate "rank 0 of 2 \\([^,]*, pid PID\\) has given no sign of life for 3"
at_most 2 hangs hang-1-all_reduce 2 1 all_reduce "rank 1 of 2 \\([^,]*, pid PID\\) (is behind|has given no sign)" "2|4"
results
test_done
