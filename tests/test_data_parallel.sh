#!/usr/bin/env bash
# With LeNet, 02_data_parallel has the losses and weights of 01_single_gpu, up to rounding, on any number of devices.
#
# ctest: PROCESSORS 2
# shellcheck disable=SC2317  # its functions are called, by expect and check
. "$SRC/tests/test.sh"

train() # train STEP OPTION...: 20 steps; the last batch of each epoch is smaller
{
    local step=$1
    shift
    "$BUILD/$step/train" --data synthetic --train-samples 97 --test-samples 50 -b 10 --epochs 2 -p 1 --seed 3 \
        --threads 1 -j 1 "$@"
}
same_losses() { near <(field "$1" step loss) <(field "$2" step loss) 1e-4; }
same_weights() { "$BUILD/../tests/tool_compare_weights" "$1" "$2" "$3"; }

expect 0 "weight hash: " train 01_single_gpu --arch lenet --metrics one.jsonl --save one.st
cp output one.out
for n in 1 2 3; do
    expect 0 "weight hash: " train 02_data_parallel --arch lenet --devices $n --metrics $n.jsonl --save $n.st
    cp output $n.out
    check "the losses of one device, on $n" same_losses $n.jsonl one.jsonl
    check "the weights of one device, on $n" same_weights $n.st one.st 5e-3
    check "the times of a step's parts, for each epoch" test "$(grep -cE "== a step takes [0-9.]+ ms: \
broadcast [0-9.]+ \| scatter [0-9.]+ \| forward [0-9.]+ \| gather [0-9.]+ \| scatter gradient [0-9.]+ \| \
backward [0-9.]+ \| reduce [0-9.]+ \| loss, optimizer and data [0-9.]+$" output)" = 2
    check "the memory of $n devices" grep -qE \
        "== memory: $(seq -s ', ' -f 'device %g: [0-9]+ MiB' 0 $((n - 1)))$" output
done
check "one device: the same weights as 01" test "$(hash_of 1.out)" = "$(hash_of one.out)"

few=(--arch lenet -b 3 --train-samples 8)
expect 0 "" train 01_single_gpu "${few[@]}" --metrics few.one
expect 0 "device 3: " train 02_data_parallel "${few[@]}" --devices 4 --metrics few.four
check "4 devices for 3 rows" same_losses few.four few.one
expect 0 "device 0: " train 02_data_parallel --arch lenet --epochs 1 --max-steps 1
check "two devices by default" grep -q 'device 1: [0-9]* MiB$' output

# --shared-link counts all bytes, even of gradients that a CPU reads in place. In each step, every device but the
# first receives 62006 weights and sends as many gradients, both with some padding: oneDNN's version and the processor
# decide how much. The link also carries all images but the first device's, and for each of them 10 logits and 10
# gradients.
rows=$((10 - (10 + 2) / 3))
expect 0 "" train 02_data_parallel --arch lenet --devices 3 --shared-link 20 --max-steps 1
sent=$(awk -v rows=$rows '/== link: / { print ($3 / 4e-6 - rows * (3072 + 20)) / 4 }' output)
check "62006 weights and some padding cross the link, not $sent" \
    awk -v sent="$sent" 'BEGIN { exit !(sent > 62006 - 63 && sent < 1.1 * 62006) }'
took=$(sed -nE 's/.*: broadcast ([0-9.]+) .*/\1/p' output)
check "copies take turns: the broadcast to 2 takes 24.8 ms at least, here $took" \
    awk -v took="$took" 'BEGIN { exit !(took >= 2 * 4e3 * 62006 / 20e6) }'
slow=$(hash_of output)
expect 0 "weight hash: $slow" train 02_data_parallel --arch lenet --devices 3 --max-steps 1

# The first device's BatchNorm statistics are kept. Evaluation needs them on all devices and in the checkpoint.
expect 0 "" train 02_data_parallel --arch convnet --devices 3 --metrics norm.jsonl --save norm.st
hash=$(hash_of output)
expect 0 "" train 02_data_parallel --arch convnet --devices 3
check "the same weights twice" test -n "$hash" -a "$(hash_of output)" = "$hash"
expect 0 "" train 02_data_parallel --arch convnet --devices 3 --save half.st --max-steps 13
expect 0 "" train 02_data_parallel --arch convnet --devices 3 --resume half.st
check "the same weights when resumed" test "$(hash_of output)" = "$hash"
for step in 01_single_gpu "02_data_parallel --devices 2"; do
    # shellcheck disable=SC2086  # two words
    expect 0 "" train $step --arch convnet --evaluate --resume norm.st --metrics eval.jsonl
    check "the same test loss with: $step" \
        near <(field eval.jsonl eval test_loss) <(field norm.jsonl epoch test_loss | tail -1) 1e-5
    rm -f eval.jsonl
done
test_done
