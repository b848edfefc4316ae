#!/usr/bin/env bash
# ctest: PROCESSORS 2 TIMEOUT 600 LABELS slow
# Runs the tests of ./ddp doctor --gpu on the mock CUDA. Also tests the bundle of ./ddp bundle, which contains them.
. "$SRC/tests/test.sh"
. "$SRC/tests/fake.sh"
unset "${!NCCL_@}" CUDA_VISIBLE_DEVICES

there=$TMP/there
mkdir -p "$there"/build/{cuda,cuda-gloo,tests} "$TMP/bin"
cp -r "$SRC/tools" "$there"
mkdir "$there/tests"
cp "$SRC"/tests/{run,ranks}.sh "$there/tests"
for step in 01_single_gpu 03_ddp_fork 07_dist_eval; do
    mkdir "$there/build/cuda/$step"
    ln -s "$tree/fake/$step/train" "$there/build/cuda/$step"
done
ln -s "$tree/cuda/07_dist_eval/launch" "$there/build/cuda/07_dist_eval"
ln -s "$tree/tests/tool_compare_weights" "$there/build/tests"
ln -s "$tree/tests/test_streams_fake" "$there/build/tests/test_streams_cuda"
gpu_tests() { DDP_LIMITS=3 "$there/tools/gpu_tests.sh" "$@"; }

expect 0 "4 passed, 0 failed" gpu_tests '^(test_streams_cuda|fused_gpt$|shared_(2_ranks|killed))'
cat "$TMP/output"
check "which attention" grep -q "^fused_gpt .* fused by cuDNN$" "$TMP/output"
check "the log of each" grep -q "^    | twice: [0-9a-f]* and" "$there/build/gpu-report.txt"
expect 0 "there is one GPU" gpu_tests nccl_2_ranks
FAKE_NCCL_VERSION=22809 NCCL_HOSTID=one expect 1 "0 passed, 1 failed" gpu_tests shared_2_ranks
check "the reason" grep -q "rank 1 has the same GPU as rank 0" "$there/build/gpu-report.txt"
expect 2 "no test's name matches nothing" gpu_tests nothing
FAKE_GPUS=0 expect 77 "there is no GPU" gpu_tests

expect 0 "$TMP/b.tar.xz: " env -C "$SRC" BUILD="$tree" tools/gpu_bundle.sh "$TMP/b.tar.xz"
check "less than 60 MiB" test "$(stat -c %s "$TMP/b.tar.xz")" -lt $((60 << 20))
expect 0 "" tar -xf "$TMP/b.tar.xz"
check "it has Gloo" test -f gpu-bundle/lib/libgloo.so.0
CUDA_VISIBLE_DEVICES='' expect 77 "there is no GPU" gpu-bundle/tools/gpu_tests.sh
expect 0 "only jobs that match" gpu-bundle/tools/gpu_tests.sh run gpu-bundle/tools/bench.py --help
test_done
