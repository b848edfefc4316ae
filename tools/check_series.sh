#!/usr/bin/env bash
# check_series.sh [ROOT] - holds the rules that make a step and the next one diff well. Every line that breaks
# one is named with the rule; the exit status is 1 if there are any.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
. "$root/tools/shell.sh"
. "$root/tools/steps.sh"

# From one step to the next: lines (removed and added) and hunks that may change in train.c; lines of a file
# beside it, which is read in one sitting; lines of all that is new, three such files at most.
max_changed=60 max_hunks=10 max_file=350 max_reading=750
# These have limits of their own.
limits='
spawn.c 130
ddp.c 220
launch.c 250
03_ddp_fork 580
04_ddp_launcher 580
'
optional='launch.c'     # a reader can skip it, so it does not count as reading

# A file that two neighbours have is the same in both, but for these: what the later step teaches.
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

# Reads lines "WHERE<tab>RULE".
all_broken()
{
    local where rule
    while IFS=$'\t' read -r where rule; do
        broken "$where" "$rule"
    done
}

# limit_of NAME OTHERWISE: of a file, or of a step's reading
limit_of() { awk -v name="$1" -v limit="$2" '$1 == name { limit = $2 } END { print limit }' <<<"$limits"; }

# --- one step ---------------------------------------------------------------------------------------

check_step()
{
    local step=$1 file files sources most
    for file in train.c README.md CMakeLists.txt; do
        [ -f "$step/$file" ] || broken "$step/$file" "every step has one"
    done
    mapfile -t files < <(list_sources "$step")
    sources=()
    for file in "${files[@]}"; do
        [[ $file != *.[ch] ]] || sources+=("$step/$file")
    done
    [ ${#sources[@]} -gt 0 ] || return 0
    check_text "${sources[@]}"
    for file in "${sources[@]}"; do
        most=$(limit_of "${file##*/}" $max_file)
        [[ $file == */train.c ]] || [ "$(count_lines "$file")" -le "$most" ] ||
            broken "$file:$most" "a file beside train.c is read in one sitting: at most $most lines"
    done
}

# Text that would have to change from step to step for its own sake.
check_text()
{
    all_broken < <(awk '
        function forbid(rule) {
            text = $0
            sub(/^ +/, "", text)
            print FILENAME ":" FNR "\t" rule ": " text
        }
        /^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif)([^a-z]|$)/ {
            forbid("no #if in a step: differences between backends end at the headers of common/")
        }
        /(^|[^A-Za-z0-9_.%\\-])0[1-9]_[a-z]/ || /\/\/.*[^A-Za-z0-9_.%\\-]0[1-9]([^A-Za-z0-9.]|$)/ {
            forbid("no name or number of a step in the code")
        }
        /(^|[^A-Za-z0-9_.%\\-])20[12][0-9]([^A-Za-z0-9_]|$)/ || /__(DATE|TIME|TIMESTAMP)__/ {
            forbid("no date in the code")
        }
        /^[ \t]*\/\/ +([$] |=* *(step|test): )/ || /\/\/.*(loss|acc|top1|top5|hash): +[0-9a-f]*[0-9]/ {
            forbid("no transcript of a run in the code: it stands in README.md")
        }
        /\/\/.*([Cc]hapter|[Ll]esson|[Tt]utorial)/ {
            forbid("no lesson in the code: it stands in README.md")
        }' "$@")
}

# --- a step and the next ------------------------------------------------------------------------------

# Files that are not sources count too: whoever finds one in two steps takes it for the same.
check_frozen()
{
    local a=$1 b=$2 path file
    for path in "$b"/*; do
        file=${path##*/}
        case $file in train.c | README.md | CMakeLists.txt | *.svg | *.png) continue ;; esac
        if [ ! -f "$a/$file" ] || cmp -s "$a/$file" "$path" || grep -qxF "$path" <<<"$taught"; then
            continue
        fi
        broken "$path:$(first_difference "$a/$file" "$path")" "must be the same as $a/$file, to the byte: it is" \
            "not what this step teaches (tools/propagate carries a mend into later steps)"
    done
}
first_difference() { diff "$1" "$2" | sed -nE '1s/.*[acd]([0-9]+).*/\1/p'; }

