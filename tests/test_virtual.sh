#!/usr/bin/env bash
# ctest: TIMEOUT 400 PROCESSORS 2
# The solution of exercise 05-6, --virtual-ranks V: bit-identical weights on every number of processes that divides V.
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
step=$BUILD/05-6

ranks()
{
    local n=$1
    shift
    "$step/launch" --nproc-per-node "$n" --max-restarts 0 -- "$step/train" --data synthetic --threads 1 --seed 3 "$@"
}
# With 4 virtual ranks, an epoch of lenet has 8 steps. The last step's batches are smaller.
lenet=(-a lenet --train-samples 230 --test-samples 32 -b 8 --epochs 2 --lr 0.05 --amp off)
convnet=(-a convnet --train-samples 100 --test-samples 16 -b 4 --epochs 2 --lr 0.02 --amp off)
gpt=(-a gpt --data "text:$SRC/LICENSE" --layers 2 --heads 2 --width 16 --block 16 --dropout 0.1 --train-samples 46
    --test-samples 4 -b 2 --epochs 2 --amp off)

# alike "N..." [OPTIONS]: these numbers of processes end with the same weights. Sets $hash to their hash.
alike()
{
    local n first='' numbers=$1
    shift
    for n in $numbers; do
        expect 0 "weight hash: " ranks "$n" "$@"
        hash=$(hash_of)
        first=${first:-$hash}
        check "$n processes: $*" is "$hash" "$first"
    done
}

expect 2 "--virtual-ranks: cannot be combined with --accumulate" "$step/train" --virtual-ranks 4 --accumulate 2
expect 2 "--virtual-ranks 4 cannot be shared by 3 processes" ranks 3 "${lenet[@]}" --virtual-ranks 4
check "no work" not grep -q "Training" output

alike "1 2 4" "${lenet[@]}" --virtual-ranks 4
four=$hash
alike "2 4" "${lenet[@]}" --virtual-ranks 4 --amp bf16 --clip-norm 0.5

alike "1 2 4" "${lenet[@]}" --virtual-ranks 4 --amp fp16 --growth-interval 2 --epochs 4 -p 1
check "steps were skipped" grep -q "skipped: [1-9]" output
# Gradients that are too large for the sums of integers end the run if the loss scale does not adapt.
for n in 1 4; do
    expect 3 "are not finite with a loss scale of" ranks $n "${lenet[@]}" --virtual-ranks 4 --loss-scale 1e12
done

alike "1 2 4" "${gpt[@]}" --virtual-ranks 4
dropped=$hash
alike "2" "${gpt[@]}" --virtual-ranks 4 --dropout 0
check "dropout changes something" [ "$hash" != "$dropped" ]

# BatchNorm over all ranks: the virtual ranks of a process take turns. An epoch of convnet has 7 steps, the last one
# with one row.
alike "1 2 4" "${convnet[@]}" --virtual-ranks 4 --sync-bn
together=$hash
alike "1 4" "${convnet[@]}" --virtual-ranks 4
check "--sync-bn changes something" [ "$hash" != "$together" ]
expect 0 "" ranks 4 "${convnet[@]}" --sync-bn --max-steps 3 --save real.st
expect 0 "" ranks 1 "${convnet[@]}" --sync-bn --max-steps 3 --save virtual.st --virtual-ranks 4
check "real ranks with --sync-bn" "$BUILD/../tests/tool_compare_weights" virtual.st real.st 1e-5

# The real ranks run 05: a mistake in the exercise's program, for example in a short batch, could change the results of
# real and virtual ranks alike.
few=("${lenet[@]}" --max-steps 10)
expect 0 "" "$BUILD/05_ddp_amp/launch" --nproc-per-node 4 --max-restarts 0 -- "$BUILD/05_ddp_amp/train" \
    --data synthetic --threads 1 --seed 3 "${few[@]}" --save real.st
expect 0 "" ranks 2 "${few[@]}" --save virtual.st --virtual-ranks 4
check "real ranks" "$BUILD/../tests/tool_compare_weights" virtual.st real.st 1e-5

for n in 4 2 1; do
    expect 0 "" ranks $n "${lenet[@]}" --virtual-ranks 4 --save part.st --resume auto --max-steps $((16 - 5 * n / 2))
done
expect 0 "weight hash: $four" ranks 4 "${lenet[@]}" --virtual-ranks 4 --resume part.st
check "no warning" not grep -qE "warning|skipped" output

test_done
