#!/usr/bin/env bash
# In 03_ddp_fork gradients travel while backward goes on: the timelines of real runs say so.
#
# ctest: TIMEOUT 100 PROCESSORS 2
# shellcheck disable=SC2317  # its functions are called, by check
. "$SRC/tests/test.sh"
cd "$TMP" || exit 1

train() # train TIMELINE OPTION...: three steps of two ranks, with three buckets in each
{
    local timeline=$1
    shift
    "$BUILD/03_ddp_fork/train" -n 2 --arch resnet18 --data synthetic --train-samples 48 --test-samples 2 -b 8 \
        --epochs 1 --threads 1 -j 0 --bucket-mb 4 --trace "$timeline.json" "$@" || return
    awk -f "$SRC/tools/spans.awk" "$timeline.json" >"$timeline.spans"
}

# counts TIMELINE RANK -> "BACKWARDS BESIDE OVERLAPPING INSIDE": how many backwards there are, how many
# all_reduces on the track "communication", how many of these are at work while backward is, and how many
# all_reduces are on backward's own track, inside it.
counts()
{
    awk -F '\t' -v rank="rank $2" '
        $2 != rank { next }
        $7 == "backward" { begin[++n] = $5; end[n] = $6; own = $4 }
        $7 ~ /^all_reduce / { name[++calls] = $4; from[calls] = $5; to[calls] = $6 }
        END {
            for (i = 1; i <= calls; i++) {
                beside += name[i] == "communication"
                for (j = 1; j <= n; j++) {
                    overlapping += name[i] == "communication" && from[i] < end[j] && to[i] > begin[j]
                    inside += name[i] == own && from[i] > begin[j] && to[i] < end[j]
                }
            }
            print n + 0, beside + 0, overlapping + 0, inside + 0
        }' "$1.spans"
}
# Are the counts of this rank so? counted TIMELINE RANK CONDITION, in awk's words
counted() { counts "$1" "$2" | awk "{ exit !($3) }"; }

expect 0 "weight hash: " train beside
cp output beside.out
expect 0 "weight hash: " train after --overlap 0
cp output after.out
for rank in 0 1; do
    check "rank $rank: the buckets of three steps on a track of their own (of: $(counts beside $rank))" \
        counted beside $rank '$1 == 3 && $2 >= 9'
    check "rank $rank: they travel while backward goes on (of: $(counts beside $rank))" counted beside $rank '$3 >= 1'
    check "rank $rank: backward itself sends nothing" counted beside $rank '$4 == 0'
    check "rank $rank, --overlap 0: backward waits for them (of: $(counts after $rank))" \
        counted after $rank '$1 == 3 && $2 == 0 && $4 >= 3'
done
check "the same weights either way" test "$(grep 'weight hash' beside.out)" = "$(grep 'weight hash' after.out)"
test_done
