#!/usr/bin/env bash
# author.sh - commands for writing exercises; exercises/README.md explains them.
#
#   author.sh new ID_name STEP    make a folder to fill in, and a copy of the step to break: exercises-work/author-ID
#                                 (STEP none: the folder finished/ to fill in, and no copy)
#   author.sh edit ID             make that copy again: the step with change.patch
#   author.sh save ID             write change.patch, from the step to that copy
#   author.sh edit|save ID --solution     the same for solution.patch, if the step is not the solution
#   author.sh edit|save ID --wrong NAME   the same for wrong/NAME.patch, from the solution to a wrong one
#   author.sh prove ID            what CI requires: the check fails unsolved with the texts of `# fails with:`, passes
#                                 solved, and refuses each patch in wrong/
#
# BUILD: the cpu/ folder of the build that prove uses (build/cpu). TMP: where prove makes a scratch folder (/tmp).
#
# shellcheck disable=SC2128  # step_command's `command` is an array
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
root=${self%/exercises/*}
command=${1:-help} typed=${2:-} more=${3:-} name=${4:-}
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
    --wrong)
        [ -n "$name" ] || die_usage "author.sh: --wrong needs a name"
        broken+=-wrong-$name change=$exercise/wrong/$name.patch ;;
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
    [[ $name =~ ^(0[1-7]|gpu)-[0-9]+_[a-z0-9_]+$ ]] || die_usage "a name is like 03-4_last_bucket, not '$name'"
    [ -f "$root/$step/train.c" ] || [ "$step" = none ] || die_usage "there is no step '$step'"
    [ -z "$(find "$exercises" -maxdepth 1 -name "${name%%_*}_*")" ] || die_usage "${name%%_*} exists already"
    mkdir "$folder"
    template task.md | sed "s/^- step: .*/- step: $step/; /^- files: /d" >"$folder/task.md"
    template check.sh >"$folder/check.sh"
    : >"$folder/change.patch"
    more=
    choose "$name"
    if [ "$step" = none ]; then
        mkdir "$source"
        say "write the finished program in $(here "$source"), then: exercises/author.sh edit $id"
        return
    fi
    set_patch
    cmd_edit
}

# copy_base DIRECTORY: what the patch starts from
copy_base() { if [ "$more" = --wrong ]; then copy_solution "$1"; else copy_step "$1"; fi; }

cmd_edit()
{
    [ ! -e "$broken" ] || die "$broken exists already" "it may contain work that you have not saved; remove it"
    copy_base "$broken"
    [ ! -s "$change" ] || apply "$change" "$broken"
    say "edit $(here "$broken"), then: exercises/author.sh save $id${more:+ $more}${name:+ $name}"
}

cmd_save()
{
    [ -d "$broken" ] || die "$broken does not exist" "exercises/author.sh edit $id"
    local folders words=''
    folders=$(mktemp -d)
    copy_base "$folders/a"
    ln -s "$broken" "$folders/b"
    [ "$more" != --wrong ] ||
        words=$(grep '^# ' "$change" 2>/dev/null || echo "# refused with: the sentence that the check must print")
    mkdir -p "${change%/*}"
    { [ -z "$words" ] || echo "$words"; diff_copies "$folders" a b; } >"$folders/patch"
    mv "$folders/patch" "$change"
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
    [ "${id%%-*}" = "${program%%[_-]*}" ] || failed "$id is of step ${id%%-*}, not of $step"
    [ -n "$(task_of "$exercise")" ] || failed "task.md: no task"
    for text in "Hint 1" "Hint 2" Solved Answer; do
        [ -n "$(section "$exercise" "$text")" ] || failed "task.md: no '## $text'"
    done
    [[ $(section "$exercise" Solved) == *"Question: "*\? ]] || failed "task.md: '## Solved' ends with no question"
    wanted=$(sed -n 's/^# fails with: *//p' "$exercise/check.sh")
    [ -n "$wanted" ] || failed "check.sh: no line '# fails with: ...'"
    ! grep -rqF "TODO($id)" "$source" || failed "the finished program contains TODO($id)"
    text=$(find "$exercise" -mindepth 1 -printf '%P\n' |
        grep -vE '^(task\.md|change\.patch|solution\.patch|check\.(sh|c))$' |
        grep -vE '^(wrong|wrong/[a-z0-9_]+\.patch|finished|finished/.+\.[ch])$' || true)
    [ -z "$text" ] || failed "$text is none of the files that exercises/README.md names"
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
    (check) >"$scratch/solved" || { cat "$scratch/solved"; failed "the solution does not pass"; }
    cat "$scratch/solved"
    for ((line = 0; line < 4; line++)); do cmd_hint; done >"$scratch/hints" 2>&1
    cmd_answer >"$scratch/answer"
    line=$(section "$exercise" Answer | head -1)
    grep -qxF -- "$line" "$scratch/answer" || failed "the answer is not printed"
    ! grep -lxF -- "$line" "$scratch"/{task,hints,unsolved,solved} || failed "the answer is printed unasked"
    print_seconds
    for wrong in "$exercise"/wrong/*.patch; do
        [ ! -f "$wrong" ] || refuse "$wrong"
    done
}

# refuse PATCH: the check must not accept the solution with PATCH, and must print the words in the patch's first line.
refuse()
{
    local words
    words=$(sed -n '1s/^# refused with: *//p' "$1")
    [ -n "$words" ] || failed "$1: its first line is not '# refused with: ...'"
    echo "--- wrong: $(basename "$1" .patch)"
    rm -rf "$copy"
    copy_solution "$copy"
    apply "$1" "$copy"
    ! (check) >"$scratch/wrong" 2>&1 || { cat "$scratch/wrong"; failed "the check accepts it"; }
    sed '/^  \(✓\|ok\) /d' "$scratch/wrong" | grep -F -- "$words" || {
        cat "$scratch/wrong"
        failed "the check does not print: $words"
    }
    ! grep -qF "does not build" "$scratch/wrong" || failed "it does not build"
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
