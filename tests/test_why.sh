#!/usr/bin/env bash
# ./ddp why: its times and predictions on timelines of simulated runs; it also reads the timeline of a real run. The
# simulation does not use the formulas of ./ddp why: it follows each bucket until the bucket has been sent.
# shellcheck disable=SC2317  # expect calls functions
. "$SRC/tests/test.sh"
type -P python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
cat >simulate.py <<'END'
"""simulate.py FILE NAME=VALUE... - 21 steps of ranks that send a message in 1 ms plus its bytes / 100 MB/s."""
import json
import sys
o = dict(bucket=8, bytes=24e6, batch=1, late=0, load=0, ranks=2)
o |= {word.split("=")[0]: float(word.split("=")[1]) for word in sys.argv[2:]}
LAYERS, events = 24, []
now, number = [0.0, 0.0, 0.0], 0


def span(rank, tid, name, begin, end, call=None):
    args = {"args": {"call": call}} if call else {}
    events.append({"ph": "X", "pid": rank, "tid": tid, "ts": 1e3 * begin, "dur": 1e3 * (end - begin), "name": name,
                   **args})


ranks = range(int(o["ranks"]))
for step in range(21):
    ready, sent = {}, []                 # rank: when each layer's gradients are final
    for rank in ranks:
        extra = o["late"] if rank == 1 and step % 10 else 0
        if o["load"]:
            span(rank, 1, "wait for data", now[rank], now[rank] + o["load"])
        begin = now[rank] + o["load"]
        middle = begin + 20 * o["batch"] + extra
        end = middle + 40 * o["batch"]
        span(rank, 1, "forward", begin, middle)
        span(rank, 1, "backward", middle, end)
        ready[rank] = [middle + 40 * o["batch"] * (i + 1) / LAYERS for i in range(LAYERS)]
    last, filled = [0] * 3, 0
    free = 0.0
    for layer in range(LAYERS):
        filled += o["bytes"] / LAYERS
        if layer < LAYERS - 1 and filled < o["bucket"] * 2**20:
            continue
        number += 1
        begins = [max(ready[rank][layer], free) for rank in ranks]
        free = max(begins) + 1 + filled / 100e3
        for rank in ranks:
            span(rank, 2, f"all_reduce {filled / 1e6:.1f} MB", begins[rank], free, f"gradients #{number}")
        filled = 0
    for rank in ranks:
        span(rank, 1, "wait for gradients", ready[rank][-1], max(free, ready[rank][-1]))
        now[rank] = max(free, ready[rank][-1]) + 2
        span(rank, 1, "optimizer", now[rank] - 2, now[rank])
with open(sys.argv[1], "w", encoding="utf-8") as file:
    file.write("[\n" + "".join(json.dumps(event) + ",\n" for event in events))
print(f"{now[0] / 21:.1f}")
END
simulate() { python3 simulate.py "$@"; }
why() { "$SRC/ddp" why "$@"; }
cat >metrics.jsonl <<'END'
{"event":"config","cores":64,"device":"CPU","options":
{"batch_size":32,"bucket_mb":8,"compress":"none","threads":1}}
END
tr -d '\n' <metrics.jsonl >joined.jsonl && mv joined.jsonl metrics.jsonl

# near WHAT A B: within 4 %.
near() { check "$1: $2, wanted $3" awk -v a="$2" -v b="$3" 'BEGIN { exit !(a / b > 0.96 && b / a > 0.96) }'; }
value() { sed -nE "s/^  $1 +([0-9.]+) .*/\1/p" output; }

step=$(simulate run.json)
expect 0 "ms a step, 2 ranks" why run.json metrics.jsonl
near "the step" "$(sed -nE '1s/^([0-9.]+) ms.*/\1/p' output)" "$step"
near "compute" "$(value 'forward, backward, optimizer')" 62
near "the wait" "$(value 'waiting for gradients')" "$(awk -v s="$step" 'BEGIN { print s - 62 }')"
check "the network limits it" grep -q "^The network limits this run" output
check "latency and bandwidth" grep -qF "a message takes 1 ms plus its bytes at 0.1 GB/s" output
check "no rank is blamed" grep -q "no rank is clearly slower" output
near "16-bit gradients" "$(value '--compress bf16')" "$(simulate x.json bytes=12e6 bucket=4)"
near "twice the batch" "$(value '-b 64')" "$(awk -v s="$(simulate x.json batch=2)" 'BEGIN { print 100 * 122 / s }')"

simulate run.json bucket=24 >/dev/null
sed 's/"bucket_mb":8/"bucket_mb":24/' metrics.jsonl >all.jsonl
expect 0 "--bucket-mb" why run.json all.jsonl
best=$(sed -nE 's/^  --bucket-mb ([0-9.]+) .*/\1/p' output)
near "--bucket-mb $best" "$(value "--bucket-mb $best")" "$(simulate x.json bucket="$best")"

simulate run.json bytes=1e6 late=15 ranks=3 >/dev/null
expect 0 "Rank 1 limits this run" why run.json metrics.jsonl
check "the late rank" grep -qE "rank 1 is last in (8|9|10)[0-9]* % of the steps, by 15.0 ms: " output
check "where it is late" grep -q "it spends 1[345]\.[0-9] ms more in 'forward'" output
near "a rank that is not late" "$(value 'rank 1 as fast as the others')" "$(simulate x.json bytes=1e6 ranks=3)"

# One message, which backward cannot hide: the wait for a late rank must not look like hidden time.
simulate run.json bucket=24 late=60 >/dev/null
expect 0 "of which 0.0 are hidden" why run.json all.jsonl

simulate run.json bytes=1e6 load=30 >/dev/null
expect 0 "Loading limits this run" why run.json
check "it knows what it does not know" grep -q "The options and the number of cores are unknown" output
check "one size of messages" grep -q "The latency is unknown" output
sed 's/"cores":64/"cores":2/' metrics.jsonl >shared.jsonl
expect 0 "share 2 cores" why run.json shared.jsonl
head -20 run.json >short.json
expect 1 "too few steps" why short.json

launch=("$BUILD/04_ddp_launcher/launch" -n 2 -- "$BUILD/04_ddp_launcher/train" -a lenet --data synthetic --threads 1)
expect 0 "weight hash" "${launch[@]}" -b 8 --train-samples 480 --test-samples 8 --epochs 1 --bucket-mb 0.1 \
    --trace real.json --metrics real.jsonl --slow-network 50
expect 0 "ms a step, 2 ranks" why real.json real.jsonl
test_done
