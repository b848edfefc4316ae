#!/usr/bin/env bash
# ctest: TIMEOUT 300 PROCESSORS 2
# 05: mixed precision, a loss scale on which all ranks agree, gradient accumulation, clipping, 16-bit messages. Where
# nothing may change, weights are compared bit by bit. Where sums are rounded differently, there is a tolerance.
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
step=$BUILD/05_ddp_amp
lenet=(--arch lenet --data synthetic --train-samples 240 --test-samples 32 -b 16 --threads 1 --seed 3 --epochs 2
    --lr 0.02)
last_of() { field "$2" step "$1" | tail -1; }       # last_of NAME FILE

# ranks N [OPTIONS]: N ranks of $train, by default 05's; their metrics are in m.RANK.jsonl.
train=$step/train
ranks()
{
    local n=$1
    shift
    rm -f m.*.jsonl
    "$step/launch" --nproc-per-node "$n" --max-restarts 0 -- "$train" "${lenet[@]}" -p 1 --metrics m.%r.jsonl "$@"
}
said() { grep -E '^\[rank.*(apart|finite|ended)' output | head -1; }
hash_with() { expect 0 "weight hash: " ranks "$@" >&2; hash_of; }

expect 0 "== amp: off" "$train" "${lenet[@]}" --max-steps 1 --amp off
off=$(hash_of)
old_cpu=(env DNNL_MAX_CPU_ISA=AVX2)
expect 0 "== amp: off: no 16-bit type is faster here" "${old_cpu[@]}" "$train" "${lenet[@]}" --max-steps 1
expect 0 "== amp: bf16, emulated" "${old_cpu[@]}" "$train" "${lenet[@]}" --max-steps 1 --amp bf16
check "bf16 is not f32" [ "$(hash_of)" != "$off" ]
! grep -q amx_bf16 /proc/cpuinfo || expect 0 "== amp: bf16" "$train" -a gpt --data words --max-steps 1
for type in off bf16; do
    expect 0 "" "$train" "${lenet[@]}" --arch resnet18 --max-steps 1 --amp $type --metrics $type.jsonl
done
# shellcheck disable=SC2016  # awk's
check "at most 0.55 of the bytes of activations" awk -F '[:,}]' '
    /activation_bytes/ { print $(NF - 1); bytes[FILENAME] = $(NF - 1) }
    END { exit !(bytes["bf16.jsonl"] > 0 && bytes["bf16.jsonl"] <= 0.55 * bytes["off.jsonl"]) }' off.jsonl bf16.jsonl

older=$BUILD/04_ddp_launcher
expect 0 "weight hash: " "$older/launch" --nproc-per-node 2 -- "$older/train" "${lenet[@]}"
before=$(hash_of)
check "off: the weights of step 04" is "$(hash_with 2 --amp off)" "$before"
# A loss scale that is a power of two costs bf16 no precision. Gradients are clipped after the scale is divided out. So
# the weights must be those without a loss scale.
clipped=$(hash_with 2 --amp bf16 --clip-norm 0.25)
unclipped=$(hash_with 2 --amp bf16)
check "clipping changes something" [ -n "$unclipped" -a "$clipped" != "$unclipped" ]
scaled_alike() { is "$(hash_with 2 --amp bf16 --clip-norm 0.25 --loss-scale 4096)" "$clipped"; }
check "the scale does not change what is clipped" scaled_alike
expect 0 "" ranks 2 --amp off --max-steps 4
cp m.0.jsonl two
expect 0 "" ranks 1 --amp off --max-steps 4 -b 32
check "two ranks have the norms of one" near <(field two step gradient_norm) <(field m.0.jsonl step gradient_norm) 1e-4

