#!/usr/bin/env bash
# tools/scaling_model: limits that are known without it, its fit of made-up measurements, and wrong words.
# shellcheck disable=SC2317  # functions are called by expect and check
. "$SRC/tests/test.sh"
type -P python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
cd "$TMP" || exit 1
model() { "$SRC/tools/scaling_model" "$@"; }

# --- wrong words: exit 2, and one line ------------------------------------------------------------------------------

refused() # refused TEXT WORDS...
{
    local text=$1
    shift
    expect 2 "$text" model "$@"
    check "one line: $*" test "$(wc -l <"$TMP/output")" = 1
}
refused "--wide" --wide
refused "--bandwidth-GBps" --bandwidth-GBps 0
refused "--bandwidth-GBps" --bandwidth-GBps 1,2,3
refused "--latency-us" --latency-us -1
refused "--latency-us" --latency-us nan
refused "--gpus-per-node" --gpus-per-node 0
refused "--gpus-per-node" --gpus-per-node 2.5
refused "--gpus" --gpus 1,,2
refused "--bucket-mb" --bucket-mb 0.001
refused "--backward" --backward 1.5
refused "--algorithm" --algorithm star
refused "--net" --net vgg
refused "--overlap" --overlap maybe
refused "both, or --net too" --step-ms 5
refused "one of them" --net resnet50 --step-ms 5 --batch 64
refused "FILE.svg" -o picture.pdf
refused "required: file" fit
refused "unrecognized" check now

# --- known limits ---------------------------------------------------------------------------------------------------

cat >limits.py <<'END'
import csv, itertools, subprocess, sys

def rows(*words):
    done = subprocess.run([sys.argv[1], "--csv", *words], capture_output=True, text=True, check=True)
    return [{key: value if key in ("net", "algorithm") else float(value) for key, value in row.items()}
            for row in csv.DictReader(done.stdout.splitlines())]

def so(what, holds):
    if not holds:
        print("not so:", what)
        sys.exit(1)

ALL = ["ring", "tree", "hierarchical", "best"]
for algorithm, overlap in itertools.product(ALL, "01"):
    words = ["--algorithm", algorithm, "--overlap", overlap]
    found = rows(*words)
    so("both nets, 1 to 4096", len(found) == 26 and found[12]["gpus"] == 4096)
    so("1 GPU loses nothing", all(r["efficiency"] == 1 for r in found if r["gpus"] == 1))
    for a, b in zip(found, found[1:]):
        so(f"{words}: it falls", a["net"] != b["net"] or b["efficiency"] < a["efficiency"])
    ideal = rows(*words, "--latency-us", "0", "--call-us", "0", "--bandwidth-GBps", "inf")
    so(f"{words}: an ideal network costs nothing", all(r["efficiency"] == 1 for r in ideal))

def ring(gpus, size, latency, bandwidth):
    return 2 * (gpus - 1) * latency + 2 * (gpus - 1) / gpus * size / bandwidth

# One GPU on a node, no overlap, one bucket: a step and a ring.
words = ["--step-ms", "7", "--gradient-bytes", "1e8", "--overlap", "0", "--bucket-mb", "0", "--algorithm", "ring",
         "--gpus-per-node", "1", "--latency-us", "1,20", "--bandwidth-GBps", "9,12.5", "--call-us", "0"]
for r in rows(*words):
    wanted = 7e-3 + ring(r["gpus"], 1e8, 20e-6, 12.5e9)
    so(f"{r['gpus']:.0f} GPUs: {r['step_s']} is {wanted}", abs(r["step_s"] - wanted) <= 1e-9 * wanted)
    so("and the efficiency", abs(r["efficiency"] - 7e-3 / wanted) <= 1e-9)

# In buckets of 10 MiB behind the first of 1 MiB, each pays for its latency.
last = rows(*words, "--bucket-mb", "10", "--gpus", "64")[0]
sizes = [2**20] + [10 * 2**20] * 9
sizes.append(1e8 - sum(sizes))
so("a sum of buckets", abs(last["exposed_s"] - sum(ring(64, s, 20e-6, 12.5e9) for s in sizes)) <= 1e-9)

# With overlap what is left is the last bucket at least, and no more than without.
hidden = rows(*words, "--bucket-mb", "10", "--gpus", "64", "--overlap", "1")[0]
so("the last bucket is not hidden", ring(64, sizes[-1], 20e-6, 12.5e9) <= hidden["exposed_s"] < last["exposed_s"])

# Hierarchical: reduce-scatter and all-gather inside, between them a ring over the nodes.
r = rows("--step-ms", "7", "--gradient-bytes", "1e8", "--overlap", "0", "--bucket-mb", "0", "--call-us", "5",
         "--algorithm", "hierarchical", "--gpus-per-node", "4", "--latency-us", "2,10", "--bandwidth-GBps", "100,25",
         "--gpus", "32")[0]
