# shellcheck shell=bash disable=SC2154
# play.sh - for scripts that start ranks which do not train but play parts: tests/tool_rank.c. The script sets $launch
# and $rank, those two programs. Output is in $TMP/output.
cd "$TMP" || exit 1
ulimit -c 0
unset DDP_TOKEN OMP_NUM_THREADS GOMP_SPINCOUNT OMP_WAIT_POLICY

# The players of this script: its scratch directory is in their environment.
left() { pgrep -f "^$rank " | while read -r pid; do grep -qszxF "TMP=$TMP" "/proc/$pid/environ" && echo "$pid"; done; }
nothing_left() { [ -z "$(left)" ]; }
at_last() { for _ in {1..50}; do "$@" && return; sleep 0.1; done; false; }
says() { grep -qE -- "$1" "$TMP/output"; }
says_times() { [ "$(grep -cE -- "$2" "$TMP/output")" = "$1" ]; }
# within LEAST MOST: so many seconds after $begun.
within() { awk -v a="$begun" -v b="$EPOCHREALTIME" -v least="$1" -v most="$2" \
    'BEGIN { print b - a, "s"; exit !(least <= b - a && b - a <= most) }'; }

# begin COMMAND...: in the background; $pid, $begun.
begin()
{
    : >"$TMP/output"
    begun=$EPOCHREALTIME
    "$@" >"$TMP/output" 2>&1 </dev/null &
    pid=$!
}
# ends STATUS: what was begun.
ends() { local status; wait "$pid" 2>/dev/null; status=$?; echo "status $status"; [ $status = "$1" ]; }
ready() { at_last says_times "$1" '^(\[rank [0-9]+\] )?ready: '; }              # so many ranks
pid_of() { sed -n "s/^ready: rank $1, pid //p" "$TMP/output"; }
