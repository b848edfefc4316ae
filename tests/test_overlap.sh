#!/usr/bin/env bash
# In 03_ddp_fork gradients travel during backward. Timelines of real runs must show it.
#
# ctest: PROCESSORS 2
. "$SRC/tests/test.sh"
type -P python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }

train() # train TIMELINE OPTION...: by default three steps of two ranks, with at least three buckets in each
{
    "$BUILD/03_ddp_fork/$program" -n 2 --arch resnet18 --data synthetic --train-samples 48 --test-samples 2 -b 8 \
        --epochs 1 --threads 1 -j 0 --bucket-mb 4 --trace "$1.json" "${@:2}"
}

# Counts for each rank: backward passes, all_reduces on a track of their own, those of them that run during a backward
# pass, and all_reduces that a backward pass calls itself.
cat >counts.py <<'END'
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1] + "/tools")
import why

lanes = why.read_timeline(sys.argv[2])
for rank in 0, 1:
    spans = [(track, span) for (process, track), lane in lanes.items() if process == rank for span in lane]
    backwards = [span for _, span in spans if span.name == "backward"]
    own = {track for track, span in spans if span.name == "backward"}
    calls = [(track, span) for track, span in spans if span.name.startswith("all_reduce ")]
    beside = [call for track, call in calls if track not in own]
    overlapping = [call for call in beside
                   if any(call.begin < span.end and call.end > span.begin for span in backwards)]
    inside = [call for _, call in calls if any(outer.name == "backward" for outer in call.around())]
    print("rank", rank, len(backwards), len(beside), len(overlapping), len(inside))
END

program=train
expect 0 "weight hash: " train beside
cp output beside.out
program=train_naive
expect 0 "weight hash: " train after
cp output after.out
program=train
while read -r _ rank backwards beside overlapping inside; do
    check "rank $rank: the buckets of three steps have their own track: $backwards, $beside" \
        test "$backwards" = 3 -a "$beside" -ge 9
    check "rank $rank: they travel during backward: $overlapping" test "$overlapping" -ge 1
    check "rank $rank: backward itself sends nothing: $inside" test "$inside" = 0
done < <(python3 counts.py "$SRC" beside.json | tee counts)
while read -r _ rank backwards beside overlapping inside; do
    check "rank $rank, train_naive: nothing travels during backward: $backwards, $beside, $overlapping, $inside" \
        test "$backwards" = 3 -a "$beside" = 0 -a "$overlapping" = 0 -a "$inside" = 0
done < <(python3 counts.py "$SRC" after.json | tee -a counts)
check "both ranks, both ways" test "$(wc -l <counts)" = 4

check "the same weights each way" test "$(grep -h 'weight hash' beside.out after.out | sort -u | wc -l)" = 1
test_done
