#!/usr/bin/env bash
# author.sh - for those who write exercises: README.md, further down, says how.
#
#   author.sh new ID_name STEP    a folder to fill in, and a copy of the step to spoil: exercises-work/author-ID
#   author.sh edit ID             that copy again: the step with change.patch
#   author.sh save ID             change.patch, from the step to that copy
#   author.sh edit|save ID --solution     the same for solution.patch, where the step is not the solution
#   author.sh prove ID            what CI asks of every exercise: fails unsolved as it says, passes solved
#
# prove: BUILD is the cpu/ folder of a build, where it is not build/cpu; TMP a scratch directory.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
root=${self%/exercises/*}
command=${1:-help} typed=${2:-} more=${3:-}
scratch=
if [ "$command" = prove ]; then
    scratch=$(mktemp -d "${TMP:-${TMPDIR:-/tmp}}/prove.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    export DDP_EXERCISES_WORK=$scratch/work
fi
[ -z "${BUILD:-}" ] || export DDP_BUILD=${BUILD%/cpu}
. "$root/tools/exercise.sh" functions

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$self"; }

# --- writing ----------------------------------------------------------------------------------------

set_patch()
{
    spoiled=$work/author-$id change=$exercise/change.patch
    case $more in
    '') ;;
    --solution) spoiled+=-solution change=$exercise/solution.patch ;;
    *) die_usage "author.sh: unknown option $more" ;;
    esac
}

cmd_new()
{
    local name=$typed step=$more
    [[ $name =~ ^[0-9][0-9]-[0-9]+_[a-z0-9_]+$ ]] || die_usage "a name is like 03-4_last_bucket, not '$name'"
    [ -f "$root/$step/train.c" ] || die_usage "there is no step '$step'"
    [ ! -e "$exercises/$name" ] || die_usage "$exercises/$name is there already"
    [ -z "$(find "$exercises" -maxdepth 1 -name "${name%%_*}_*")" ] || die_usage "${name%%_*} is taken"
    mkdir "$exercises/$name"
    cat >"$exercises/$name/task.md" <<END
# The symptom, in about five words

- step: $step
- difficulty: 1
- minutes: 10

What you see, what should happen, and what to do.

## Hint 1

Where to look.

## Hint 2

How to think about it. The last hint may be the answer in words.

## Solved

What the mistake teaches, in two sentences.
Question: what should the learner think about next?
END
    cat >"$exercises/$name/check.sh" <<END
# shellcheck shell=bash disable=SC2034,SC2154
# What the check does, and why that proves it.
# fails with: what the check prints until the learner has solved it
build
learner two 2
END
    : >"$exercises/$name/change.patch"
    more=
    choose "$name"
    set_patch
    cmd_edit
}

cmd_edit()
{
    [ ! -e "$spoiled" ] || die "$spoiled is there already" "it may hold what you have not saved; remove it"
    local patch=$change
    [ -s "$patch" ] || patch=
    copy_step "$spoiled" "$patch"
    say "edit $(here "$spoiled"), then: exercises/author.sh save $id${more:+ $more}"
}

cmd_save()
{
    [ -d "$spoiled" ] || die "$spoiled is not there" "exercises/author.sh edit $id"
    local file a b extra
    extra=" $(field "$exercise" files) "
    while read -r file; do
        a=$root/$step/$file b=$spoiled/$file
        [[ $extra != *"/$file "* ]] || a=$root/$(tr ' ' '\n' <<<"$extra" | grep "/$file$")
        if [ ! -f "$a" ]; then a=/dev/null; elif [ ! -f "$b" ]; then b=/dev/null; fi
        diff -d -U3 --label "$([ "$a" = /dev/null ] && echo "$a" || echo "a/$file")" \
            --label "$([ "$b" = /dev/null ] && echo "$b" || echo "b/$file")" "$a" "$b" || [ $? = 1 ]
    done < <(for file in "$root/$step" "$spoiled"; do
                 find "$file" -maxdepth 1 \( -name '*.[ch]' -o -name '*.sbatch' -o -name '*.txt' \) ! -name CMakeLists.txt -printf '%f\n'
             done | sort -u) >"$change.new"
    mv "$change.new" "$change"
    say "$(grep -c '^@@' "$change" || true) changed places in $(here "$change")"
}

# --- proving ----------------------------------------------------------------------------------------

failed() { say "$id: $1"; exit 1; }

check_words()
{
    local text
    text=$(sed -n '2p' "$exercise/task.md")
    [ -n "$(title_of "$exercise")" ] || failed "task.md: no title"
    [ -z "$text" ] || failed "task.md: '# Title' is the first line, and the second is empty"
    [[ $(field "$exercise" difficulty) =~ ^[123]$ ]] || failed "task.md: '- difficulty:' is 1, 2 or 3"
    [[ $(field "$exercise" minutes) =~ ^[1-9][0-9]*$ ]] || failed "task.md: '- minutes:' is a number"
    [ "${id%%-*}" = "${step%%_*}" ] || failed "$id is of step ${id%%-*}, not of $step"
    [ -n "$(task_of "$exercise")" ] || failed "task.md: no task"
    for text in "Hint 1" "Hint 2" Solved; do
        [ -n "$(section "$exercise" "$text")" ] || failed "task.md: no '## $text'"
    done
    wanted=$(sed -n 's/^# fails with: *//p' "$exercise/check.sh")
    [ -n "$wanted" ] || failed "check.sh: no line '# fails with: ...'"
    ! grep -rqF "TODO($id)" "$root/$step" || failed "TODO($id) stands in the step itself"
    text=$(find "$exercise" -mindepth 1 -printf '%f\n' |
        grep -vE '^(task\.md|change\.patch|solution\.patch|check\.(sh|c))$' || true)
    [ -z "$text" ] || failed "no exercise has $text: only task.md, change.patch, check.sh, check.c, solution.patch"
}

tell_times()
{
    times >"$scratch/times"
    awk -v id="$id" '{ for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); seconds += 60 * t[1] + t[2] } }
        END { printf "%s: proven; %.1f s of one core\n", id, seconds }' "$scratch/times"
}

cmd_prove()
{
    local line=0
    check_words
    [ -f "$build/libddp_cpu.a" ] || die "nothing is built in $build" "BUILD=.../cpu exercises/author.sh prove $id"
    cmd_start >"$scratch/task"
    [ -n "$(places)" ] || failed "the copy says TODO($id) nowhere"
    echo "--- unsolved"
    if (check) >"$scratch/unsolved" 2>&1; then
        cat "$scratch/unsolved"
        failed "the check passes, but nothing was done"
    fi
    cat "$scratch/unsolved"
    ! grep -qF "does not build" "$scratch/unsolved" || failed "what a learner begins with must build"
    while read -r line; do
        grep -qF -- "$line" "$scratch/unsolved" || failed "unsolved, it does not say: $line"
    done <<<"$wanted"
    [ ! -e "$state/solved" ] || failed "it counts as solved"
    echo "--- solved"
    rm -rf "$copy"
    copy_solution "$copy"
    (check) || failed "the solution does not pass"
    tell_times
}

case $command in
new) cmd_new ;;
edit | save | prove)
    [ -n "$typed" ] || die_usage "author.sh: which exercise?"
    choose "$typed"
    set_patch
    "cmd_$command"
    ;;
*) usage; [ "$command" = help ] || exit 2 ;;
esac
