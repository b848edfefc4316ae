#!/usr/bin/env bash
# ctest: SANITIZERS asan LABELS deadlines
# 04's launch: its options, the environment of its ranks, deaths, signals and restarts. No rank trains: most run
# tests/tool_rank.c.
# shellcheck disable=SC2016,SC2317  # words in single quotes are for the bash inside; check calls functions
. "$SRC/tests/test.sh"
launch=$BUILD/04_ddp_launcher/launch
rank=$BUILD/../tests/tool_rank
. "$SRC/tests/play.sh"

expect 0 "RANK=2 WORLD_SIZE=3 " env CUDA_VISIBLE_DEVICES=4,0,2 "$launch" -n gpu -- "$rank" all=contract
expect 2 "./nothing cannot be started: No such file or directory" "$launch" -n 2 --max-restarts 3 -- ./nothing

contract() { grep "^RANK=$1 " output; }
word() { contract "$1" | tr ' ' '\n' | sed -n "s/^$2=//p"; }
cores=$(nproc)
threads=$((cores > 3 ? cores / 3 : 1))
expect 0 "" "$launch" --nproc-per-node=3 --max-restarts 5 -- "$rank" all=contract
for i in 0 1 2; do
    check "rank $i: $(contract $i)" grep -qE "^RANK=$i WORLD_SIZE=3 LOCAL_RANK=$i LOCAL_WORLD_SIZE=3 GROUP_RANK=0 \
MASTER_ADDR=127\.0\.0\.1 MASTER_PORT=[1-9][0-9]* TORCHELASTIC_RESTART_COUNT=0 OMP_NUM_THREADS=$threads \
GOMP_SPINCOUNT=2000 DDP_TOKEN=[0-9a-f]{32} listens=$([ $i = 0 ] && echo 1 || echo -1)\$" output
    check "one port, one token" test "$(word $i MASTER_PORT)$(word $i DDP_TOKEN)" = \
        "$(word 0 MASTER_PORT)$(word 0 DDP_TOKEN)"
done

"$launch" --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port $port -n 2 -- "$rank" all=contract,sleep300 \
    >other 2>&1 &
expect 0 "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port " \
    "$launch" --nnodes 2 --node-rank 0 --master-addr 127.0.0.1 --master-port $port -n 2 -- "$rank" all=contract,sleep300
check "no token, because each launch would make its own" says_times 2 "DDP_TOKEN=- "
check "rank 0 listens" says_times 1 "listens=1"
wait $!
check "the other machine" \
    grep -q "^RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 .* MASTER_PORT=$port .*listens=-1" other
expect 7 "rank 3 of 4 (pid " "$launch" --nnodes 2 --node-rank 1 --master-addr 127.0.0.1 -n 2 -- \
    "$rank" 2=wait 3=exit7

expect 0 "" "$launch" -n 2 -- "$rank" 1=sleep300                # each may end at any time
check "nothing is printed" test ! -s output

# --- deaths ----------------------------------------------------------------------------------------------------------

# Each line: what rank 1 of 3 does, launch's exit status, and what launch prints about rank 1. "-": nothing, since our
# programs explain such a status themselves. Ranks that launch ends are not named.
while read -r does status text; do
    begun=$EPOCHREALTIME
    expect "$status" "" "$launch" -n 3 -- "$rank" 0=catch,wait 1=deaf,sleep300,$does 2=deaf,wait
    check "$does: ends in time" within 0 5
    if [ "$text" = - ]; then
        check "$does: no rank is named" says_times 0 " rank [0-9] of "
    else
        check "$does: rank 1 is named" grep -qF "rank 1 of 3 (pid $(pid_of 1)) $text" output
        check "$does: no other rank is named" says_times 1 " rank [0-9] of "
    fi
done <<'END'
die9 137 was killed by signal 9 (Killed)
die11 139 was killed by signal 11 (Segmentation fault)
exit7 7 ended with status 7
exit2 2 -
exit3 3 -
exit4 1 -
exit200 200 -
END
expect 130 "" "$launch" -n 3 --max-restarts 2 -- "$rank" all=exit130
check "all ranks agreed to stop: nothing is printed, and no restart" test ! -s output

# A stopped rank is woken up and cleans up. A rank that ignores signals is killed, and so is a rank's child.
expect 7 "caught TERM: rank 2" "$launch" -n 3 -- "$rank" 0=wait 1=sleep500,exit7 2=catch,die19
begun=$EPOCHREALTIME
expect 7 "rank 1 of 3" "$launch" -n 3 -- "$rank" 0=deaf,wait 1=sleep300,exit7 2=child,catch,wait
check "ranks that ignore signals are killed after 2 s" within 1.9 10
check "no process is left" at_last nothing_left
expect 0 "" "$launch" -n 2 -- "$rank" 1=child,sleep200
check "no process is left after a successful run" at_last nothing_left