# Where in the later file the changes become too many.
check_budget()
{
    local a=$1 b=$2
    all_broken < <(unified_diff "$a" "$b" | awk -v file="$b" -v max_changed=$max_changed -v max_hunks=$max_hunks '
        function tell(rule) { print file ":" line "\tfrom step to step at most " rule }
        /^@@ / { line = substr($3, 2) + 0; hunks++; first = 1 }
        hunks && /^[-+]/ {
            if (first && hunks == max_hunks + 1)
                tell(max_hunks " hunks")
            if (++changed == max_changed + 1)
                tell(max_changed " changed lines, removed and added")
            first = 0
        }
        hunks && /^[ +]/ { line++ }')
}

# Lines that are only indented anew, and those that went from one place to another.
check_noise()
{
    local a=$1 b=$2
    all_broken < <({ diff -d -U0 "$a" "$b" || true; } | awk -v a="$a" -v b="$b" '
        /^@@ / { hunk++; old = substr($2, 2) + 0; new = substr($3, 2) + 0; next }
        !hunk { next }
        function tell(j, rule) { print b ":" is_at[j] "\t" rule; is[j] = "" }
        {
            text = substr($0, 2)
            gsub(/[ \t]/, "", text)
        }
        /^-/ { was[++removed] = text; was_at[removed] = old++; was_in[removed] = hunk }
        /^\+/ { is[++added] = text; is_at[added] = new++; is_in[added] = hunk }
        END {
            for (i = 1; i <= removed; i++)
                for (j = 1; j <= added; j++)
                    if (is[j] == was[i] && was[i] ~ /[A-Za-z0-9]/) {
                        from = a ":" was_at[i]
                        if (is_in[j] == was_in[i])
                            tell(j, "only its white space is not that of " from ": nothing is indented anew")
                        else if (length(was[i]) > 20)
                            tell(j, "moved here from " from ": what stays, stays where it is")
                    }
        }')
}

list_banners() { grep -E '^// (====|----) ' "$1" || true; }
check_banners()
{
    local a=$1 b=$2 banner
    while read -r banner; do
        broken "$a:$(grep -nxF -- "$banner" "$a" | head -1 | cut -d: -f1)" \
            "$b must have this banner too, in the same order: $banner"
    done < <(diff -d <(list_banners "$a") <(list_banners "$b") | sed -n 's/^< //p')
}

list_functions() { sed -nE '/;$/d; s/^[A-Za-z_][^=(]*[ *]([A-Za-z0-9_]+)\(.*/\1/p' "$1"; }
check_functions()
{
    local a=$1 b=$2 name
    while read -r name; do
        broken "$b:$(grep -nE "^[A-Za-z_].*[ *]$name\(" "$b" | head -1 | cut -d: -f1)" \
            "$name does not stand in the order of $a's functions"
    done < <(diff -d <(list_functions "$a" | grep -xF -f <(list_functions "$b")) \
                     <(list_functions "$b" | grep -xF -f <(list_functions "$a")) | sed -n 's/^> //p')
}

check_pair()
{
    local a=$1 b=$2 file reading=0 removed added hunks most
    check_frozen "$a" "$b"
    for file in $(list_sources "$b"); do
        if [[ $file == CMakeLists.txt || $file == "$optional" ]] || cmp -s "$a/$file" "$b/$file"; then
            continue
        elif [ ! -f "$a/$file" ]; then
            reading=$((reading + $(count_lines "$b/$file")))
        else
            read -r removed added hunks < <(unified_diff "$a/$file" "$b/$file" | count_changes)
            reading=$((reading + removed + added))
            check_noise "$a/$file" "$b/$file"
        fi
    done
    most=$(limit_of "$b" $max_reading)
    [ $reading -le "$most" ] || broken "$b" "$reading lines to read that are not in $a: at most $most"
    if [ -f "$a/train.c" ] && [ -f "$b/train.c" ]; then
        check_budget "$a/train.c" "$b/train.c"
        check_banners "$a/train.c" "$b/train.c"
        check_functions "$a/train.c" "$b/train.c"
        echo "$a to $b: train.c $(describe_changes "$a/train.c" "$b/train.c"); $reading lines to read in all"
    fi
}

# --- the series -----------------------------------------------------------------------------------------

[ $# -le 1 ] || die_usage "check_series.sh: one directory at most" "check_series.sh [ROOT]"
cd "${1:-$root}"
[ -n "$(list_steps)" ] || die "no steps in $PWD"
before=
for step in $(list_steps); do
    check_step "$step"
    [ -z "$before" ] || check_pair "$before" "$step"
    before=$step
done
"$root/tools/readme_diff.sh" --check "$PWD" || failures=$((failures + 1))
[ $failures = 0 ]
