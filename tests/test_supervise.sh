#!/usr/bin/env bash
# ctest: TIMEOUT 400 SANITIZERS asan LABELS deadlines
# Both supervisors of ranks: 03's parent and 04's launch. The supervisor must name the rank that failed, except after
# the statuses 2, 3 and 4. It must end with the right status, leave no process, and pass on signals.
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
launch=$BUILD/04_ddp_launcher/launch
rank=$BUILD/../tests/tool_rank
. "$SRC/tests/play.sh"
answer="stopping after this step or evaluation; Ctrl-C again stops at once"

start()
{
    words=("$rank" fork "$2" 30)
    [ "$1" = fork ] || words=("$launch" -n "$2" -- "$rank")
    words+=("${@:3}")
}

# Each line: what rank 1 of 3 does, the supervisor's exit status, and what the supervisor prints about rank 1. "-":
# nothing, since what a real rank prints before this status is enough.
while read -r does status text; do
    for how in fork launch; do
        start $how 3 "all=live9" "1=deaf,live7,reduce1024,$does" 0=wait 2=wait
        begun=$EPOCHREALTIME
        expect "$status" "" "${words[@]}"
        check "$how, $does: ends in time" within 0 10
        if [ "$text" = - ]; then
            check "$how, $does: no rank is named" says_times 0 " rank [0-9] of "
        else
            check "$how, $does: rank 1 is named" grep -qF "rank 1 of 3 ($(hostname), pid $(pid_of 1)) $text" output
            check "$how, $does: no other rank is named" says_times 1 " rank [0-9] of "
        fi
    done
done <<'END'
die9 1 was killed by SIGKILL (Killed): after epoch 2, step 7; last collective: #1 all_reduce of 1024 (gradients)
die11 1 was killed by SIGSEGV (Segmentation fault): after epoch 2, step 7;
die15 1 was killed by SIGTERM (Terminated): after epoch 2, step 7;
exit0 1 ended with status 0: after epoch 2, step 7;
exit1 1 ended with status 1: after epoch 2, step 7;
exit143 143 ended with status 143: after epoch 2, step 7;
exit2 2 -
exit3 3 -
exit4 1 -
END

for how in fork launch; do
    start $how 3 all=live9,done
    expect 0 "" "${words[@]}"
    check "$how: nothing is printed" test ! -s output
    start $how 3 all=live9,done,exit130
    expect 130 "" "${words[@]}"
    check "$how: all ranks agreed to stop: nothing is printed" test ! -s output

    # Rank 2 dies while the supervisor is stopped. The others fail later, but the supervisor sees all deaths at once.
    start $how 3 all=live1 0=sleep800,exit1 1=sleep500,exit1 2=catch,wait
    begin "${words[@]}"
    ready 1
    kill -STOP $pid
    kill -KILL "$(pid_of 2)"
    sleep 1
    kill -CONT $pid
    check "$how: status 1" ends 1
    check "$how: the rank that failed first is named" says "rank 2 of 3 .* was killed by SIGKILL"
    check "$how: no other rank is named" says_times 1 " rank [0-9] of "

    # A stopped rank is woken up and cleans up. A rank that ignores signals is killed, and so is a rank's child.
    start $how 3 all=live1 0=wait 1=sleep500,exit7 2=catch,die19
    expect 7 "caught" "${words[@]}"
    start $how 3 all=live1 0=deaf,wait 1=sleep300,exit7 2=child,catch,wait
    begun=$EPOCHREALTIME
    expect 7 "rank 1 of 3" "${words[@]}"
    check "$how: ranks that ignore signals are killed after 2 s" within 1.9 10
    check "$how: no process is left" nothing_left
    start $how 2 1=child,sleep200 all=live1,done
    expect 0 "" "${words[@]}"
    check "$how: no process is left after a successful run" nothing_left

    start $how 3 all=live1,deaf,wait
    begin "${words[@]}"
    ready 3
    kill -KILL $pid
    check "$how: SIGKILL ends the supervisor" ends 137
    check "$how: no rank outlives the supervisor" at_last nothing_left
done

