#!/usr/bin/env bash
# ./ddp plot: what it reads from metrics files and what it draws, with and without gnuplot.
. "$SRC/tests/test.sh"
cd "$TMP" || exit 1
ddp() { "$SRC/ddp" "$@"; }

# metrics EPOCHS LOSS: a run of EPOCHS epochs of 100 steps, whose loss falls from LOSS.
metrics()
{
    awk -v epochs="$1" -v loss="$2" 'BEGIN {
        print "{\"event\":\"config\",\"program\":\"train\",\"options\":{\"epochs\":5,\"lr\":0.01}}"
        for (e = 1; e <= epochs; e++) {
            for (s = 10; s <= 100; s += 10) {
                x = e - 1 + s / 100
                printf "{\"event\":\"step\",\"epoch\":%d,\"step\":%d,\"steps\":100,\"loss\":%.6g,\"acc\":%.4f," \
                    "\"running_loss\":99,\"running_acc\":99,\"lr\":0.01}\n", e, s, loss / (1 + x), 20 * x
            }
            printf "{\"event\":\"epoch\",\"epoch\":%d,\"train_loss\":98,\"train_acc\":98,\"test_loss\":%.6g," \
                "\"top1\":%.4f,\"top5\":97,\"n\":10000,\"seconds\":1.5}\n", e, loss / e, 19 * e
        }
        print "{\"event\":\"end\",\"weight_hash\":\"0123456789abcdef\",\"threads\":2,\"peak_rss_mb\":80.5}"
    }'
}
metrics 3 2.4 >a.jsonl
metrics 2 2.0 >"b it's_second.jsonl"

# --- wrong words and files -----------------------------------------------------------------------------

expect 2 "which runs?" ddp plot
expect 2 "unknown option --svg" ddp plot --svg a.jsonl
expect 2 "-o needs a file name" ddp plot a.jsonl -o
expect 2 "not 'a.pdf'" ddp plot -o a.pdf a.jsonl
expect 1 "nothing.jsonl: no such file" ddp plot nothing.jsonl
head -1 a.jsonl >config.jsonl
expect 1 "config.jsonl: no steps and no epochs" ddp plot --text config.jsonl
check "no picture of these" test ! -e runs.svg

# --- in the terminal -----------------------------------------------------------------------------------

expect 0 "a a.jsonl: at the end loss 0.600, accuracy 60.00 %; on the test set (A) 0.800, 57.00 %" \
    ddp plot --text a.jsonl
expect 0 "b b it's_second.jsonl: at the end loss 0.667" ddp plot --text a.jsonl "b it's_second.jsonl"
check "the axis ends with the longest run" grep -q ' 3 epochs' "$TMP/output"
check "both runs are in the charts" grep -q '|.*[bB]' "$TMP/output"
# 2.400 is the loss on the test set after the first epoch.
check "the highest loss is at the top" grep -q '2\.400 |' "$TMP/output"
check "in 60 columns" test "$(COLUMNS=60 ddp plot --text a.jsonl | grep '|' | awk '{ if (length > n) n = length } END { print n }')" -le 60

# A run that was killed in the middle of a line, and resumed two epochs earlier: the last word counts.
{ metrics 3 9.9 | sed 's/"event":"end".*//'; printf '{"event":"step","epoch":3,"st\n'; metrics 3 2.4; } >resumed.jsonl
printf '{"event":"step","epoch":4,"step":5,"steps":100,"loss":7,"a' >>resumed.jsonl
ddp plot --text a.jsonl | sed '$d' >one
ddp plot --text resumed.jsonl | sed '$d' >two
check "a resumed run looks like one that was not interrupted" cmp one two

# A loss that is not finite is null in the file, and no point in the picture.
{ cat a.jsonl; echo '{"event":"step","epoch":4,"step":10,"steps":100,"loss":null,"acc":10.0}'; } >null.jsonl
expect 0 "3 epochs" ddp plot --text null.jsonl

# --- as a picture ----------------------------------------------------------------------------------------

if type -P gnuplot >/dev/null; then
    expect 0 '$ gnuplot' ddp plot a.jsonl "b it's_second.jsonl"
    check "an SVG" grep -q '</svg>' runs.svg
    check "with the names of the runs" grep -q "it.*s_second, test" runs.svg
    check "with both titles" test "$(grep -cE '>(loss|accuracy, %)<' runs.svg)" = 2
    expect 0 'p.png' ddp plot -o "p.png" a.jsonl
    check "a PNG" test "$(head -c 4 p.png | tail -c 3)" = PNG
    expect 1 'cannot be written' ddp plot -o nowhere/p.svg a.jsonl
else
    echo "not tried: pictures (gnuplot is not there)"
fi

# --- without gnuplot -----------------------------------------------------------------------------------------

mkdir bin
for command in bash env dirname readlink awk sort cut cat mktemp rm tput touch sed; do
    ln -s "$(type -P $command)" bin/$command
done
expect 0 "apt install gnuplot-nox" env PATH="$TMP/bin" "$SRC/ddp" plot -o other.svg a.jsonl
check "then in the terminal" grep -q "a a.jsonl: at the end loss 0.600" "$TMP/output"
check "and no picture" test ! -e other.svg

test_done
