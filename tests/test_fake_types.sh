#!/usr/bin/env bash
# ctest: TIMEOUT 400
# 07 on simulated GPUs (fake_cuda/fake.h), in each number type. Steps that are recorded and replayed must give
# bit-identical weights to steps that are not recorded, on one rank and on two. With the same batches, two ranks must
# agree with one up to rounding. An epoch has four full batches and a short one, and both sizes are replayed.
. "$SRC/tests/test.sh"
. "$SRC/tests/fake.sh"
export FAKE_GPUS=2

common=(--arch lenet --data synthetic --image-size 28 --train-samples 18 --test-samples 8 --seed 3 --epochs 3
    --deterministic)

train()
{
    local ranks=$1 name=$2
    shift 2
    trains "$tree/cuda/07_dist_eval/launch" -n "$ranks" -- "$tree/fake/07_dist_eval/train" "${common[@]}" \
        -b $((4 / ranks)) --save "$name.st" "$@" && grep "== test:" "$TMP/output" >"$name.test"
}

# Each line: a name, how far apart one rank and two may be after an epoch (relative to a tensor's largest entry), and
# options. In 16 bits the distance is larger: rounding may decide which pixel max pooling picks.
while read -r type far options; do
    read -ra options <<<"$options"
    hashes=()
    for ranks in 1 2; do
        check "$type, ranks $ranks: recorded" train $ranks whole "${options[@]}"
        recorded=$hash
        check "$type, ranks $ranks: not recorded" train $ranks whole "${options[@]}" --slow-network 1e6
        check "$type, ranks $ranks: both end with the same weights" test "$hash" = "$recorded"
        check "$type, ranks $ranks: one epoch" train $ranks $ranks "${options[@]}" --max-steps 5
        hashes+=("$hash")
    done
    check "$type: two ranks round differently from one" test "${hashes[0]}" != "${hashes[1]}"
    check "$type: two ranks agree with one" "$tree/tests/tool_compare_weights" 2.st 1.st "$far"
    sed "s/^/$type: /" "$TMP/checked" | tail -1
    [[ $type != f32 ]] || check "$type: two ranks print the test results of one" diff 1.test 2.test
done <<'END'
f32  1e-6 --amp off --no-tf32
bf16 0.02 --amp bf16 --compress bf16
fp16 0.02 --amp fp16 --loss-scale 1024 --accumulate 2 --clip-norm 1
END
test_done
