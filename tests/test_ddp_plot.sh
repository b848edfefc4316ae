#!/usr/bin/env bash
# ./ddp plot: the numbers that it reads from metrics and timelines. Pictures are drawn only if matplotlib is installed.
# shellcheck disable=SC2016  # a $ in single quotes is for sed and grep
. "$SRC/tests/test.sh"
type -P python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
ddp() { "$SRC/ddp" "$@"; }

metrics()
{
    awk -v epochs="$1" -v loss="$2" 'BEGIN {
        print "{\"event\":\"config\",\"program\":\"train\",\"options\":{\"epochs\":5,\"lr\":0.01}}"
        for (e = 1; e <= epochs; e++) {
            for (s = 10; s <= 100; s += 10) {
                x = e - 1 + s / 100
                printf "{\"event\":\"step\",\"epoch\":%d,\"step\":%d,\"steps\":100,\"loss\":%.6g,\"acc\":%.4f," \
                    "\"running_loss\":%.6g,\"running_acc\":%.4f}\n", e, s, loss / (1 + x), 20 * x, loss / e, 15 * e
            }
            printf "{\"event\":\"epoch\",\"epoch\":%d,\"train_loss\":98,\"test_loss\":%.6g,\"top1\":%.4f}\n", \
                e, loss / e, 19 * e
        }
    }'
}
metrics 3 2.4 >a.jsonl
metrics 2 2.0 >"b it's_second.jsonl"

# Rank 1 was killed in its epoch. It writes first, and an "X" event may come after the events inside it.
cat >run.json <<'JSON'
[
{"ph":"M","pid":1,"tid":1,"name":"thread_name","args":{"name":"ma\"in $x$ \u001b"}},
{"ph":"B","pid":1,"tid":1,"ts":500,"name":"epoch"},
{"ph":"X","pid":0,"tid":2,"ts":21000.000,"dur":6000.000,"name":"all_reduce 25.0 MB"},
{"ph":"X","pid":0,"tid":2,"ts":20000.000,"dur":61000.000,"name":"bucket"}
]
JSON

# A resumed run looks like one that was not interrupted, and a loss of null gives no point.
{ metrics 3 9.9; printf '{"event":"step","epoch":3,"st\n'; metrics 3 2.4; } >resumed.jsonl
{ echo '{"event":"step","epoch":4,"step":10,"steps":100,"loss":null,"acc":10.0,"running_loss":1,"running_acc":2}'
  printf '{"event":"step","epoch":4,"step":5,"steps":100,"loss":7,"a'; } >>resumed.jsonl
cat >test_plot.py <<'END'
import sys

sys.path.insert(0, sys.argv[1] + "/tools")
import plot
import why

def so(what, found, wanted):
    if found != wanted:
        print(f"not so: {what}: {found}, not {wanted}")
        sys.exit(1)

def steps(*spans):
    spans = [why.Span(begin, end, name) for name, begin, end in spans]
    why.set_parents(spans)
    return why.find_steps(spans)

lanes = list(why.read_timeline("run.json").values())
so("a span without an end ends with the timeline", lanes[-1][-1].end, 81)
so("the outer span is first", lanes[0][1].parent.name, "bucket")
so("three steps; the last ends with its epoch", steps(
    ("epoch", 1, 71), ("forward", 1, 9), ("forward", 11, 16), ("forward", 12, 13), ("backward", 16, 26),
    ("forward", 31, 32), ("evaluate", 71, 81), ("forward", 72, 73)), [(1, 11), (11, 31), (31, 71)])
so("a batch in parts is one step", steps(("forward", 0, 1), ("forward", 1, 2), ("optimizer", 2, 3), ("forward", 3, 4),
                                         ("forward", 4, 5)), [(0, 3), (3, 5)])

train, test = plot.read_run("a.jsonl")
so("points of training and of the test set", (len(train), train[-1], test[-1]), (30, (3.0, 0.6, 60.0), (3, 0.8, 57.0)))
so("a resumed run", plot.read_run("resumed.jsonl"), (train, test))
END
check "the numbers" python3 test_plot.py "$SRC"

expect 0 "run.html: 38 events" ddp plot run.json a.jsonl
check "the page has both" grep -q '"ph":"B".*"event":"step"' run.html

if ! "${DDP_PYTHON:-python3}" -c "import matplotlib" 2>/dev/null; then
    mkdir bin
    ln -s "$(type -P python3)" bin
    expect 69 "apt install python3-matplotlib" bin/python3 "$SRC/tools/plot.py" a.jsonl
    echo "not tried: pictures (matplotlib is not installed)"
    test_done
fi
expect 0 "runs.svg: " ddp plot a.jsonl "b it's_second.jsonl"
check "the picture has the names of the runs" grep -q "b it's_second, test" runs.svg
test_done
