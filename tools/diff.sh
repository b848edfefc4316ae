#!/usr/bin/env bash
# diff.sh - ./ddp diff A B [FILE...]: what there is to read in step B for somebody who knows step A. The
# sources, or the files that are named (README.md is compared only then).
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
. "$root/tools/shell.sh"
. "$root/tools/steps.sh"
cd "$root"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1     # no colors or other tools: plain git
unset GIT_EXTERNAL_DIFF

bold='' plain='' color=0         # here for stdout
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
    bold=$'\e[1m' plain=$'\e[0m' color=1
fi

# "sampler.c (90 lines), ddp.c (280 lines)", of a step.
with_lines()
{
    local step=$1 file list=
    shift
    for file; do
        list+=", $file ($(count_lines "$step/$file") lines)"
    done
    echo "${list#, }"
}

show_changes()
{
    local old=$1 new=$2 command=(diff -d -u)
    if have git; then       # places hunks a little better
        command=(git --no-pager diff --no-index --no-prefix --minimal)
    fi
    show "${command[@]}" "$old" "$new"
    { "${command[@]}" "$old" "$new" || [ $? = 1 ]; } |
        sed -E 's/^((---|\+\+\+) [^\t]*)\t.*/\1/' | name_hunks "$old" "$new" $color
    echo
}

a=$1 b=$2
shift 2
for file; do
    [ -f "$a/$file" ] || [ -f "$b/$file" ] || die_usage "diff: neither $a nor $b has a file '$file'"
done
compare_steps "$a" "$b" "$@"

for file in "${removed[@]}"; do
    echo "only in $a: $file ($(count_lines "$a/$file") lines)"
done
for file in "${added[@]}"; do
    echo "new in $b: $file ($(count_lines "$b/$file") lines)"
done
[ ${#same[@]} = 0 ] || echo "the same in both: $(with_lines "$b" "${same[@]}")"
for file in "${changed[@]}"; do
    show_changes "$a/$file" "$b/$file"
done
for file in "${changed[@]}"; do
    echo "$bold$file$plain: $(describe_changes "$a/$file" "$b/$file")"
done
