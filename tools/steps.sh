# shellcheck shell=bash disable=SC2154  # root: where the tools are, from who sources this
# steps.sh - what the tools that compare the steps share: which files a step has, how two steps differ.

# The steps below the current directory, in order.
list_steps()
{
    local step
    for step in [0-9][0-9]_*/; do
        [ ! -d "$step" ] || echo "${step%/}"
    done
}

# What there is to read in a step, train.c last: the files it is made of are what it uses.
list_sources()
{
    local file LC_ALL=C
    for file in "$1"/CMakeLists.txt "$1"/*.sbatch "$1"/*.[ch]; do
        [ ! -f "$file" ] || [ "$file" = "$1/train.c" ] || echo "${file##*/}"
    done
    [ ! -f "$1/train.c" ] || echo train.c
}

count_lines() { wc -l <"$1" | tr -d ' '; }

# From step $1 to step $2: their sources, or the files named behind, in the arrays added, removed, same and
# changed. A file that is in neither is in none.
# shellcheck disable=SC2034  # the callers read them
compare_steps()
{
    local a=$1 b=$2 file
    shift 2
    local files=("$@")
    [ $# -gt 0 ] || mapfile -t files < <(list_sources "$a"; list_new_sources "$a" "$b")
    added=() removed=() same=() changed=()
    for file in "${files[@]}"; do
        if cmp -s "$a/$file" "$b/$file"; then
            same+=("$file")
        elif [ -f "$a/$file" ] && [ -f "$b/$file" ]; then
            changed+=("$file")
        elif [ -f "$a/$file" ]; then
            removed+=("$file")
        elif [ -f "$b/$file" ]; then
            added+=("$file")
        fi
    done
}
list_new_sources()
{
    local file
    for file in $(list_sources "$2"); do
        [ -f "$1/$file" ] || echo "$file"
    done
}

# The changes of a file, with the same bytes on every machine. -d: as few lines as can be.
unified_diff() { diff -d -U3 --label "$1" --label "$2" "$1" "$2" || [ $? = 1 ]; }

# A unified diff on stdin -> "removed added hunks".
count_changes()
{
    awk '/^@@ / { hunks++ } hunks && /^-/ { removed++ } hunks && /^\+/ { added++ }
         END { print removed + 0, added + 0, hunks + 0 }'
}

# "41 lines in 7 hunks (8 removed, 33 added)"
describe_changes()
{
    local removed added hunks
    read -r removed added hunks < <(unified_diff "$1" "$2" | count_changes)
    echo "$(counted $((removed + added)) line) in $(counted "$hunks" hunk) ($removed removed, $added added)"
}
counted() { [ "$1" = 1 ] && echo "1 $2" || echo "$1 $2s"; }

# A unified diff of two files on stdin, with the function's name behind each @@ and in color if $3 is 1.
name_hunks() { awk -v old="$1" -v new="$2" -v color="${3:-0}" -f "$root/tools/hunks.awk"; }