whole() { ranks "$1" --amp off -b 20 --save whole.st "${@:2}" >whole.out && cp m.0.jsonl whole.jsonl; }
# like_whole N K: N ranks that divide batches into K parts have the losses and weights of `whole N`. With 2 ranks the
# last batch is full; with 7 each rank has 15 images in it.
like_whole()
{
    ranks "$1" --amp off -b 20 --accumulate "$2" --save parts.st "${@:3}" >output 2>&1 ||
        { said; return 1; }
    near <(field m.0.jsonl step loss) <(field whole.jsonl step loss) 1e-4 &&
        "$BUILD/../tests/tool_compare_weights" parts.st whole.st 5e-3
}
check "2 ranks" whole 2
check "2 ranks, 3 parts" like_whole 2 3
check "7 ranks" whole 7
check "7 ranks, 3 parts, and a tail of 15" like_whole 7 3
messages() { grep -c '"name":"all_reduce' trace; }
expect 0 "" ranks 2 --max-steps 3 --trace trace
once=$(messages)
expect 0 "" ranks 2 --max-steps 3 --accumulate 4 --trace trace
check "no more messages for 4 parts" [ "$(messages)" = "$once" -a "$once" -ge 3 ]
# Batch normalisation sees parts: two parts of 8 give what two batches of 8 give. --lr 0 keeps the weights the same.
expect 0 "" ranks 1 --arch convnet -b 8 --lr 0 --max-steps 6 --amp off
field m.0.jsonl step loss | awk 'NR % 2 { first = $1; next } { printf "%.9g\n", (first + $1) / 2 }' >two
expect 0 "in parts of up to 8 samples" ranks 1 --arch convnet -b 16 --lr 0 --max-steps 3 --amp off --accumulate 2
check "two parts equal two batches" near <(field m.0.jsonl step loss) two 1e-6

between()
{
    awk -v a="$1" -v b="$2" -v least="$3" -v most="$4" 'BEGIN { exit !(b > 0 && least * b <= a && a <= most * b) }'
}
bytes() { grep -o '"name":"all_reduce [^"]*"' trace | sed 's/.*all_reduce \(.*\) \([KM]*B\)"/\1 \2/' |
    awk '{ sum += $1 * ($2 == "MB" ? 1e6 : $2 == "KB" ? 1e3 : 1) } END { print sum }'; }
expect 0 "" ranks 2 --max-steps 3 --trace trace --amp off
wide=$(bytes)
expect 0 "== amp: off" ranks 2 --max-steps 3 --trace trace --amp off --compress bf16
check "half of the bytes: $(bytes) of $wide" between "$(bytes)" "$wide" 0.495 0.505
expect 0 "" ranks 3 --amp off
near_loss=$(last_of running_loss m.0.jsonl)
expect 0 "" ranks 3 --compress fp16 --amp fp16 --accumulate 2
check "3 ranks: the loss is near f32's" between "$(last_of running_loss m.0.jsonl)" "$near_loss" 0.98 1.02

# An epoch has 8 steps.
goes_on()
{
    local stop
    rm -f whole.st
    hash_with 2 "$@" --save whole.st >whole.hash
    for stop in 3 8; do
        rm -f part.st
        ranks 2 "$@" --save part.st --max-steps $stop >out 2>&1 || { tail -3 out; return 1; }
        ranks 2 "$@" --save part.st --resume auto >out 2>&1 || { tail -3 out; return 1; }
        cmp part.st whole.st || { echo "ended after step $stop"; return 1; }
    done
}
check "with all other options" goes_on --amp fp16 --growth-interval 5 --accumulate 3 --clip-norm 0.7 --compress fp16
check "the scale had grown" [ "$(last_of loss_scale m.0.jsonl)" != 65536 ]
check "AdamW: skipped steps do not count as updates" goes_on --amp fp16 --optim adamw --growth-interval 1
check "some were skipped" grep -q "skipped: [1-9]" out
# Step 04 saves a loss scale of 1, which 05 reads as "no loss scale".
expect 0 "" "$older/train" "${lenet[@]}" --max-steps 8 --save old.st
expect 0 "scale: 65536" ranks 1 --amp fp16 --max-steps 10 --resume old.st
expect 0 "== test: " "$train" -e --resume old.st "${lenet[@]}" --amp bf16

# Overflows on one rank, and how the loss scale follows: exercises 05-2 and 05-5.
expect 3 "not finite in epoch 1" ranks 2 --amp bf16 --lr 900
expect 3 "not finite with a loss scale of 1e+12" ranks 2 --amp fp16 --loss-scale 1e12

# Gradients whose average fits in fp16 must not overflow while they are added up.
much="if (comm_rank(comm) < 2) grads[7] = 60000;"
check "much: builds" build_with much 05_ddp_amp \
    compress.c "    Compress *c = arg;" "    Compress *c = arg; $much"
train=./much
expect 0 "weight hash" ranks 2 --amp off --compress fp16 --max-steps 3 --lr 1e-9

test_done
