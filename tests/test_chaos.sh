#!/usr/bin/env bash
# Chaos: at random moments a random rank or its launcher is killed or stopped, or a host is cut off. Most faults must
# end the ranks in time. A loop restarts dead launchers. The final weights must be those of an undisturbed run.
# test_crashes.sh has the deaths of 03, and test_launchers.sh those under mpirun.
#
#   CHAOS_SEED=4711     the same random numbers: mostly the same faults, at about the same moments
#   CHAOS_EVENTS=200    number of faults (8); about 4 s each. Run the test through run.sh with enough time:
#                       BUILD=$PWD/build/cpu SRC=$PWD CHAOS_EVENTS=200 tests/run.sh 1500 bash tests/test_chaos.sh
#
# ctest: TIMEOUT 300 LABELS deadlines
# shellcheck disable=SC2317,SC2015,SC2010,SC2046,SC2012  # functions are called by await; what is listed is our own
. "$SRC/tests/test.sh"
train=$BUILD/04_ddp_launcher/train
launch=$BUILD/04_ddp_launcher/launch
hosts=$SRC/tests/hosts.sh
compare=$BUILD/../tests/tool_compare_weights
timeout=2
margin=10                           # additional s to report a fault and to kill ranks that do not end
job=(--arch lenet --data synthetic --train-samples 9600 --test-samples 8 -b 32 --epochs 2 -j 0 --lr 0.05 --threads 1
    --timeout "$timeout")
saving=(--save "$TMP/net" --resume auto --save-every 3)
events=${CHAOS_EVENTS:-8}
export CHAOS_SEED=${CHAOS_SEED:-$((RANDOM * 32768 + RANDOM))}

# --- time and random numbers --------------------------------------------------------------------------------------

draw() { drawn=$((RANDOM % $1)); }                  # 0 ... $1 - 1
now() { ms=${EPOCHREALTIME/[.,]/} ms=$((ms / 1000)); }
rest() { sleep "$(($1 / 1000)).$(printf %03d $(($1 % 1000)))"; }    # ms
rest_up_to() { draw "$1"; rest "$drawn"; }

await()
{
    local end
    now
    end=$((ms + $1))
    shift
    until "$@"; do
        now
        [ $ms -lt $end ] || return 1
        sleep 0.1
    done
}

# --- processes ----------------------------------------------------------------------------------------------------

ranks() { pgrep -f -- "^$train .*--save $TMP/net"; }
any_ranks() { ranks >/dev/null; }
no_ranks() { ! any_ranks; }

# gone PID...: none of these ranks is alive.
gone()
{
    local pid word
    for pid; do
        word=
        read -r -d '' word 2>/dev/null <"/proc/$pid/cmdline"
        [ -z "$word" ] || return 1
    done
    return 0
}

orphans()
{
    local pid above
    for pid in $(ranks); do
        above=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)
        [ -z "$above" ] || [[ $(ps -ww -o args= -p "$above") = "$launch "* ]] || echo "$pid"
    done
}
no_orphans() { [ -z "$(orphans)" ]; }

rank_of() { tr '\0' '\n' 2>/dev/null <"/proc/$1/environ" | sed -n 's/^RANK=//p'; }     # rank_of PID

# --- the loop around the launchers ----------------------------------------------------------------------------------

command_of() # command_of NAME: sets `words` to the command that starts this launcher
{
    local two=(--nnodes 2 --nproc-per-node 2 --master-addr node1 --master-port 29400)
    case $1 in
    launch) words=("$launch" -n 4 --max-restarts 2 --) ;;
    node1) words=("$hosts" on node1 "$launch" "${two[@]}" --node-rank 0 --max-restarts 2 --) ;;
    node2) words=("$hosts" on node2 "$launch" "${two[@]}" --node-rank 1 --max-restarts 2 --) ;;
    esac
    words+=("$train" "${job[@]}" "${saving[@]}")
}

