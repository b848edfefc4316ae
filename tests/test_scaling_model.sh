#!/usr/bin/env bash
# tools/scaling_model.py: a known limit, and the numbers in docs/scaling.md. (test_why.sh: a known fit.)
# shellcheck disable=SC2317  # model is called by expect
. "$SRC/tests/test.sh"
type -P python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }

cat >limits.py <<'END'
import re, sys

sys.path.insert(0, sys.argv[1] + "/tools")
import scaling_model as model

def rows(*words):
    names = ("net", "gpus", "algorithm", "latency", "transfer", "exposed", "step", "efficiency")
    return [dict(zip(names, row)) for row in model.rows_of(model.parse_model([str(word) for word in words]))]

def so(what, holds):
    if not holds:
        print("not so:", what)
        sys.exit(1)

def ring(gpus, size, latency, bandwidth):
    return 2 * (gpus - 1) * latency + 2 * (gpus - 1) / gpus * size / bandwidth

# One GPU per node, no overlap, one bucket: the time of a step plus that of a ring.
words = ["--step-ms", 7, "--gradient-bytes", "1e8", "--overlap", 0, "--bucket-mb", 0, "--algorithm", "ring",
         "--gpus-per-node", 1, "--latency-us", "1,20", "--bandwidth-GBps", "9,12.5", "--call-us", 0]
for r in rows(*words):
    wanted = 7e-3 + ring(r["gpus"], 1e8, 20e-6, 12.5e9)
    so(f"{r['gpus']} GPUs: {r['step']} is {wanted}", abs(r["step"] - wanted) <= 1e-9 * wanted)

# Finds the rows "| what | `OPTIONS` | 8 numbers |" in the section What helps.
with open(sys.argv[1] + "/docs/scaling.md", encoding="utf-8") as file:
    text = file.read().split("## What helps")[1].split("\n## ")[0]
helps = re.findall(r"^\| ([^|]+) \|([^|]*)\|((?: [0-9.]+ \|){8})$", text, re.M)
so("there are such rows", len(helps) >= 10)
for what, options, numbers in helps:
    found = [f"{100 * r['efficiency']:.1f}" for words in re.findall("`(.*?)`", options) or [""]
             for r in rows("--gpus", "8,64,512,4096", *words.split())]
    so(f"{what}: {found}", found == re.findall("[0-9.]+", numbers))
END
check "a known limit, and the table of what helps" python3 limits.py "$SRC"

model() { "$SRC/tools/scaling_model.py" "$@"; }
sed -z 's/\n        off by/ off by/g' "$SRC/docs/scaling.md" | sed 's/^    //' >doc.txt    # a page wraps at 90
expect 0 "" model --gpus 8,64,512,3584
check "docs/scaling.md: the table" test -z "$(grep -Fxvf doc.txt "$TMP/output")"
expect 0 "" model check
for what in 'Horovod|Goyal' A100 MLPerf; do
    range=$(grep -E "$what" "$TMP/output" | awk -F'[|+]' '
        { v = $(NF - 1) + 0 }
        NR == 1 || v < low { low = v }
        v > high { high = v }
        function whole(x) { return x < 10 ? sprintf("%g", x) : sprintf("%.0f", x) }
        END { print whole(low) " to " whole(high) " points too high" }')
    check "docs/scaling.md: $what: $range" grep -qF "$range" doc.txt
done
expect 0 "" model fit "$SRC/docs/scaling.csv"
check "docs/scaling.md: the fit" test "$(tail -1 "$TMP/output" | grep -cFxf doc.txt)" = 1
test_done
