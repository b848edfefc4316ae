#!/usr/bin/env bash
# ctest: TIMEOUT 200 PROCESSORS 2
# 05 learns in 16-bit types as it does in f32: from the same weights, with the same batches, the mean loss of
# steps 11 to 50 is within 5 % of f32's. (test_step_amp.c tests the numbers of single steps, also of ResNets.)
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
cd "$TMP" || exit 1
data=fashion-mnist
[ -d /usr/share/datasets/fashion-mnist ] || data=synthetic

# losses OPTIONS: prints the losses of 50 steps.
losses()
{
    "$BUILD/05_ddp_amp/train" --data $data --test-samples 32 --max-steps 50 -p 1 -b 32 --metrics run.jsonl "$@" \
        >output 2>&1
    sed -n 's/.*"event":"step".*"loss":\([^,}]*\)[,}].*/\1/p' run.jsonl
    rm -f run.jsonl
}
# near FILE FILE: the mean losses of steps 11 to 50 differ by at most 5 %.
near()
{
    paste "$1" "$2" | awk 'NR > 10 { a += $1 / 40; b += $2 / 40 }
        END { print a, b; exit !(NR == 50 && b > 0 && a > 0.95 * b && a < 1.05 * b) }'
}
learns() { awk 'NR <= 5 { first += $1 } NR > 45 { last += $1 } END { exit !(last < 0.8 * first) }' "$1"; }

for options in "--arch lenet --lr 0.02" "--arch convnet"; do
    for mode in off bf16 fp16; do
        # shellcheck disable=SC2086
        losses $options --amp $mode >$mode
        [ $mode = off ] || check "$options in $mode: mean loss" near $mode off
        check "$options learns in $mode" learns $mode
    done
done
test_done
