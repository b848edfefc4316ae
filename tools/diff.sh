#!/usr/bin/env bash
# diff.sh - ./ddp diff A B [FILE...]: shows how step B differs from step A, in all sources or in the named files. Lists
# the files that only one step has, and shows the diff of each file that differs.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
. "$root/tools/shell.sh"
. "$root/tools/steps.sh"
cd "$root"

color=auto
[ -z "${NO_COLOR:-}" ] || color=never

# "only in STEP: ddp.c (220 lines), ..."
list() # list WHAT STEP FILE...
{
    local file text=
    for file in "${@:3}"; do
        text+=", $file ($(counted "$(count_lines "$2/$file")" line))"
    done
    [ $# = 2 ] || echo "$1: ${text#, }"
}

a=$1 b=$2
shift 2
for file; do
    [ -f "$a/$file" ] || [ -f "$b/$file" ] || die_usage "diff: neither $a nor $b has a file '$file'"
done
compare_steps "$a" "$b" "$@"
list "only in $a" "$a" "${removed[@]}"
list "new in $b" "$b" "${added[@]}"
list "the same in both" "$b" "${same[@]}"
for file in "${changed[@]}"; do
    unified_diff "$a/$file" "$b/$file" --color=$color
    echo
done
for file in "${changed[@]}"; do
    echo "$file: $(describe_changes "$a/$file" "$b/$file")"
done