wanted = 5e-6 + 2 * 3 * 2e-6 + 2 * 7 * 10e-6 + 2 * 3 / 4 * 1e8 / 100e9 + 2 * 7 / 8 * 1e8 / 25e9
so("hierarchical", abs(r["exposed_s"] - wanted) <= 1e-9 * wanted)

# The fastest is the fastest; steps between exchanges help, and so do larger batches.
for gpus in ("8", "64", "4096"):
    each = {a: [r["latency_s"] + r["transfer_s"] for r in rows("--algorithm", a, "--gpus", gpus)] for a in ALL}
    so("best", each["best"] == [min(times) for times in zip(*(each[a] for a in ALL[:3]))])
plain, more, larger = (rows("--net", "resnet18", "--gpus", "512", *words)[0]["efficiency"]
                       for words in ([], ["--accumulate", "4"], ["--batch", "1024"]))
so("accumulation and batches", plain < more < 1 and plain < larger < 1)
END
check "known limits" python3 limits.py "$SRC/tools/scaling_model"

# --- the fit --------------------------------------------------------------------------------------------------------

# Rings of 150 us a message and 1.25 GB/s (1250 bytes a us); rounds that something disturbed are slower.
awk 'BEGIN {
    print "round,ranks,bytes,us"
    for (ranks = 2; ranks <= 3; ranks++)
        for (bytes = 1024; bytes <= 67108864; bytes *= 4)
            for (round = 0; round < 5; round++)
                printf "%d,%d,%d,%.6f\n", round, ranks, bytes, \
                    (round < 3 ? 1 : 1 + round) * 2 * (ranks - 1) * (150 + bytes / ranks / 1250)
}' >rings.csv
expect 0 "2 and 3 ranks: latency 150 us, bandwidth 1.25 GB/s; off by 0.0 % (rms)" model fit rings.csv
check "those of 2 ranks alone" grep -q '^2 ranks: latency 150 us, bandwidth 1.25 GB/s' "$TMP/output"
expect 0 "2 and 3 ranks: latency 150 us, bandwidth 1.25 GB/s" model fit --least rings.csv
grep -E 'round|,2,1024,' rings.csv >one_size.csv
expect 1 "two sizes at least" model fit one_size.csv
expect 1 "nothing.csv" model fit nothing.csv
echo "ranks,bytes,us" >empty.csv
expect 1 "no measurements" model fit empty.csv
printf 'bytes,us\n1,2\n' >columns.csv
expect 1 "ranks" model fit columns.csv

# --- what it prints and draws ---------------------------------------------------------------------------------------

expect 0 "| resnet50 | 4096 |" model
expect 0 "| yours | 64 |" model --step-ms 100 --gradient-bytes 4e8 --gpus 64
expect 0 "| VGG-16, Horovod" model check
expect 0 "" model -o picture.svg
check "docs/scaling.svg is this picture" cmp picture.svg "$SRC/docs/scaling.svg"
check "it is XML" python3 -c 'import xml.dom.minidom as x; x.parse("picture.svg")'
expect 1 "nowhere/picture.svg" model -o nowhere/picture.svg

# --- docs/scaling.md says what it prints ----------------------------------------------------------------------------

doc=$SRC/docs/scaling.md
told() # told WORDS...: every line that it prints stands in the document, or behind spaces
{
    model "$@" >told.txt || return 1
    sed 's/^    //' "$doc" | grep -Fxvf - told.txt | sed 's/^/only printed: /'
    ! sed 's/^    //' "$doc" | grep -Fxvf - told.txt >/dev/null
}
check "the table" told --gpus 1,8,64,512,4096
check "the check" told check
fit_is_told()
{
    model fit --least "$SRC/docs/scaling.csv" | head -3 >fit.txt
    [ "$(sed 's/^    //' "$doc" | grep -cFxf fit.txt)" = 3 ]
}
check "the fit" fit_is_told

# "| what | `OPTIONS` | 8 numbers |" in the section What helps.
sed -n '/^## What helps/,/^## What was/p' "$doc" | grep -E '^\| [^|]+ \|[^|]*\|( [0-9.]+ \|){8}$' >helps.txt
check "there are such rows" test "$(wc -l <helps.txt)" -ge 10
while IFS='|' read -r _ what options numbers; do
    : >efficiencies.txt
    while read -r words; do
        # shellcheck disable=SC2086
        model --csv --gpus 8,64,512,4096 $words | awk -F, 'NR > 1 { printf " %.1f |", 100 * $NF }' >>efficiencies.txt
    done < <(tr -d '`' <<<"${options//\`, \`/$'\n'}")
    check "$what: $(cat efficiencies.txt)" test "$(cat efficiencies.txt)" = "$numbers"
done <helps.txt

test_done