# If launch dies, so does a script that it started, and the rank that the script started without exec.
printf '#!/bin/bash\n"$@"\n: the end\n' >script.sh
chmod +x script.sh
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
abandoned 2 "$launch" -n 2 -- ./script.sh "$rank" all=follow,deaf,wait

# --- signals ---------------------------------------------------------------------------------------------------------

answer="stopping after this step or evaluation; press Ctrl-C again to stop at once"
# asked SIGNAL TIMES STATUS MOST RULE...: launch gets SIGNAL TIMES times. It prints that it stops, ends with STATUS
# within MOST s of the last signal, and names no rank.
asked()
{
    local i
    begin "$launch" -n 3 --max-restarts 3 -- "$rank" "${@:5}"
    ready 3
    for ((i = 1; i <= $2; i++)); do
        [ $i = 1 ] || check "$1, $((i - 1)) times: still running" test "$(left | wc -l)" = 3
        begun=$EPOCHREALTIME
        kill -"$1" $pid
        if [ $i != "$2" ]; then         # two pending signals would merge into one
            sleep 0.2
            until_so 20 grep -qE "^ShdPnd:[[:space:]]*0+$" /proc/$pid/status
        fi
    done
    check "$1: status $3" ends "$3"
    check "$1: in time" within 0 "$4"
    check "$1: the answer" test "$(grep -v -e '^ready' -e '^caught' -e '^$' output)" = "$answer"
    check "$1: nothing is left" at_last nothing_left
}
asked INT 1 130 2 all=catch,wait
asked TERM 1 143 2 0=catch,die19 1=catch,wait 2=catch,wait  # a stopped rank is woken
asked INT 3 130 1.9 all=deaf,wait
# Rank 0 sends TERM while launch still starts the others.
begun=$EPOCHREALTIME
expect 143 "$answer" "$launch" -n 64 -- sh -c '[ $RANK = 1 ] && kill -TERM $PPID; exec sleep 20'
check "TERM while ranks are started reaches all" within 0 10
check "then no rank is named" says_times 0 " rank [0-9]* of "

begin "$launch" -n 2 -- "$rank" all=catch,wait
ready 2
kill -USR1 $pid
check "USR1 reaches both" at_last says_times 2 "caught USR1: rank"
kill -INT $pid
check "then Ctrl-C" ends 130

# A rank elsewhere fails while all stop. The status must not say that these ranks have stopped as asked.
begin "$launch" -n 2 -- "$rank" all=catch,sleep1500,exit4
ready 2
kill -USR1 $pid
check "status 4 of all ranks, after USR1" ends 1

# --- restarts --------------------------------------------------------------------------------------------------------

expect 2 "status 2, no restart: " "$launch" -n 2 --max-restarts 3 -- "$rank" 0=wait 1=exit2
expect 3 "status 3, no restart: " "$launch" -n 2 --max-restarts 3 -- "$rank" all=exit3
expect 200 "status 200, no restart: " "$launch" -n 2 --max-restarts 3 -- "$rank" all=exit200
expect 0 "restart 1 of 1" "$launch" -n 2 --max-restarts 1 -- "$rank" 0.0=catch,wait 1.0=sleep300,exit7
check "launch's own TERM is no reason not to restart" says_times 1 "caught TERM: rank 0"
begun=$EPOCHREALTIME
expect 0 "restart 1 of 5 in 0.5 s" "$launch" -n 2 --max-restarts 5 -- "$rank" all=contract,sleep400 1.0=exit1 1.1=die9
check "two pauses" within 1 8
check "three starts" says_times 3 "^RANK=1 .* TORCHELASTIC_RESTART_COUNT=[012]"
check "one port, one token" test "$(word 0 MASTER_PORT | sort -u | wc -l)$(word 0 DDP_TOKEN | sort -u | wc -l)" = 11
check "rank 0 listens each time" says_times 3 "^RANK=0 .* listens=1"
expect 7 "restart 1 of 1 in" "$launch" --max-restarts 1 -- "$rank" all=exit7
check "no second restart" says_times 2 "ended with status 7"
begin "$launch" --max-restarts 9 -- "$rank" all=exit7
at_last says "restart 2 of 9"
kill -TERM $pid
check "a pause can be interrupted" ends 143
begin "$launch" -n 2 --max-restarts 9 -- "$rank" all=catch,wait
ready 2
kill -TERM $pid
check "TERM means no restart" ends 143
check "and no message" says_times 0 "restart|launch.c|supervise.c"

{ "$launch" -n 2 --max-restarts 1 -- "$rank" 1.0=exit7 2>&1; echo $? >status; } | true
check "launch does not need a reader of its messages" test "$(cat status)" = 0

check "no process is left in the end" at_last nothing_left
test_done
