#!/usr/bin/env bash
# ctest: TIMEOUT 300 PROCESSORS 2
# 05 in short types learns as it does in f32: from the same weights, with the same batches, the mean loss of
# steps 11 to 50 is within 5 % of f32's. The numbers of a single step: test_step_amp.c.
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
cd "$TMP" || exit 1
data=fashion-mnist
[ -d /usr/share/datasets/fashion-mnist ] || data=synthetic

losses() { sed -n 's/.*"event":"step".*"loss":\([^,}]*\)[,}].*/\1/p' "$@"; }

# mean_loss SEEDS [OPTIONS]: of the steps 11 to 50 of as many runs.
mean_loss()
{
    local seeds=$1 seed
    shift
    for ((seed = 1; seed <= seeds; seed++)); do
        "$BUILD/05_ddp_amp/train" --data $data --test-samples 32 --max-steps 50 -p 1 --metrics run.$seed.jsonl \
            --seed $seed "$@" >output 2>&1 || return 1
        losses run.$seed.jsonl | tail -40
    done | awk -v wanted=$((40 * seeds)) '{ sum += $1 } END { if (NR == wanted) print sum / NR }'
}
# near A B: within 5 %, and numbers.
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(b > 0 && a > 0.95 * b && a < 1.05 * b) }'; }
# Of the first run the last five losses are lower than the first five.
learns()
{
    losses run.1.jsonl | awk 'NR <= 5 { first += $1 } NR > 45 { last += $1 } END { exit !(last < 0.8 * first) }'
}

# compare NAME SEEDS [OPTIONS]: in f32, and in the short types.
compare()
{
    local name=$1 wide short mode
    shift
    wide=$(mean_loss "$@" --amp off)
    for mode in bf16 fp16; do
        short=$(mean_loss "$@" --amp $mode)
        echo "$name: mean loss $short in $mode, $wide in f32"
        check "$name in $mode: mean loss ${short:-none}, in f32 ${wide:-none}" near "$short" "$wide"
        check "$name learns in $mode" learns
    done
}

compare lenet 1 --arch lenet -b 32 --lr 0.02
compare convnet 1 --arch convnet -b 32
# Two runs of a ResNet part within a few steps, in f32 as well if it rounds otherwise (one processor and another).
# Small steps keep them near for longer, and several runs make a mean that has less of that.
compare resnet18 3 --arch resnet18 -b 16 --lr 0.0005
test_done