# Restarts a launcher that fails, and a finished one if the other launcher fails. Ends when the file "over" exists.
keep() # keep NAME
{
    local words pid
    command_of "$1"
    while [ ! -e over ]; do
        "${words[@]}" >>"$1.log" 2>&1 </dev/null &
        pid=$!
        echo $pid >"$1.pid"
        wait $pid
        echo "--- $1 has ended with $?" | tee -a "$1.log" >>ends
        if [ "$(tail -1 "$1.log")" = "--- $1 has ended with 0" ]; then
            touch "$1.done"
            while [ -e "$1.done" ] && [ ! -e over ]; do sleep 0.1; done
        else
            rm -f ./*.done
            sleep 0.1
        fi
    done
} 2>/dev/null

begin_round()
{
    local name
    rm -f net* over ends ./*.done ./*.log ./*.pid
    keepers=()
    for name in "${names[@]}"; do
        keep "$name" &
        keepers+=($!)
    done
}

all_done()
{
    local name
    for name in "${names[@]}"; do
        [ -e "$name.done" ] || return 1
    done
}

end_round()
{
    touch over
    wait "${keepers[@]}"
    check "the weights are those of the undisturbed run" \
        test "$(sed -n 's/^weight hash: //p' ./*.log | sort -u)" = "$wanted"
    check "no rank is left" await 1000 no_ranks
    check "no temporary file is left" test -z "$(ls | grep '^net.*tmp')"
    check "launchers ended with the expected statuses: $(sort ends | uniq -c | tr '\n' ';')" \
        not grep -qvE 'with (0|1|4|137|139|143)$' ends
}

give_up() # give_up WHAT
{
    local log
    failed=$((failed + 1))
    echo "not so: $1"
    echo "CHAOS_SEED=$CHAOS_SEED CHAOS_EVENTS=$events"
    ps -eo pid,ppid,stat,wchan:20,etime,args
    for log in ./*.log; do
        echo "=== $log"
        tail -60 "$log"
    done
    touch over
    kill -KILL $(cat ./*.pid) $(ranks)
    wait
    test_done
}

# --- faults ---------------------------------------------------------------------------------------------------------

# With one launcher per host, ranks that still wait for the dead rank may connect to its replacement. The run then
# continues.
met_the_next() { [ ${#names[@]} = 2 ] && no_orphans && stamped=$(stamp) && await 3000 goes_on; }

must_go()
{
    local begin limit=$1
    shift
    now
    begin=$ms
    if ! await $((limit * 1000)) gone "$@"; then
        met_the_next || give_up "within $limit s all ranks end"
        echo "    some ranks had not connected to it, and continue with its replacement"
        return
    fi
    now
    echo "    all ranks ended after $((ms - begin)) ms"
}

any_ranks_or_done() { any_ranks || all_done; }

# Waits for ranks and sets `before` to their process ids, and `seconds` to the time in which a fault must end them. If
# the run is over, starts the next round first. Ranks that wait for missing ones may see a stopped rank late, so with
# fewer than 4 ranks `seconds` is longer.
see_ranks()
{
    before=()
    while [ ${#before[@]} = 0 ]; do
        await 20000 any_ranks_or_done || give_up "new ranks start within 20 s"
        mapfile -t before < <(ranks)
        if [ ${#before[@]} = 0 ] && all_done; then
            end_round
            begin_round
        fi
    done
    seconds=$((timeout + margin + (${#before[@]} < 4 ? 4 : 0)))
}

fault_rank() # fault_rank SIGNAL
{
    see_ranks
    draw ${#before[@]}
    echo "    SIG$1 to rank $(rank_of "${before[drawn]}") (pid ${before[drawn]}), one of ${#before[@]}"
    kill "-$1" "${before[drawn]}" 2>/dev/null
    must_go $seconds "${before[@]}"
}

fault_launcher() # fault_launcher SIGNAL
{
    local name pid own
    see_ranks
    draw ${#names[@]}
    name=${names[drawn]}
    pid=$(cat "$name.pid")
    mapfile -t own < <(ranks | grep -xFf <(pgrep -P "$pid"))
    echo "    SIG$1 to $name (pid $pid), which has ${#own[@]} ranks"
    kill "-$1" "$pid" 2>/dev/null
    must_go 2 "${own[@]}"
    must_go $seconds "${before[@]}"
}

fault_cut() # a host is disconnected until all ranks have ended
{
    local node
    see_ranks
    draw 2
    node=node$((drawn + 1))
    echo "    $node is disconnected"
    "$hosts" cut $node
    must_go $seconds "${before[@]}"
    rest_up_to 3000
    "$hosts" join $node
}

# --- all of it -------------------------------------------------------------------------------------------------------

stamp() { stat -c %i.%y net 2>/dev/null; }
goes_on() { [ "$(stamp)" != "$stamped" ] || all_done; }

# A hard link, because the run may replace the file at any moment.
is_whole() { [ ! -e net ] || { ln -f net looked && "$compare" looked looked 0 >compared; }; }

# In one of three cases the next fault does not wait until the run has continued.
look_round()
{
    is_whole || give_up "the checkpoint is whole: $(cat compared)"
    await 3000 no_orphans || give_up "these ranks have a launcher: $(orphans)"
    stamped=$(stamp)
    draw 3
    if [ $drawn = 0 ]; then
        rest_up_to 500
    elif await 30000 goes_on; then
        rest_up_to 800
    else
        give_up "the run continues within 30 s"
    fi
}

# Two launchers on two hosts or, where hosts cannot be made, one.
chaos()
{
    local i fault faults=("rank KILL" "rank STOP" "launcher KILL")
    names=(launch)
    [ -z "${HOSTS_DIR:-}" ] || names=(node1 node2) faults+=("cut cable")
    now
    born=$ms
    echo "CHAOS_SEED=$CHAOS_SEED"
    RANDOM=$CHAOS_SEED
    expect 0 "weight hash: " "$launch" -n 4 -- "$train" "${job[@]}"
    wanted=$(sed -n 's/^weight hash: //p' output)
    now
    echo "undisturbed: $((ms - born)) ms, $wanted"
    begin_round
    rest_up_to 1000
    for ((i = 0; i < events; i++)); do
        fault=${faults[i % ${#faults[@]}]}
        now
        echo "$((i + 1)). $fault ($(((ms - born) / 1000)) s)"
        fault_${fault/ */} "${fault#* }"
        passed=$((passed + 1))
        look_round
    done
    await 60000 all_done || give_up "the rest of the run takes less than 60 s"
    end_round
    [ -z "${HOSTS_DIR:-}" ] ||
        check "no socket listens" test -z "$(for i in 1 2; do "$hosts" on node$i grep ' 0A ' /proc/net/tcp; done)"
    now
    echo "$(((ms - born) / 1000)) s in all"
    test_done
}

if [ -n "${HOSTS_DIR:-}" ]; then
    chaos
fi
"$hosts" run 2 bash "$SRC/tests/test_chaos.sh"
status=$?
[ $status = 77 ] || exit $status
echo "not tried: two hosts"
chaos
