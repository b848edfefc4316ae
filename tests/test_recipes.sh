#!/usr/bin/env bash
# Each recipe is a config file. Two steps must accept it and print its settings (--print-config): the first step that
# has its options, and the last step.
. "$SRC/tests/test.sh"

for recipe in "$SRC"/recipes/*.conf; do
    name=${recipe##*/}
    for header in "# Source: " "# Published" "recipes/$name"; do
        check "$name: $header" grep -q "^#.*${header#\# }" "$recipe"
    done
    first=01_single_gpu
    grep -q '^lr-scale' "$recipe" && first=03_ddp_fork
    grep -q '^clip-norm' "$recipe" && first=05_ddp_amp
    for program in $first 07_dist_eval; do
        expect 0 "" "$BUILD/$program/train" --config "$recipe" --print-config
        cp output printed
        # 1e-4 is printed as 0.0001.
        sed '/^#/d; /^$/d; s/ = 1e-4$/ = 0.0001/; s/ = 5e-5$/ = 5e-05/' "$recipe" | sort >wanted
        check "$name: its settings" diff wanted <(grep -v '^#' printed | sort)
        expect 0 "" "$BUILD/$program/train" --config printed --print-config
        check "$name: reads back" diff printed output
    done
done
check "there are recipes" test "$passed" -gt 50

printf 'lr = 0.5\n\nepohcs = 3\n' >wrong.conf
printf 'data = synthetic\narch = lenet\ntrain-samples = 64\ntest-samples = 32\nepochs = 1\nlr = 0.5\n' >small.conf
for program in "$BUILD"/0*/train; do
    expect 2 "wrong.conf:3: unknown option 'epohcs'" "$program" --config wrong.conf --save made.st
    check "one line" test "$(wc -l <output)" = 1
    expect 0 "lr = 0.25" "$program" --lr 0.25 --config small.conf --print-config
done
check "no file was made" test ! -e made.st

expect 0 "64 + 32 images" "$BUILD/03_ddp_fork/train" -n 2 -b 16 --config small.conf --metrics run.jsonl
check "the metrics have them" grep -q '"options":{.*"arch":"lenet".*"train_samples":64.*"lr":0.5,' run.jsonl
test_done
