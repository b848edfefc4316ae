#!/usr/bin/env bash
# ./ddp plot: what it reads from metrics files, timelines and confusion matrices, and what it draws, with
# and without gnuplot.
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

# --- timelines -----------------------------------------------------------------------------------------

# Three steps of 10, 20 and 40 ms, then an evaluation; rank 1 was killed in its backward. Rank 1 is the
# first to write, and a span that was given by its times comes after what it is in.
timeline()
{
    cat <<'JSON'
[
{"ph":"M","pid":0,"tid":0,"name":"run","args":{"name":"x"}},
{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"rank 1"}},
{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"ma\"in <&> \u001b"}},
{"ph":"B","pid":1,"tid":1,"ts":500,"name":"epoch"},
{"ph":"M","pid":0,"tid":0,"name":"process_name","args":{"name":"rank 0"}},
{"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"main"}},
{"ph":"M","pid":0,"tid":2,"name":"thread_name","args":{"name":"communication"}},
{"ph":"M","pid":0,"tid":3,"name":"thread_name","args":{"name":"loader 1"}},
{"ph":"B","pid":0,"tid":3,"ts":600,"name":"load"},
{"ph":"E","pid":0,"tid":3,"ts":700},
{"ph":"B","pid":0,"tid":1,"ts":1000,"name":"epoch"},
{"ph":"B","pid":0,"tid":1,"ts":1000,"name":"forward"},
{"ph":"E","pid":0,"tid":1,"ts":9000},
{"ph":"B","pid":0,"tid":1,"ts":11000.000,"name":"forward"},
{"ph":"B","pid":0,"tid":1,"ts":12000.000,"name":"forward"},
{"ph":"E","pid":0,"tid":1,"ts":13000.000},
{"ph":"E","pid":0,"tid":1,"ts":16000.000},
{"ph":"B","pid":1,"tid":1,"ts":16000.000,"name":"backward"},
{"ph":"B","pid":0,"tid":1,"ts":16000.000,"name":"backward"},
{"ph":"E","pid":0,"tid":1,"ts":26000.000},
{"ph":"X","pid":0,"tid":2,"ts":21000.000,"dur":6000.000,"name":"all_reduce 25.0 MB"},
{"ph":"X","pid":0,"tid":2,"ts":20000.000,"dur":8000.000,"name":"bucket"},
{"ph":"B","pid":0,"tid":1,"ts":31000.000,"name":"forward"},
{"ph":"E","pid":0,"tid":1,"ts":32000.000},
{"ph":"E","pid":0,"tid":1,"ts":71000.000},
{"ph":"B","pid":0,"tid":1,"ts":71000.000,"name":"evaluate"},
{"ph":"B","pid":0,"tid":1,"ts":72000.000,"name":"forward"},
{"ph":"E","pid":0,"tid":1,"ts":73000.000},
{"ph":"E","pid":0,"tid":1,"ts":81000.000}
]
JSON
}
timeline >run.json

# boxes PICTURE TITLE: class, x, y and width of what a pointer is told this about; in a step of 20 ms one
# millisecond is 38.7 wide and the first is at 112.
boxes() { sed -n "s/^<rect class=\"\([^\"]*\)\" x=\"\([^\"]*\)\" y=\"\([^\"]*\)\" width=\"\([^\"]*\)\".*<title>$2<.*/\1 \2 \3 \4/p" "$1"; }
texts() { sed -n "s/^<text class=\"$2\".*>\(.*\)<\/text>$/\1/p" "$1" | paste -sd,; }

expect 0 "timeline.svg: step 2 of 3: 20.0 ms" ddp plot run.json
check "a lane for each track that does something" test "$(grep -c 'class="lane"' timeline.svg)" = 3
check "with the processes' names: $(texts timeline.svg bold)" test "$(texts timeline.svg bold)" = "rank 0,rank 1"
check "and the tracks': $(texts timeline.svg end)" \
    test "$(texts timeline.svg end)" = 'main,communication,ma"in &lt;&amp;&gt;  ,ms,step 2 of 3'