# Scripts between launcher and rank, which start their program without exec. A rank that starts after the launcher's
# death must also end.
printf '#!/bin/bash\n"$@"\n: the end\n' >script.sh
printf '#!/bin/bash\necho ready: $$\nsleep 2\n"$@"\n: the end\n' >late.sh
chmod +x script.sh late.sh
# abandoned N COMMAND...: kills the launcher when N processes have printed "ready". No rank may outlive it.
abandoned()
{
    begin "${@:2}"
    ready "$1"
    kill -KILL $pid
    wait $pid 2>/dev/null
    sleep 2.5
    check "$2 is killed: no rank outlives it" at_last nothing_left
}
abandoned 2 "$launch" -n 2 -- ./script.sh ./script.sh "$rank" all=live1,deaf,wait
abandoned 1 "$launch" -n 1 -- ./script.sh ./late.sh "$rank" all=live1,wait
if command -v mpirun >/dev/null; then
    abandoned 2 mpirun --oversubscribe -np 2 ./script.sh ./script.sh "$rank" all=live1,deaf,wait
fi

expect 0 "rank 3 of 4, local 3 of 4, at 127.0.0.1" "$rank" fork 4 30 all=world,done
expect 0 "" "$rank" fork 0 30 all=world,done
check "the default on a CPU: two ranks" says_times 2 "^rank [01] of 2,"
expect 0 "; blocked:; ignored: TTOU; own group: 1" "$rank" fork 2 30 1=inherited all=done

# lost TEXT TIMEOUT LEAST RULE...: the run ends with status 1 and TEXT, LEAST to 20 s after its start.
lost()
{
    begun=$EPOCHREALTIME
    expect 1 "$1" "$rank" fork 3 "$2" all=live3 "${@:4}"
    check "$1: in time" within "$3" 20
}
lost "rank 1 of 3 ($(hostname), pid " 2 2 0=wait 1=die19 2=wait
check "a stopped rank" says "\) has been stopped for 2[.0-9]* s: after epoch 2, step 3"
lost ") has sent no heartbeat for 2" 2 2 0=wait 1=wait 2=hang
check "a rank that hangs" says ": rank 2 of 3 "
lost "all ranks have been waiting for each other for 2 s" 2 2 all=wait
expect 0 "" "$rank" fork 3 2 all=live3 0=beat3000 1=twice3000 2=twice3000 all=done
check "waiting for a rank that works is not an error" test ! -s output

# asked SIGNAL TIMES STATUS MOST ANSWER RULE...: the parent of 3 ranks gets SIGNAL TIMES times. It prints ANSWER, and
# ends with STATUS within MOST s of the last SIGNAL.
asked()
{
    local i signal=$1 times=$2
    begin "$rank" fork 3 30 "${@:6}"
    ready 3
    for ((i = 1; i <= times; i++)); do
        [ $i = 1 ] || check "$signal, $((i - 1)) times: still running" test "$(left | wc -l)" = 4
        begun=$EPOCHREALTIME
        kill -"$signal" $pid
        [ $i = "$times" ] || sleep 0.2      # two pending signals would merge into one
    done
    check "$signal: status $3" ends "$3"
    check "$signal: in time" within 0 "$4"
    check "$signal: the answer" test "$(grep -v -e '^ready' -e '^$' output)" = "$5"
}
asked INT 1 130 4 "$answer" all=live1,train
asked TERM 1 143 4 "$answer" all=live1,train
asked INT 2 130 4 "$answer" all=live1,step
asked INT 3 130 1.9 "$answer" all=live1,deaf,beat60000
asked HUP 1 129 4 "" all=live1,step
asked TERM 1 143 1.9 "$answer" 0=step 1=get 2=get      # before the rendezvous there is no step to finish

begin "$launch" -n 2 -- "$rank" all=live1,catch,wait
ready 2
for signal in USR1 USR2; do
    kill -$signal $pid
    check "$signal reaches both" at_last says_times 2 "caught $signal: rank"
done
kill -INT $pid
check "Ctrl-C: status 130" ends 130
check "Ctrl-C reaches both ranks" says_times 2 "caught INT: rank"
check "Ctrl-C: no rank is named" says_times 0 " rank [0-9] of "

begin "$rank" fork 2 2 all=live1,catch,sleep60000
ready 2
state() { sed 's/.*) //; s/ .*//' "/proc/$1/stat"; }
stopped() { for p in $pid $(pgrep -P $pid); do [ "$(state "$p")" = T ] || return; done; }
kill -TSTP $pid
check "Ctrl-Z stops all" at_last stopped
sleep 2.2
kill -CONT $pid
check "fg continues both" at_last says_times 2 "caught CONT: rank"
kill -INT $pid
check "no rank counted as hung" ends 130
check "after Ctrl-Z no rank is named" says_times 0 " rank [0-9] of "
test_done
