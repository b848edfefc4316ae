#!/usr/bin/env bash
# ctest: PROCESSORS 2 LABELS deadlines
# At many points of a run, a rank dies, stops or hangs, or a rank or the parent gets a signal. All processes must end,
# at once or after --timeout. Messages may name only the rank that failed. The run must then continue from a complete
# checkpoint and end with the weights of an undisturbed run. tests/shim/crash.c causes the faults, in 03 and in 07. 03
# forks its ranks, and ends them at once. In 07 a launcher starts the ranks, and all evaluate, and stop after the same
# step.
. "$SRC/tests/test.sh"
small=(--arch lenet --data synthetic --train-samples 192 --test-samples 32 -b 8 --threads 1 --seed 3 -p 1
    --epochs 2)
ulimit -c 0
${CC:-cc} -shared -fPIC -O1 -o crash.so "$SRC/tests/shim/crash.c" || exit 1
# command_of forked|launched N: sets `words` to the command that trains N ranks of 03 (forked) or 07 (launched)
command_of()
{
    words=("$BUILD/03_ddp_fork/train" -n "$2" "${small[@]}")
    [ "$1" = forked ] ||
        words=("$BUILD/07_dist_eval/launch" -n "$2" -- "$BUILD/07_dist_eval/train" "${small[@]}" --amp off)
}
forked() { command_of forked "$1" && "${words[@]}" "${@:2}"; }              # forked N OPTIONS

# For N ranks of 03 or 07, which compute the same weights: old.N is the checkpoint after epoch 1, hash.N the weights'
# hash after epoch 2.
for n in 2 3; do
    forked $n --epochs 1 --save "$TMP/old.$n" >out 2>&1 || { cat out; exit 1; }
    forked $n --resume "$TMP/old.$n" >out 2>&1 || { cat out; exit 1; }
    hash_of out >hash.$n
done

# strike NAME forked|launched N [VARIABLE=VALUE...]: resumes a run with N ranks, with the fault that the variables
# describe (see crash.c). Leaves the exit status in NAME/status and the seconds from the fault to the end in NAME/took.
# NAME/struck contains the id of the process that the fault hits, or minus the id of the process group.
strike()
{
    local name=$1 how=$2 n=$3 begun=$EPOCHREALTIME status words
    shift 3
    command_of "$how" "$n"
    mkdir "$name"
    cp "old.$n" "$name/net"
    echo "$how $n" >"$name/ranks"
    {   # hides the shell's reports of killed processes
        (   cd "$name" || exit
            # some shells start programs with SIGCHLD ignored; deaths must be noticed all the same
            exec timeout -s KILL 60 setsid env --ignore-signal=CHLD CRASH_CASE="$name-$$" LD_PRELOAD="$TMP/crash.so" \
                CRASH_NOTE=struck "$@" "${words[@]}" --resume net --save net --trace trace --timeout 3 >out 2>err ) &
        wait $!
        status=$?
    } 2>/dev/null
    sed -i '/ devices with .* share .* cores*: /,+1d' "$name/err"     # warns of more ranks than cores
    echo "$status" >"$name/status"
    [ -e "$name/struck" ] && begun=$(stat -c %.Y "$name/struck")
    awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f\n", b - a }' >"$name/took"
}

left_of() { grep -lzxF "CRASH_CASE=$1-$$" /proc/[0-9]*/environ 2>/dev/null | tr -dc '0-9\n'; }
so() { local what=$1; shift; "$@" >/dev/null 2>&1 || echo "$what"; }       # so WHAT COMMAND...
nothing_left() { [ -z "$(left_of "$1")" ]; }
between() { awk -v least="$1" -v x="$2" -v most="$3" 'BEGIN { exit !(least <= x && x <= most) }'; }

is_over()
{
    local status took
    status=$(cat "$1/status") took=$(cat "$1/took")
    so "no process was struck" test -s "$1/struck"
    so "exit status $status, not $2" grep -qxE "$2" "$1/status"
    so "it took $took s, not ${4:-0} to $3" between "${4:-0}" "$took" "$3"
    so "processes are left: $(left_of "$1")" until_so 5 nothing_left "$1"
    continues "$1"
}

names()
{
    so "it does not print: $2" grep -qE -- "$2" "$1/err"
    so "several ranks are named" [ "$(grep -c ' rank [0-9]* of ' "$1/err")" -le 1 ]
}

# Without the fault, the same command must resume the old or the new checkpoint and end with the weights of hash.N.
continues()
{
    local how n words
    read -r how n <"$1/ranks"
    command_of "$how" "$n"
    # The kernel closes a killed process's files after it has freed its memory, where nothing_left looks.
    [ ! -e "$1/net.lock" ] || so "its lock is held" flock -w 5 "$1/net.lock" true
    ( cd "$1" && "${words[@]}" --resume net --save net >again 2>&1 )
    so "the run does not continue: $(tail -3 "$1/again")" grep -q "^weight hash: " "$1/again"
    so "the final weights differ" [ "$(hash_of "$1/again")" = "$(cat "hash.$n")" ]
    so "a temporary file is left: $(ls "$1")" not compgen -G "$1/*tmp*"
}