check "what fits is written into it: $(texts timeline.svg in)" test "$(texts timeline.svg in)" = \
    "forward,backward,bucket,all_reduce 25.0 MB,backward"
check "backward is as long as it took" test "$(boxes timeline.svg "backward, 10 ms")" = "k2 305.50 24 387.00"
check "what is in it stands below" test "$(boxes timeline.svg "forward, 5 ms"; boxes timeline.svg "forward, 1 ms")" = \
    "k1 112.00 24 193.50
k1 150.70 44 38.70"
check "times given: what is around comes first" \
    test "$(boxes timeline.svg "bucket, 8 ms"; boxes timeline.svg "all_reduce 25.0 MB, 6 ms")" = "k7 460.30 67 309.60
k4 499.00 87 232.20"
check "what never ended ends with the picture" test "$(boxes timeline.svg "backward, 65 ms")" = "k2 305.50 134 580.50"
check "an epoch around everything is left out" not grep -q '<title>epoch' timeline.svg
check "an axis in ms: $(texts timeline.svg mid)" test "$(texts timeline.svg mid)" = 0,2,4,6,8,10,12,14,16,18,20

expect 0 "one.svg: step 3 of 3: 40.0 ms" ddp plot run.json -o one.svg --step 3
expect 0 "two.svg: steps 1 to 2 of 3: 30.0 ms" ddp plot --steps 2 --step 1 -o two.svg run.json
expect 0 "two.svg: steps 1 to 2 of 3: 30.0 ms" ddp plot --steps 2 -o two.svg run.json
sed 's/forward/fore/' run.json >no_steps.json
expect 0 "all.svg: the whole run: 80.5 ms" ddp plot -o all.svg no_steps.json
check "there, an epoch is something" grep -q '<title>epoch, 70 ms<' all.svg

# Two evaluations of 10 and 4 ms. In the first one rank 1, which was late, has one batch and waits for rank
# 0's second one.
evaluations()
{
    cat <<'JSON'
[
{"ph":"M","pid":0,"tid":0,"name":"process_name","args":{"name":"rank 0"}},
{"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"main"}},
{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"rank 1"}},
{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"main"}},
{"ph":"B","pid":1,"tid":1,"ts":0,"name":"set up"},
{"ph":"B","pid":0,"tid":1,"ts":1000,"name":"evaluate"},
{"ph":"E","pid":1,"tid":1,"ts":1400},
{"ph":"B","pid":1,"tid":1,"ts":1400,"name":"evaluate"},
{"ph":"X","pid":0,"tid":1,"ts":2000,"dur":4000,"name":"forward"},
{"ph":"X","pid":1,"tid":1,"ts":2000,"dur":4000,"name":"forward"},
{"ph":"X","pid":0,"tid":1,"ts":6000,"dur":4000,"name":"forward"},
{"ph":"X","pid":1,"tid":1,"ts":6000,"dur":4500,"name":"barrier"},
{"ph":"X","pid":0,"tid":1,"ts":10000,"dur":500,"name":"barrier"},
{"ph":"E","pid":0,"tid":1,"ts":11000},
{"ph":"E","pid":1,"tid":1,"ts":11000},
{"ph":"X","pid":0,"tid":1,"ts":20000,"dur":4000,"name":"evaluate"},
{"ph":"X","pid":1,"tid":1,"ts":20000,"dur":4000,"name":"evaluate"}
]
JSON
}
evaluations >evaluations.json
expect 0 "e.svg: evaluate 1 of 2: 10.0 ms" ddp plot --span evaluate --step 1 evaluations.json -o e.svg
check "the wait for the other rank" test "$(boxes e.svg "barrier, 4.5 ms")" = "k4 499.00 71 348.30"
check "beside what it waits for" test "$(boxes e.svg "forward, 4 ms" | sort)" = "k1 189.40 24 309.60
k1 189.40 71 309.60
k1 499.00 24 309.60"
check "what is around everything is left out, and what comes before it" not grep -qE '<title>(evaluate|set up)' e.svg
expect 0 "e.svg: evaluate 2 of 2: 4.0 ms" ddp plot --span evaluate evaluations.json -o e.svg
expect 0 "e.svg: evaluate 1 to 2 of 2: 23.0 ms" ddp plot --span evaluate --steps 2 evaluations.json -o e.svg
expect 0 "e.svg: forward 2 of 4: 5.0 ms" ddp plot --span forward --step 2 run.json -o e.svg

