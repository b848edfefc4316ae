#!/usr/bin/env bash
# ctest: TIMEOUT 900
# ./ddp exercise: the output and the files of its commands, in a copy of the tree whose path has a space.
# shellcheck disable=SC2317  # expect and check call the functions
. "$SRC/tests/test.sh"
tree="$TMP/a tree"
mkdir "$tree" "$tree/elsewhere"
cp -a "$SRC/ddp" "$SRC/tools" "$SRC/exercises" "$SRC"/0[1-7]_* "$tree"
ln -s "$SRC/common" "$SRC/docs" "$tree"
export DDP_BUILD=${BUILD%/cpu}
work=$tree/exercises-work
cd "$tree/elsewhere" || exit 1
exercise() { ../ddp exercise "$@"; }
below() { awk -v head="## $1" 'on && NF { print; exit } $0 == head { on = 1 }' ../exercises/03-1_*/task.md; }

each_has() { for folder in ../exercises/*-*/; do [ -s "$folder/$1" ] || { echo "$folder"; return 1; }; done; }
for file in task.md change.patch check.sh; do
    check "each exercise has $file" each_has $file
done

# For each exercise of a step, finds the first README, from that step on, that shows at least a quarter of the solution.
# Before the solution's first line, this README or an earlier one must have a Stop for the exercise.
solution_lines()
{
    if [ -f "$1/solution.patch" ]; then
        sed -n 's/^+ *\(.\{19,\}\)/\1/p' "$1/solution.patch"
    else
        sed -n 's/^- *\(.\{19,\}\)/\1/p' "$1/change.patch" | grep -v '^-- '
    fi | sort -u
}
shown_without_stop()
{
    local folder page step id shown before
    for folder in "$SRC"/exercises/0*/; do
        solution_lines "$folder" >lines
        step=$(sed -n 's/^- step: *//p' "$folder/task.md") id=$(basename "$folder" | cut -d_ -f1)
        [ -s lines ] || continue
        before=(/dev/null)
        for page in "$SRC"/0[1-7]_*/README.md; do
            [[ ! ${page#"$SRC/"} < $step ]] || { before+=("$page"); continue; }
            shown=$(grep -oFf lines "$page" | sort -u | wc -l)
            [ "$shown" -ge $((($(wc -l <lines) + 3) / 4)) ] || { before+=("$page"); continue; }
            grep -nFf lines "$page" | head -1 | cut -d: -f1 >first
            { cat "${before[@]}"; head -"$(cat first)" "$page"; } |
                grep "^\*\*Stop\. Do " | grep -qw -- "$id" ||
                echo "${page#"$SRC/"}:$(cat first): the answer to $id, without a Stop for it before"
            break
        done
    done
}
check "a page says Stop before it shows an answer" diff <(shown_without_stop) /dev/null


expect 2 "there is no exercise '03-99'" exercise start 03-99
check "none of this started anything" test ! -e "$work"

expect 0 "  03-1   -        easy" exercise list
expect 0 "0 of $(find "$tree/exercises" -name task.md | wc -l) solved" exercise list
expect 0 "exercises-work/03-1/train.c:" exercise start 3-1
expect 0 "exercises-work/03-1/train.c:" exercise task
check "the line that it names says TODO" grep -q 'TODO(03-1)' \
    <(sed -n "$(sed -n 's/.*03-1\/train\.c://p' "$TMP/output")p" "$work/03-1/train.c")
check "the task does not show its hints" not grep -qi '^## \|sampler_set_epoch' "$TMP/output"
expect 1 "rank 0 uses the same order in several epochs" exercise check
expect 1 "03-1 is not solved yet, so its answer stays hidden" exercise answer
expect 0 "global batch 16" exercise run -- --arch lenet --data synthetic --train-samples 64 --epochs 1 -b 8
expect 0 "$(below "Hint 1")" exercise hint
check "the second hint is not shown yet" not grep -qF "$(below "Hint 2")" "$TMP/output"
expect 0 "$(below "Hint 2")" exercise hint 03-1_set_epoch
expect 0 "+    sampler_set_epoch(" exercise solution set_epoch
cp "$TMP/output" "$TMP/solution"
echo '// mine' >>"$work/03-1/train.c"
expect 0 "your copy was kept" exercise start 03-1
check "the learner's line is still there" grep -q '^// mine$' "$work/03-1/train.c"
check "the solution's diff can be applied" patch -s -p1 -d "$work/03-1" -i "$TMP/solution"
expect 0 "solved: 03-1" exercise check
check "what was learned is printed" grep -qF "$(below Solved)" "$TMP/output"
check "the answer is not" not grep -qF "$(below Answer)" "$TMP/output"
expect 0 "$(below Answer)" exercise answer
expect 0 "03-1   solved" exercise list
expect 0 "1 of 10 solved; 46 minutes" exercise plan
# shellcheck disable=SC2016  # for the inner bash
check "an editor's flags compile the copy" bash -c 'cd "$1" && grep -v "^-fopenmp" compile_flags.txt >flags &&
    mapfile -t flags <flags && rm flags && cc "${flags[@]}" -fsyntax-only train.c' - "$work/03-1"

echo 'int walk(' >>"$work/03-1/train.c"
expect 1 "your program does not build" exercise check 03-1
check "the compiler names the line" grep -q 'exercises-work/03-1/train.c:[0-9]*:[0-9]*: error' "$TMP/output"
expect 2 "to delete it: ./ddp exercise reset 03-1 --yes" exercise reset 03-1
expect 0 "exercises-work/03-1/train.c:" exercise reset 03-1 --yes
check "the copy is new" not grep -rq "walk(\|^// mine" "$work/03-1"

forever='{ spawn(\&job->config->spawn, \&job->world); for (;;) { } }'
sed -i "s/^static int run(Job \*job)\$/&\n$forever\nint old(Job *job);\nint old(Job *job)/" "$work/03-1/train.c"
sed -i 's/^build$/build; limit=1/' "$tree/exercises/03-1_set_epoch/check.sh"
expect 1 "did not end within 1 s: it hangs" exercise check 03-1          # run.sh checks that no process is left

test_done