# The text in the timeline at which to strike; born: when the rank is forked. "compare" strikes when its text appears
# for the second time, because weights are also compared at the start.
declare -A moment=(
    [born]='' [meet]='"name":"meet the other ranks"' [broadcast]='"name":"broadcast ' [forward]='"name":"forward"'
    [backward]='"name":"backward"' [all_reduce]='"name":"all_reduce ' [optimizer]='"name":"optimizer"'
    [compare]='"name":"all_gather ' [end]='"name":"barrier' [evaluate]='"name":"evaluate"' [save]='"name":"save"')
# hit NAME N RANK WHEN DO [VARIABLE=VALUE...]
how=forked
hit()
{
    local at=1
    [ "$4" != compare ] || at=2
    strike "$1" $how "$2" CRASH_RANK="$3" CRASH_DO="$5" CRASH_TEXT="${moment[$4]}" CRASH_AT=$at "${@:6}"
}

declare -A fate=([KILL]="was killed by signal 9" [SEGV]="was killed by signal 11" [EXIT0]=":"
    [EXIT7]="ended with status 7") code=([KILL]=137 [SEGV]=139 [EXIT0]=1 [EXIT7]=7)
dies() # dies NAME N RANK WHEN DO
{
    hit "$@"
    is_over "$1" "${code[$5]}" 5
    names "$1" "rank $3 of $2 \\([^)]*pid $(cat "$1/struck")\\) ?${fate[$5]}"
}
stops() # stops NAME N RANK WHEN
{
    hit "$@" STOP
    is_over "$1" 1 10 2.9
    names "$1" "rank $3( of $2)? \\([^)]*pid $(cat "$1/struck")\\)( is lost: no answer|: )"
}
hangs() # hangs NAME N RANK WHEN
{
    hit "$@" HANG
    is_over "$1" 1 10 2.9
    names "$1" "rank $3 of $2 \\([^)]*pid $(cat "$1/struck")\\): "
}
# asked NAME N RANK WHEN SIGNAL WHOM: the parent gets a signal, alone or with its group (as from Ctrl-C).
asked()
{
    local answer="all ranks have ended; to continue a saved run: --save FILE --resume auto"
    [ $how = forked ] || answer="stopping after this step or evaluation; press Ctrl-C again to stop at once"
    hit "${@:1:5}" CRASH_WHOM="$6"
    is_over "$1" $((128 + $(kill -l "$5"))) 5
    so "printed: $(cat "$1/err")" grep -qxF "$answer" "$1/err"
    so "a rank is named: $(cat "$1/err")" not grep -q " rank [0-9]* of " "$1/err"
    [ "$4 $how" != "forward launched" ] ||
        so "not stopped and saved within the epoch" grep -q "Training Interrupted" "$1/out"
}
# The parent is killed. The next run removes the temporary file that a killed rank leaves.
orphans() # orphans NAME N RANK WHEN
{
    hit "$@" KILL CRASH_WHOM=parent
    is_over "$1" 137 5
    so "printed: $(cat "$1/err")" [ ! -s "$1/err" ]
}
# --- several at once ---------------------------------------------------------------------------------------------

cases=()
at_most() # at_most N FUNCTION NAME...: starts the case in the background as soon as fewer than N run
{
    while [ "$(jobs -rp | wc -l)" -ge "$1" ]; do
        wait -n
    done
    cases+=("$3")
    "${@:2}" >"$3.verdict" 2>&1 &
}

for what in born broadcast all_reduce end; do
    at_most 2 dies kill-0-$what 2 0 $what KILL
done
for what in meet backward compare; do
    at_most 2 dies kill-1-$what 2 1 $what KILL
done
at_most 2 dies kill-0-evaluate 2 0 evaluate KILL
at_most 2 dies segv-0-save 3 0 save SEGV
at_most 2 dies exit0-2-all_reduce 3 2 all_reduce EXIT0
at_most 2 dies exit7-0-forward 3 0 forward EXIT7
at_most 2 asked int-meet 2 0 meet INT group
at_most 2 asked int-forward 2 0 forward INT group
at_most 2 asked term-forward 3 0 forward TERM parent
at_most 2 asked term-save 3 0 save TERM parent
for what in meet all_reduce save; do
    at_most 2 orphans orphans-$what 2 0 $what
done

# A case with a stopped rank mostly waits for --timeout, so more of these cases can run at once.
at_most 8 stops stop-2-meet 3 2 meet
at_most 8 stops stop-0-all_reduce 2 0 all_reduce
at_most 8 stops stop-0-save 2 0 save
at_most 2 hangs hang-1-backward 2 1 backward
at_most 2 hangs hang-0-save 2 0 save
how=launched
at_most 2 dies launched-kill-1-evaluate 2 1 evaluate KILL
at_most 8 stops launched-stop-0-evaluate 2 0 evaluate
at_most 2 hangs launched-hang-0-evaluate 2 0 evaluate
at_most 2 asked launched-term-evaluate 2 0 evaluate TERM parent
at_most 2 asked launched-term-forward 3 0 forward TERM parent
wait
for name in "${cases[@]}"; do
    cat "$name.verdict" "$name/err" >output 2>/dev/null
    check "$name: $(head -1 "$name.verdict")" [ -f "$name.verdict" -a ! -s "$name.verdict" ]
done
echo "${#cases[@]} cases; the slowest ended $(cat ./*/took | sort -n | tail -1) s after the fault"

test_done
