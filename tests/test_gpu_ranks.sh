#!/usr/bin/env bash
# ctest: PROCESSORS 2 TIMEOUT 400 LABELS deadlines
# The bundle's checks of NCCL ranks that share a GPU (tools/gpu_bundle/run.sh ranks), on the mock CUDA.
. "$SRC/tests/test.sh"
. "$SRC/tests/fake.sh"
unset "${!NCCL_@}" CUDA_VISIBLE_DEVICES DDP_NO_GPU DDP_RESULTS

there=$TMP/gpu-bundle
mkdir -p "$there"/{tools,tests,build/cuda,build/tests}
cp "$SRC/tools/shell.sh" "$there/tools"
cp "$SRC"/tests/{run,ranks}.sh "$there/tests"
for step in 01_single_gpu 03_ddp_fork 07_dist_eval; do
    mkdir "$there/build/cuda/$step"
    ln -s "$tree/fake/$step/train" "$there/build/cuda/$step"
done
ln -s "$tree/cpu/07_dist_eval/launch" "$there/build/cuda/07_dist_eval"
ln -s "$tree/tests/tool_compare_weights" "$there/build/tests"
printf '#!/bin/sh\n' >"$there/build/tests/test_streams_cuda"
chmod +x "$there/build/tests/test_streams_cuda"
echo "needs:" >"$there/about"
sed 's/batch=128 network=resnet18 count=32/batch=2 network=lenet count=4/' "$SRC/tools/gpu_bundle/run.sh" >"$there/run"
chmod +x "$there/run"

expect 0 "9 passed, 0 failed, 0 skipped" env DDP_LIMITS=2 "$there/run" ranks
cat "$TMP/output"
check "two ranks and one process" grep -qE "^shared_2_ranks .* one process [0-9a-f]+; 2 ranks, twice" "$TMP/output"
check "a step's time" grep -qE "^shared_speed .* a step takes [0-9.]+ ms, with two ranks [0-9.]+ ms" "$TMP/output"
check "the limits are four minutes in all" test "$(grep '^shared=' "$there/run" | grep -oE ' [0-9]+"' | tr -d '"' |
    awk '{ sum += $1 } END { print sum }')" -le 240

# If NCCL refuses, the first line fails, and the others are left out.
NCCL_HOSTID=one expect 1 "0 passed, 1 failed" "$there/run" ranks
check "the reason" grep -q "ranks 0 and 1 have the same GPU" "$TMP/output"
test_done
