#!/usr/bin/env bash
# author.sh - commands for writing exercises; exercises/README.md explains them.
#
#   author.sh new ID_name STEP    make a folder to fill in, and a copy of the step to break: exercises-work/author-ID
#   author.sh edit ID             make that copy again: the step with change.patch
#   author.sh save ID             write change.patch, from the step to that copy
#   author.sh edit|save ID --solution     the same for solution.patch, if the step is not the solution
#   author.sh prove ID            check what CI requires: fails unsolved as announced, passes solved
#
# For prove, BUILD is the cpu/ folder of a build (build/cpu), and TMP a scratch directory.
#
# shellcheck disable=SC2128  # step_command's `command` is an array
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
    broken=$work/author-$id change=$exercise/change.patch
    case $more in
    '') ;;
    --solution) broken+=-solution change=$exercise/solution.patch ;;
    *) die_usage "author.sh: unknown option $more" ;;
    esac
}

# template FILE: the example in README.md, below the heading FILE
template()
{
    awk -v head="## $1" '/^## /{ on = $0 == head } on && /^```/{ if (inside++) exit; next } on && inside' \
        "$exercises/README.md"
}

cmd_new()
{
    local name=$typed step=$more folder=$exercises/$typed
    [[ $name =~ ^[0-9][0-9]-[0-9]+_[a-z0-9_]+$ ]] || die_usage "a name is like 03-4_last_bucket, not '$name'"
    [ -f "$root/$step/train.c" ] || die_usage "there is no step '$step'"
    [ -z "$(find "$exercises" -maxdepth 1 -name "${name%%_*}_*")" ] || die_usage "${name%%_*} exists already"
    mkdir "$folder"
    template task.md | sed "s/^- step: .*/- step: $step/; /^- files: /d" >"$folder/task.md"
    template check.sh >"$folder/check.sh"
    : >"$folder/change.patch"
    more=
    choose "$name"
    set_patch
    cmd_edit
}

cmd_edit()
{
    [ ! -e "$broken" ] || die "$broken exists already" "it may contain work that you have not saved; remove it"
    local patch=$change
    [ -s "$patch" ] || patch=
    copy_step "$broken" "$patch"
    say "edit $(here "$broken"), then: exercises/author.sh save $id${more:+ $more}"
}

cmd_save()
{
    [ -d "$broken" ] || die "$broken does not exist" "exercises/author.sh edit $id"
    local folders
    folders=$(mktemp -d)
    copy_step "$folders/a"
    ln -s "$broken" "$folders/b"
    diff_copies "$folders" a b >"$change"
    rm -r "$folders"
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
    ! grep -rqF "TODO($id)" "$root/$step" || failed "the step itself contains TODO($id)"
    text=$(find "$exercise" -mindepth 1 -printf '%f\n' |
        grep -vE '^(task\.md|change\.patch|solution\.patch|check\.(sh|c))$' || true)
    [ -z "$text" ] || failed "$text is none of task.md, change.patch, check.sh, check.c, solution.patch"
}

print_seconds()
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
    [ -n "$(places)" ] || failed "the copy contains no TODO($id)"
    echo "--- unsolved"
    if (check) >"$scratch/unsolved" 2>&1; then
        cat "$scratch/unsolved"
        failed "the check passes before anything is solved"
    fi
    cat "$scratch/unsolved"
    ! grep -qF "does not build" "$scratch/unsolved" || failed "the starting point must build"
    while read -r line; do
        grep -qF -- "$line" "$scratch/unsolved" || failed "unsolved, the check does not print: $line"
    done <<<"$wanted"
    [ ! -e "$state/solved" ] || failed "it counts as solved"
    echo "--- solved"
    rm -rf "$copy"
    copy_solution "$copy"
    (check) || failed "the solution does not pass"
    print_seconds
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