rm -f timeline.svg
for wrong in 0 -1 x '' 1.5; do
    expect 2 "--step needs a number" ddp plot run.json --step "$wrong"
done
expect 2 "--steps needs a number" ddp plot run.json --steps
expect 2 "--span needs a name" ddp plot run.json --span
expect 2 "--span needs a name" ddp plot run.json --span --step 1
expect 2 "--steps are for timelines" ddp plot --step 1 a.jsonl
expect 2 "--steps are for timelines" ddp plot --span evaluate a.jsonl
expect 2 "one timeline at a time" ddp plot run.json run.json
expect 2 "one timeline at a time" ddp plot a.jsonl run.json
expect 2 "--text is for" ddp plot --text run.json
expect 2 "drawn as FILE.svg" ddp plot -o run.png run.json
expect 1 "not that many training steps: it has 3" ddp plot --step 4 run.json
expect 1 "not that many training steps: it has 3" ddp plot --step 3 --steps 2 run.json
expect 1 "not that many training steps: it has 0" ddp plot --step 1 no_steps.json
expect 1 "not that many spans 'evaluate': it has 1" ddp plot --span evaluate --step 2 run.json
expect 1 "not that many spans 'eval': it has 0" ddp plot --span eval run.json
printf '[\n\n]\n' >empty.json
expect 1 "empty.json: there are no spans" ddp plot empty.json
expect 1 "cannot be written" ddp plot -o nowhere/t.svg run.json
for file in /dev/null "$SRC/ddp"; do
    [ -f "$file" ] || { cp "$file" nothing; file=nothing; }
    expect 1 "neither the numbers of a run nor a timeline" ddp plot "$file"
done
check "no picture of these" test ! -e timeline.svg

# --- confusion matrices --------------------------------------------------------------------------------

# A name that XML would not like; a class that is never right, and one that no image is of.
matrix()
{
    printf '%s\n' 'label,cat,big dog,<&>,4' 'cat,90,9,1,0' 'big dog,0,1000,0,0' '<&>,0,25,0,75' '4,0,0,0,0'
}
matrix >confusion.csv
expect 0 "confusion.svg: 90.83 % of 1200 images right; <&> is taken for 4 most often, 75 times" ddp plot confusion.csv
check "the title: $(texts confusion.svg bold)" \
    test "$(texts confusion.svg bold)" = "accuracy 90.83 %: 1090 of 1200 images"
check "the counts, row by row, where there are any: $(texts confusion.svg in)" \
    test "$(texts confusion.svg in)" = 90,9,1,1000,25,75
check "the classes of the rows: $(texts confusion.svg end)" \
    test "$(texts confusion.svg end)" = "cat,big dog,&lt;&amp;&gt;,4"
check "and of the columns: $(texts confusion.svg mid)" test "$(texts confusion.svg mid)" = "cat,big dog,&lt;&amp;&gt;,4"
for accuracy in "90.0 %" "100.0 %" "0.0 %" "no images"; do
    check "a class's accuracy: $accuracy" grep -q ">$accuracy<" confusion.svg
done
# A cell is 64 wide and 34 high, one of them a gap. Color has ten levels: right 90 and 100 %, and of 1, 9, 25
# and 75 % wrong the roots.
boxes confusion.svg '[^<]*' | grep '^[rw]' >cells
check "a cell's color and place: $(paste -sd, cells)" diff cells - <<'CELLS'
r9 61.00 68 63.00
w3 125.00 68 63.00
w1 189.00 68 63.00
r10 125.00 102 63.00
w5 125.00 136 63.00
w9 253.00 136 63.00
CELLS
check "a pointer is told" grep -q '<title>cat taken for big dog, 9 of 100, 9.0 %<' confusion.svg
check "bars are as long as a class is right" \
    test "$(boxes confusion.svg "cat: right, 90.0 %")" = "bar 331.00 68 57.60"

