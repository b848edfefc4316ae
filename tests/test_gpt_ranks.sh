#!/usr/bin/env bash
# ctest: TIMEOUT 300 PROCESSORS 2
# A GPT with dropout: any number of ranks, 02's replicas and --accumulate train the same weights, up to rounding. A run
# in 16 bits that is stopped and resumed ends with the same bits.
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
seq 1000 4000 | tr '0-4' 'a-e' >text
gpt=(-a gpt --data text:text --block 16 --layers 2 --heads 2 --width 32 --optim sgd --lr 0.05 --schedule constant
    --warmup 0 --seed 3 --epochs 1 --max-steps 12 -p 1 --threads 1)
compare=$BUILD/../tests/tool_compare_weights

drop=(--dropout 0.1)
expect 0 "weight hash: " "$BUILD/01_single_gpu/train" "${gpt[@]}" "${drop[@]}" -b 24 --save one.st
same()
{
    local name=$1
    shift
    expect 0 "weight hash: " "$@" "${gpt[@]}" "${drop[@]}" --save "$name.st"
    check "$name: the weights of one process" "$compare" "$name.st" one.st 1e-3
}
same five-devices "$BUILD/02_data_parallel/train" --devices 5 -b 24
same three-ranks "$BUILD/04_ddp_launcher/launch" --nproc-per-node 3 -- "$BUILD/04_ddp_launcher/train" -b 8
same ranks-and-parts "$BUILD/06_slurm/launch" --nproc-per-node 2 -- \
    "$BUILD/06_slurm/train" --amp off --accumulate 5 -b 12
expect 0 "weight hash: " "$BUILD/01_single_gpu/train" "${gpt[@]}" -b 24 --save undropped.st
check "dropout changes the weights" not "$compare" undropped.st one.st 1e-3

five=("$BUILD/05_ddp_amp/launch" --nproc-per-node 2 -- "$BUILD/05_ddp_amp/train" "${gpt[@]}" "${drop[@]}" -b 12)
for amp in bf16 fp16; do
    expect 0 "weight hash: " "${five[@]}" --amp $amp --save $amp.st
    whole=$(hash_of)
    expect 0 "weight hash: " "${five[@]}" --amp $amp --save part.st --max-steps 5
    expect 0 "weight hash: " "${five[@]}" --amp $amp --save part.st --resume auto
    check "$amp: ended after step 5 and resumed" [ "$(hash_of)" = "$whole" ]
    check "$amp: near f32's weights" "$compare" $amp.st one.st 0.2
    rm part.st*
done

test_done
