#!/usr/bin/env bash
# A wrong option ends the program with exit status 2 and one line on stderr. It prints nothing on stdout and
# writes no file.
. "$SRC/tests/test.sh"
train=$BUILD/01_single_gpu/train
mkdir "$TMP/here" && cd "$TMP/here" || exit 1

# wrong LINE OPTIONS...: stderr is "train: LINE".
wrong()
{
    local line="train: $1" what
    shift
    what=$(printf "'%s' " "$@")
    "$train" --save made.safetensors --metrics made.jsonl --trace made.json "$@" \
        >"$TMP/stdout" 2>"$TMP/output" </dev/null
    check "exit status 2 of $what" test $? = 2
    check "$what prints '$line'" test "$(cat "$TMP/output")" = "$line"
    check "$what prints nothing on stdout" test ! -s "$TMP/stdout"
    check "$what makes no file" test -z "$(ls -A)"
}

wrong "--warmup: '100stepss' is neither epochs, such as 0.5, nor steps, such as 100steps" --warmup 100stepss
wrong "--block: has no effect without a text, such as --data text:FILE" --block 40
wrong "--data: only --arch gpt learns a text, such as words" --data words
wrong "--resume: cannot be combined with --init: both load weights" --resume a --init b

check "01: --help fits a screen" test "$("$train" --help | wc -l)" -le 30
check "07: at most 60 options" \
    test "$("$BUILD/07_dist_eval/train" --help all | grep -cE '^(  -., |      )--')" -le 60

# A program that is started with closed stdin, stdout and stderr must not print into a file or socket of its run.
small=(-a lenet --data synthetic --train-samples 64 --test-samples 16 --threads 1 -b 16 --epochs 1 -p 1)
"$BUILD/04_ddp_launcher/launch" -n 2 -- "$BUILD/04_ddp_launcher/train" "${small[@]}" --metrics "$TMP/metrics" \
    --trace "$TMP/trace" <&- >&- 2>&-
check "closed: it trains" test $? = 0
check "closed: there are events" test -s "$TMP/metrics" -a -s "$TMP/trace"
check "closed: only events in its files" not grep -qvE '^(\{.*\},?|\[)$' "$TMP/metrics" "$TMP/trace"

test_done
