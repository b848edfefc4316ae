#!/usr/bin/env bash
# A run can resume from a checkpoint that revision 8d380f2 wrote in the middle of an epoch. That revision made
# tests/reference/8d380f2-*.safetensors with the commands below and --max-steps 10. The .txt files have the losses
# of its later steps and tests.
# ctest: PROCESSORS 2
. "$SRC/tests/test.sh"

seq 1 2000 >numbers.txt
mkdir -p data/mnist
(cd data/mnist && perl -e '
    sub byte { $x = ($x * 1103515245 + 12345) % 2**31; $x >> 16 & 255 }
    sub put { my ($name, @bytes) = @_; open F, ">$name-ubyte"; print F @bytes }
    for (["train", 100], ["t10k", 64]) {
        my ($part, $n) = @$_;
        put("$part-images-idx3", pack("N4", 0x803, $n, 28, 28), map chr byte(), 1 .. $n * 784);
        put("$part-labels-idx1", pack("N2", 0x801, $n), map chr(byte() % 10), 1 .. $n);
    }')
small=(--seed 3 --threads 1 -p 1 --epochs 3)
gpt=(-a gpt --data text:numbers.txt --layers 1 --heads 2 --width 16 --block 16 --dropout 0.1 --train-samples 128
    --test-samples 16)

sgd() { "$BUILD/01_single_gpu/train" "${small[@]}" -a convnet --data mnist -b 16 --lr 0.001 "$@"; }
adamw() { "$BUILD/01_single_gpu/train" "${small[@]}" "${gpt[@]}" -b 16 --lr 0.01 --warmup 2steps "$@"; }
fp16() { "$BUILD/05-6/launch" --nproc-per-node 2 --max-restarts 0 -- "$BUILD/05-6/train" "${small[@]}" \
    "${gpt[@]}" -b 4 --optim sgd --lr 0.2 --schedule constant --warmup 0 --amp fp16 --growth-interval 1 \
    --virtual-ranks 4 "$@"; }

continues()
{
    cp "$SRC/tests/reference/8d380f2-$1.safetensors" run.st
    rm -f run.jsonl
    expect 0 "weight hash: " "$1" --save run.st --resume auto --metrics run.jsonl
    { field run.jsonl step loss; field run.jsonl epoch test_loss; } >losses
    check "$1: the losses of 8d380f2" near losses "$SRC/tests/reference/8d380f2-$1.txt" "$2"
}
continues sgd 1e-4
continues adamw 1e-4
continues fp16 1e-2
check "fp16: the loss scale and its skipped steps continued" grep -q "skipped: [1-9]" output
test_done
