#!/usr/bin/env bash
# repeat.sh COUNT [BUSY] - runs ./ddp test COUNT times, each in a new clone of the last commit, while BUSY endless
# loops keep processors busy. Each run adds a line to runs/record.tsv:
#
#   time, system, commit, busy loops, seconds, tests passed, tests skipped, failed tests
#
# The complete output of a run with failures is kept in runs/.
set -euo pipefail
root=$(readlink -f "$(dirname "${BASH_SOURCE[0]}")/..")
[[ ${1:-} =~ ^[0-9]+$ && ${2:-0} =~ ^[0-9]+$ ]] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" | sed '$d' >&2; exit 2; }
count=$1 busy=${2:-0}
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$scratch"' EXIT
mkdir -p "$root/runs"
for ((i = 0; i < busy; i++)); do
    while :; do :; done &
done
all_passed=true
for ((i = 1; i <= count; i++)); do
    begin=$SECONDS
    rm -rf "$scratch/clone"
    git clone -q "$root" "$scratch/clone"
    "$scratch/clone/ddp" test >"$scratch/log" 2>&1 && status=0 || status=$?
    # shellcheck disable=SC1091
    system=$(. /etc/os-release && echo "$ID $VERSION_ID")
    said() { grep -c "^ *[0-9]*/[0-9]* Test .*$1" "$scratch/log" || :; }
    failed=$(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*\*\*\*(Failed|Timeout|Exception).*/\1/p' \
        "$scratch/log" | paste -sd,)
    [ "$status" = 0 ] || failed=${failed:-status $status}
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$(date +%FT%T)" "$system" "$(git -C "$root" rev-parse --short HEAD)" \
        "$busy" $((SECONDS - begin)) "$(said Passed)" "$(said Skipped)" "${failed:-none}" |
        tee -a "$root/runs/record.tsv"
    if [ -n "$failed" ]; then
        all_passed=false
        cp "$scratch/log" "$root/runs/failed-$(date +%FT%H%M%S).log"
    fi
done
$all_passed
