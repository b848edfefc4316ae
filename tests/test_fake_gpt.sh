#!/usr/bin/env bash
# ctest: TIMEOUT 400
# A small GPT with dropout on simulated GPUs (fake_cuda/fake.h) has the CPU's losses and weights up to rounding, in each
# number type. On one GPU 01, 02, 03 and 07 give the same bits in f32. In 16 bits, recorded steps of 07 give the bits of
# steps that are not recorded.
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
. "$SRC/tests/fake.sh"
[ -x "$tree/cpu/01_single_gpu/train" ] || { echo "skipped: no cpu backend in this build"; exit 77; }
export FAKE_GPUS=3
cat "$SRC"/{LICENSE,LICENSE} | head -c 1085 >text.txt     # 80 windows to train: 3 batches of 24, and a short one
common=(-a gpt --data text:text.txt --layers 2 --heads 3 --width 24 --block 12 --dropout 0.1 --optim sgd --lr 0.1
    --epochs 2 --seed 3 --deterministic --threads 1 -j 1 -p 1)

# train NAME BACKEND STEP OPTION...: leaves NAME.st, NAME.json and the weights' hash in $hash.
train()
{
    rm -f "$1.json"
    trains "$tree/$2/$3/train" "${common[@]}" --save "$1.st" --metrics "$1.json" "${@:4}"
}

like() { train "${@:2}" && { [ "$hash" = "$1" ] || { echo "$hash, not $1"; return 1; }; }; }

losses() { field "$1" step loss && field "$1" epoch test_loss; }
losses_near()
{
    near <(losses "$1.json") <(losses "$2.json") "$3"
}

check "01 on the CPU" train cpu cpu 01_single_gpu -b 24
check "01" train one fake 01_single_gpu -b 24 --no-tf32
one=$hash
check "01: the CPU's losses" losses_near one cpu 1e-5
check "01: the CPU's weights" "$tree/tests/tool_compare_weights" one.st cpu.st 1e-4
check "02, one device" like "$one" two fake 02_data_parallel -b 24 --no-tf32 --devices 1
check "02, three devices" train two fake 02_data_parallel -b 24 --no-tf32 --devices 3
check "02, three devices: 01's losses" losses_near two one 1e-5
check "03, one rank" like "$one" three fake 03_ddp_fork -n 1 -b 24 --no-tf32
check "03, two ranks" train three fake 03_ddp_fork -n 2 -b 12 --no-tf32
check "03, two ranks: 01's weights" "$tree/tests/tool_compare_weights" three.st one.st 1e-4
FAKE_DELAY=300 FAKE_ORDER=last \
    check "07, one rank, delays" like "$one" seven fake 07_dist_eval -b 24 --no-tf32 --amp off

while read -r far words; do
    read -ra options <<<"$words"
    check "$words on the CPU" train cpu cpu 07_dist_eval -b 24 "${options[@]}"
    check "$words" train amp fake 07_dist_eval -b 24 "${options[@]}"
    check "$words: the CPU's losses" losses_near amp cpu "$far"
    check "$words: the CPU's weights" "$tree/tests/tool_compare_weights" amp.st cpu.st "$far"
    check "$words, not recorded" like "$hash" amp fake 07_dist_eval -b 24 "${options[@]}" --slow-network 1e6
done <<'END'
0.02 --amp bf16
0.01 --amp fp16 --loss-scale 1024 --accumulate 2 --clip-norm 1
END
test_done
