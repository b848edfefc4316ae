# shellcheck shell=bash
# steps.sh - shared by the tools that compare steps: which files a step has, and how two steps differ.

# A dead end: the step after it builds on the step before it.
# shellcheck disable=SC2034  # the tools read it
branch=02_data_parallel

# The steps below the current directory, in order.
list_steps()
{
    local step
    for step in [0-9][0-9]_*/; do
        [ ! -d "$step" ] || echo "${step%/}"
    done
}

# The names of the source files in these steps, each once. train.c is last, because it uses most of the others.
list_sources()
{
    (shopt -s nullglob && for step; do printf '%s\n' "$step"/{CMakeLists.txt,*.sbatch,*.[ch]}; done) |
        sed 's,.*/,,' | LC_ALL=C sort -u |
            awk '$0 == "train.c" { last = $0; next } { print } END { if (last) print last }'
}

count_lines() { wc -l <"$1" | tr -d ' '; }

# compare_steps A B [FILE...]: sorts the sources of both steps, or these files, into the arrays added, removed, same and
# changed.
# shellcheck disable=SC2034  # the callers read them
compare_steps()
{
    local a=$1 b=$2 file files=("${@:3}")
    [ $# -gt 2 ] || mapfile -t files < <(list_sources "$a" "$b")
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

# unified_diff A B [DIFF OPTIONS]: prints how file B differs from file A, with the same bytes on every machine. -d makes
# the diff as short as possible. In C files, a hunk's line "@@ ... @@" also names the function or section.
unified_diff()
{
    { diff -d -U3 -F '^\([A-Za-z_].*[^;]$\|// [=-]\{4\}\)' --label "$1" --label "$2" "$@" || [ $? = 1 ]; } |
        sed -E '/^@@/s/[ -]+$//'
}

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
