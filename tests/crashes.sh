# shellcheck shell=bash
# crashes.sh - for scripts that let something happen to the ranks of a training run (03 or later). Every
# case has a directory of its own, in which a run goes on from epoch 1, is struck by tests/shim/crash.c,
# and is looked at; cases run beside each other:
#
#   prepare 2 3                     what runs of 2 and of 3 ranks go on from; what they end with
#   case_a() { strike A 2 CRASH_RANK=0 ...; is_over A 1 5; goes_on A; }
#   at_most 2 case_a                begins it, when fewer than two are under way
#   results                         waits for all of them, and counts
#
# In a case whatever is not so is said on stdout.

train=${train:-$BUILD/03_ddp_fork/train}
small=(--arch lenet --data synthetic --train-samples 48 --test-samples 32 -b 8 --threads 1 --seed 3 -p 1
    --epochs 2)
ulimit -c 0
cd "$TMP" || exit 1
${CC:-cc} -shared -fPIC -O1 -o crash.so "$SRC/tests/shim/crash.c" || exit 1

hash_of() { sed -n 's/^weight hash: //p' "$1"; }

# old.N: the checkpoint after epoch 1; new.N after epoch 2; best.N; hash.N: of the weights then.
prepare()
{
    local n
    for n in "$@"; do
        "$train" -n "$n" "${small[@]}" --epochs 1 --save "old.$n" >out 2>&1 || { cat out; exit 1; }
        rm -f "old.$n.best"
        "$train" -n "$n" "${small[@]}" --resume "old.$n" >out 2>&1 || { cat out; exit 1; }
        hash_of out >"hash.$n"
    done
}

# strike NAME N [VARIABLE=VALUE...] [-- OPTIONS]: a run of N ranks, resumed. Its exit status is left in
# NAME/status, whoever was struck in NAME/struck, how long it took from there in NAME/took (s).
strike()
{
    local name=$1 n=$2 begun=$EPOCHREALTIME status variables=()
    shift 2
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    mkdir "$name"
    cp "old.$n" "$name/net"
    echo "$n" >"$name/ranks"
    {   # the shell is not to report the killed
        (   cd "$name" || exit
            exec setsid env CRASH_CASE="$name-$$" LD_PRELOAD="$TMP/crash.so" CRASH_NOTE=struck "${variables[@]}" \
                "$train" -n "$n" "${small[@]}" --resume net --save net --trace trace --timeout 3 "${@:2}" \
                >out 2>err ) &
        echo $! >"$name/pid"
        wait $!
        status=$?
    } 2>/dev/null
    sed -i '/ devices of .* share .* cores*: /,+1d' "$name/err"     # more ranks than cores: as it may be
    echo "$status" >"$name/status"
    [ -e "$name/struck" ] && begun=$(stat -c %.Y "$name/struck")
    awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f\n", b - a }' >"$name/took"
}

# Ranks of the case, or others of its processes. (A port is a process's; a file in /dev/shm run.sh sees.)
left_of() { grep -lzxF "CRASH_CASE=$1-$$" /proc/[0-9]*/environ 2>/dev/null | tr -dc '0-9\n'; }

so()    # so WHAT COMMAND...
{
    local what=$1
    shift
    "$@" >/dev/null 2>&1 || echo "$what"
}
at_last() { for _ in {1..20}; do "$@" && return; sleep 0.1; done; false; }
nothing_left() { [ -z "$(left_of "$1")" ]; }
between() { awk -v least="$1" -v x="$2" -v most="$3" 'BEGIN { exit !(least <= x && x <= most) }'; }
only_files() { ! ls "$1" | grep -vxE 'net|net.best|out|err|trace|struck|pid|ranks|status|took'; }

# is_over NAME STATUS SECONDS [LEAST]: it ended with this status (a pattern), soon (and not before), and left nothing.
is_over()
{
    local status took
    status=$(cat "$1/status") took=$(cat "$1/took")
    so "nobody was struck" test -s "$1/struck"
    so "exit status $status, not $2" grep -qxE "$2" "$1/status"
    so "it took $took s, not ${4:-0} to $3" between "${4:-0}" "$took" "$3"
    so "processes are left: $(left_of "$1")" at_last nothing_left "$1"
    so "files are left: $(ls "$1" | tr '\n' ' ')" only_files "$1"
}

# names NAME LINES TEXT: said in so many lines; this (a pattern) among it; and nobody else is named.
names()
{
    local lines
    lines=$(wc -l <"$1/err")
    so "it does not say: $3" grep -qE -- "$3" "$1/err"
    so "$lines lines, not $2" grep -qxE "$2" <<<"$lines"
    so "several ranks are named" [ "$(grep -c ' rank [0-9]* of ' "$1/err")" -le 1 ]
}

# The same command once more, without harm: from the old checkpoint, or the new, to the same bits.
goes_on()
{
    local n
    n=$(cat "$1/ranks")
    ( cd "$1" && "$train" -n "$n" "${small[@]}" --resume net --save net >again 2>&1 )
    so "the run does not go on: $(tail -3 "$1/again")" grep -q "^weight hash: " "$1/again"
    so "other weights in the end" [ "$(hash_of "$1/again")" = "$(cat "hash.$n")" ]
    so "something temporary is left: $(ls "$1")" not compgen -G "$1/*tmp*"
}

# --- when: as the timeline or the store shows it; the last two only in rank 0 -----------------------
declare -A moment=(
    [born]='' [set_up]='"name":"set up"' [meet]='"name":"meet the other ranks"' [store]='gloo/gradients/'
    [listen]='"name":"communication"' [broadcast]='"name":"broadcast ' [load]='"name":"load"'
    [forward]='"name":"forward"' [backward]='"name":"backward"' [all_reduce]='"name":"all_reduce '
    [optimizer]='"name":"optimizer"' [compare]='"name":"all_gather ' [end]='"name":"comm_free'
    [evaluate]='"name":"evaluate"' [save]='"name":"save"')
# The how manieth time: at the start weights are compared, too.
declare -A nth=([compare]=2)

# --- several at once -----------------------------------------------------------------------------

cases=()
at_most()
{
    local most=$1 name=$3
    shift
    while [ "$(jobs -rp | wc -l)" -ge "$most" ]; do
        wait -n
    done
    cases+=("$name")
    "$@" >"$name.verdict" 2>&1 &
}

results()
{
    local name slowest
    wait
    for name in "${cases[@]}"; do
        cat "$name.verdict" "$name/err" >output 2>/dev/null
        check "$name: $(head -1 "$name.verdict")" [ -f "$name.verdict" -a ! -s "$name.verdict" ]
    done
    slowest=$(for name in "${cases[@]}"; do echo "$(cat "$name/took") s: $name"; done | sort -rn | head -1)
    echo "${#cases[@]} cases; the slowest was over after $slowest"
    cases=()
}
