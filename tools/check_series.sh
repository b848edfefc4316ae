#!/usr/bin/env bash
# check_series.sh [ROOT] - checks the rules that keep the diffs between steps readable. Also checks the pages with
# readme_diff.sh. Prints the size of each diff, and each place that breaks a rule, with the rule. Returns 1 if a rule is
# broken, or if readme_diff.sh fails.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
. "$root/tools/shell.sh"
. "$root/tools/steps.sh"

# Limits: from one step to the next, changed lines (removed plus added) and hunks of train.c; the length of every other
# .c and .h file; the lines of a step's new files and of its diffs from the step before.
max_changed=60 max_hunks=10 max_file=350 max_reading=750
# Files and steps with different limits.
limits='
02_data_parallel 455
spawn.c 150
ddp.c 100
ddp_naive.c 60
amp.c 175
launch.c 303
03_ddp_fork 550
03_ddp_fork:changed 84
03_ddp_fork:hunks 14
05_ddp_amp 380
05_ddp_amp:changed 50
05_ddp_amp:hunks 16
04_ddp_launcher 350
04_ddp_launcher:hunks 12
06_slurm 400
07_dist_eval 455
'
optional='launch.c'     # a reader can skip it, so it does not count as reading

# Files that a step may change because it teaches them, besides train.c, README.md, CMakeLists.txt and pictures.
taught='
06_slurm/rendezvous.c
06_slurm/rendezvous.h
'

failures=0

# broken WHERE RULE...
broken()
{
    echo "$1: ${*:2}"
    failures=$((failures + 1))
}

# limit_of NAME DEFAULT: prints the limit from the table above. NAME is a file, STEP, STEP:changed or STEP:hunks.
limit_of() { awk -v name="$1" -v limit="$2" '$1 == name { limit = $2 } END { print limit }' <<<"$limits"; }

check_step()
{
    local step=$1 file most line
    for file in train.c README.md CMakeLists.txt; do
        [ -f "$step/$file" ] || broken "$step/$file" "every step has one"
    done
    for file in "$step"/*.[ch]; do
        most=$(limit_of "${file##*/}" $max_file)
        [[ $file == */train.c ]] || [ "$(count_lines "$file")" -le "$most" ] ||
            broken "$file:$most" "a file beside train.c is read in one sitting: at most $most lines"
    done
    while IFS= read -r line; do
        broken "$line" "no #if in a step, and no name or number of one, no date, no transcript of a run"
    done < <(grep -nHE -e '^\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b' -e '(^|[^A-Za-z0-9_.%\-])0[1-9]_[a-z]' \
        -e '//.*[^A-Za-z0-9_.%\-]0[1-9]([^A-Za-z0-9.]|$)' -e '(^|[^A-Za-z0-9_.%\-])20[12][0-9]([^A-Za-z0-9_]|$)' \
        -e '^\s*// +(\$ |=* *(step|test): )' "$step"/*.[ch])
}

check_pair()
{
    local a=$1 b=$2 file reading=0 removed added hunks most most_hunks
    # All files, not only sources: readers expect files with equal names to have equal contents.
    for file in "$b"/*; do
        file=${file##*/}
        case $file in train.c | README.md | CMakeLists.txt | *.svg | *.png) continue ;; esac
        if [ -f "$a/$file" ] && ! cmp -s "$a/$file" "$b/$file" && ! grep -qxF "$b/$file" <<<"$taught"; then
            broken "$b/$file:$(diff "$a/$file" "$b/$file" | sed -nE '1s/.*[acd]([0-9]+).*/\1/p')" \
                "must be the same as" \
                "$a/$file, to the byte: this step does not teach it (tools/propagate carries a change into later steps)"
        fi
    done
    for file in $(list_sources "$b"); do
        if [ "$file" = CMakeLists.txt ] || [ "$file" = "$optional" ]; then
            continue
        elif [ ! -f "$a/$file" ]; then
            reading=$((reading + $(count_lines "$b/$file")))
        else
            read -r removed added hunks < <(unified_diff "$a/$file" "$b/$file" | count_changes)
            reading=$((reading + removed + added))
        fi
    done
    most=$(limit_of "$b" $max_reading)
    [ $reading -le "$most" ] || broken "$b" "$reading lines to read that are not in $a: at most $most"
    read -r removed added hunks < <(unified_diff "$a/train.c" "$b/train.c" | count_changes)
    most=$(limit_of "$b:changed" $max_changed)
    most_hunks=$(limit_of "$b:hunks" $max_hunks)
    if [ $((removed + added)) -gt "$most" ] || [ "$hunks" -gt "$most_hunks" ]; then
        broken "$b/train.c" "$((removed + added)) lines changed in $hunks hunks: at most $most in $most_hunks"
    fi
    echo "$a to $b: train.c $(describe_changes "$a/train.c" "$b/train.c"); $reading lines to read in all"
}

[ $# -le 1 ] || die_usage "check_series.sh: one directory at most" "check_series.sh [ROOT]"
cd "${1:-$root}"
before=
for step in $(list_steps); do
    check_step "$step"
    [ -z "$before" ] || check_pair "$before" "$step"
    [ "$step" = "$branch" ] || before=$step
done
[ -n "$before" ] || die "no steps in $PWD"
"$root/tools/readme_diff.sh" --check "$PWD" || failures=$((failures + 1))
[ $failures = 0 ]
