# shellcheck shell=bash disable=SC2154
# play.sh - for tests whose ranks do not train but follow rules: tests/tool_rank.c. The test sets $launch to
# 04's launch, and $rank to tool_rank. Output is in $TMP/output.
ulimit -c 0
unset DDP_TOKEN OMP_NUM_THREADS GOMP_SPINCOUNT OMP_WAIT_POLICY

# The ranks of this test: they have its scratch directory in their environment.
left() { pgrep -f "^$rank " | while read -r pid; do grep -qszxF "TMP=$TMP" "/proc/$pid/environ" && echo "$pid"; done; }
nothing_left() { [ -z "$(left)" ]; }
at_last() { until_so 20 "$@"; }
says() { grep -qE -- "$1" "$TMP/output"; }
says_times() { [ "$(grep -cE -- "$2" "$TMP/output")" = "$1" ]; }
# within LEAST MOST: between LEAST and MOST seconds have passed since $begun.
within() { awk -v a="$begun" -v b="$EPOCHREALTIME" -v least="$1" -v most="$2" \
    'BEGIN { print b - a, "s"; exit !(least <= b - a && b - a <= most) }'; }

# begin COMMAND...: starts it in the background; sets $pid and $begun.
begin()
{
    : >"$TMP/output"
    begun=$EPOCHREALTIME
    "$@" >"$TMP/output" 2>&1 </dev/null &
    pid=$!
}
ends() { local status; wait "$pid" 2>/dev/null; status=$?; echo "status $status"; [ $status = "$1" ]; }
ready() { at_last says_times "$1" '^(\[rank [0-9]+\] )?ready: '; }              # ready N: waits for N ranks
pid_of() { sed -n "s/^ready: rank $1, pid //p" "$TMP/output"; }
