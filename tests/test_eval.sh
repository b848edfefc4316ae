#!/usr/bin/env bash
# ctest: PROCESSORS 2
# 07: all ranks evaluate. The result must be byte-identical for any number of ranks, and agree with that of 06 (in one
# process) and with the predictions. Losses and accuracies of training are means over all ranks.
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
. "$SRC/tests/eval.sh"
network

counts_agree()
{
    awk -F, -v n="$2" -v percent="$(field "$1.0.jsonl" eval top1)" '
        FNR == 1 { next }
        NF != 5 || $1 != FNR - 2 || $4 != $2 || $5 != $3 { print FILENAME " " FNR ": " $0; bad = 1 }
        { all[$2]++; hits[$2] += $2 == $3; right += $2 == $3 }
        END {
            for (i = 0; i < 10; i++) print i, all[i] + 0, hits[i] + 0
            off = percent * n / 100 - right
            exit bad || FNR != n + 1 || off > 1e-3 || off < -1e-3
        }' "$1.predictions" >wanted || { cat wanted; return 1; }
    sed -n 's/.*"event":"class","class":\(.*\),"n":\(.*\),"correct1":\(.*\),"correct5".*/\1 \2 \3/p' "$1.0.jsonl" |
        diff - wanted
}

alone()
{
    "$older/train" "${convnet[@]}" -e --init net.st --train-samples 10 --test-samples "$1" -b "$2" \
        --metrics alone.jsonl --amp off
}
alike() # alike METRICS METRICS EVENT
{
    is "$(field "$1" "$3" top1)" "$(field "$2" "$3" top1)" && is "$(field "$1" "$3" top5)" "$(field "$2" "$3" top5)" &&
        near <(field "$1" "$3" test_loss) <(field "$2" "$3" test_loss) 1e-6
}

any()
{
    local what=$1 n
    rm -f one.* many.* alone.*
    check "$what: one rank" shown evaluate one 1 "${@:3}"
    check "$what: the predictions agree with the result and the classes" shown counts_agree one "$3"
    check "$what: 06 evaluates" shown alone "${@:3}"
    check "$what: equal to 06" shown alike one.0.jsonl alone.jsonl eval
    for n in $2; do
        check "$what: $n ranks" shown evaluate many "$n" "${@:3}"
        check "$what: $n ranks equal one" shown same many one
    done
}
any "1 image" "2" 1 64
any "5 images, batches of 2" "2 3 7" 5 2
any "1,999 images, batches of 64" "2 4" 1999 64

# The padded shares of 3 ranks are the images 0 3 6, 1 4 0 and 2 5 1. Where percentages of batches of 2 are averaged,
# a rank's third image counts as much as its first two together.
exact() { is "$(field naive.0.jsonl naive top1)" "$(field naive.0.jsonl eval top1)"; }
check "naive: 3 ranks, batches of 2" shown evaluate naive 3 7 2 --show-naive
awk -F, 'NR > 1 { r[NR - 2] = 100 * ($2 == $3) }
    END { print ((r[0] + r[3] + r[1] + r[4] + r[2] + r[5]) / 2 + r[6] + r[0] + r[1]) / 6 }' naive.predictions >wanted
check "its mean" near <(field naive.0.jsonl naive top1) wanted 1e-3
check "it differs from the exact result" not exact
check "naive: one rank, one batch" shown evaluate naive 1 7 7 --show-naive
check "it is exact there" shown exact

# 2 ranks with -b 12 take 5 steps per epoch, the last with 2 samples each. 3 ranks with -b 11 take 4, the last with
# 34 - 33 = 1 sample each.
run=(--data synthetic --train-samples 100 --test-samples 24 --epochs 2 --threads 1 -j 1 --seed 5 --lr 0.02 \
    --amp off -p 1)
lenet=(--arch lenet -b 12)
numbers() { sed -n '/"event":"\(step\|epoch\)"/{s/"\(samples_per_s\|data_wait_ms\|seconds\)":[^,}]*//g;p}' "$@"; }
table()
{
    local name columns=()
    for name in epoch step loss acc running_loss running_acc gradient_norm; do
        field "$1" step $name >"column.$name"
        columns+=("column.$name")
    done
    paste -d ' ' "${columns[@]}"
}

# like_each RANKS STEPS [OPTIONS]: checkpoint and test results must equal 06's. In 07 every rank reports the same
# training numbers: the means of those that 06's ranks report.
like_each()
{
    local n=$1 steps=$2 rank
    shift 2
    rm -f six.* seven.*
    ranks "$n" "$older/train" "${run[@]}" --metrics six.%r.jsonl --save six.st "$@" >six.out 2>&1 &&
        ranks "$n" "$train" "${run[@]}" --metrics seven.%r.jsonl --save seven.st "$@" >seven.out 2>&1 ||
        { tail -3 six.out seven.out; return 1; }
    cmp six.st seven.st && alike seven.0.jsonl six.0.jsonl epoch || return 1
    for ((rank = 0; rank < n; rank++)); do
        table "six.$rank.jsonl"
        diff <(numbers seven.0.jsonl) <(numbers seven.$rank.jsonl) >&2 || return 1
    done >each
    table seven.0.jsonl | awk -v n="$n" -v steps="$steps" '
        FNR == NR { for (i = 3; i <= NF; i++) sum[$1, $2, i] += $i / n; next }
        {
            for (i = 3; i <= NF; i++) {
                d = $i - sum[$1, $2, i]
                most = i == 4 || i == 6 ? 1e-4 : i == NF ? 1e-6 * $i : 1e-6     # percent, with fewer digits
                if (!(d <= most && d >= -most)) { print $0 ": " $i ", not " sum[$1, $2, i]; bad = 1 }
            }
            bad = bad || NF != 7
        }
        END { if (FNR != steps) { print FNR " steps"; bad = 1 } exit bad }' each -
}
check "2 ranks, --accumulate, bf16" shown like_each 2 10 "${lenet[@]}" --accumulate 3 --amp bf16
check "06's ranks differ" shown not diff <(field six.0.jsonl step loss) <(field six.1.jsonl step loss)
# The third rank gets none of the 2 test batches.
check "3 ranks, 2 test batches" shown like_each 3 8 -b 11 --arch convnet --test-samples 17

test_done