sed 's/$/\r/' confusion.csv >crlf.csv
expect 0 "90.83 %" ddp plot -o crlf.svg crlf.csv
check "lines may end as on Windows" cmp crlf.svg confusion.svg
printf 'label,it\nit,3\n' >one.csv
expect 0 "one.svg: 100.00 % of 3 images right; no mistakes" ddp plot -o one.svg one.csv

# square CLASSES: each class is right 9 times, and once taken for the next one.
square()
{
    awk -v n="$1" 'BEGIN {
        printf "label"
        for (j = 0; j < n; j++) printf ",%d", j
        for (i = 0; i < n; i++) {
            printf "\n%d", i
            for (j = 0; j < n; j++) printf ",%d", i == j ? 9 : j == (i + 1) % n
        }
        print ""
    }'
}
square 100 >hundred.csv
expect 0 "hundred.svg: 90.00 % of 1000 images" ddp plot -o hundred.svg hundred.csv
check "100 classes: every cell that counts" test "$(boxes hundred.svg '[^<]*' | grep -c '^[rw]')" = 200
check "and every class's accuracy" test "$(grep -c 'class="bar".*right, 90.0 %<' hundred.svg)" = 100
check "but no numbers" not grep -q 'class="in"' hundred.svg
check "and no name upon another" test "$(texts hundred.svg end)" = "$(seq -s, 0 3 99)"

# broken WHY COMMAND...: what the command makes of the matrix is refused, for this reason.
broken()
{
    local why=$1
    shift
    matrix | "$@" >broken.csv
    expect 1 "broken.csv: $why" ddp plot -o broken.svg broken.csv
}
broken 'line 3: columns: 4, not 5 as in line 1' sed '3s/,0$//'
broken 'line 3: columns: 6, not 5 as in line 1' sed '3s/$/,0/'
broken 'line 3: column 3 is "-1000", not a number' sed '3s/1000/-1000/'
broken 'line 3: column 3 is "10.5", not a number' sed '3s/1000/10.5/'
broken 'line 3: column 3 is "", not a number' sed '3s/1000//'
broken 'line 3: column 3 is "1e3?[2J", not a number' sed '3s/1000/1e3\x1b[2J/'
broken 'line 3: column 3 is "1000000000000000", not a number' sed '3s/1000/1000000000000000/'
broken 'line 3: class "big cat", where "big dog" should be' sed '3s/dog/cat/'
broken 'line 5: class "4.0", where "4" should be' sed '5s/4/4.0/'
broken 'line 3: class "<&>", where "big dog" should be' sed 3d
broken 'line 3: columns: 0, not 5' sed '3s/.*//'
broken 'line 5: class "4" is missing' sed 5d
broken 'line 5: columns: 3, not 5' head -c -5
broken 'line 6: one more than the 4 classes' sed '5s/$/\n4,0,0,0,0/'
broken 'line 1: column 3 is "", not the name' sed '1s/big dog//'
broken 'line 1: column 3 is "big?dog", not the name' sed '1s/big dog/big\tdog/'
broken 'line 2: class "cat" is missing' sed -n 1p
broken 'line 5: it ends, and no images were counted' sed '2,$s/,[0-9]*/,0/g'
check "no picture of these" test ! -e broken.svg

expect 2 "one confusion matrix at a time" ddp plot confusion.csv confusion.csv
expect 2 "one confusion matrix at a time" ddp plot a.jsonl confusion.csv
expect 2 "a confusion matrix is a picture" ddp plot --text confusion.csv
expect 2 "--steps are for timelines" ddp plot --step 1 confusion.csv
expect 1 "cannot be written" ddp plot -o nowhere/c.svg confusion.csv
cp confusion.csv a=b.csv
expect 0 "90.83 %" ddp plot a=b.csv

if type -P rsvg-convert >/dev/null; then
    expect 0 "c.png: 90.83 %" ddp plot -o c.png confusion.csv
    check "a PNG" test "$(head -c 4 c.png | tail -c 3)" = PNG
else
    expect 1 "apt install librsvg2-bin" ddp plot -o c.png confusion.csv
fi

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
