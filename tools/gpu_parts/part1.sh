#!/bin/bash
# part1.sh BUNDLE.tar.xz OUT - first part of what a GPU owes: NCCL with ranks that share the GPU, then the bundle's tests.
# Ends after LIMIT seconds (225), whatever is running; what was done until then is in OUT/part1.txt.
#
#   run: command = "bash part1.sh gpu-bundle.tar.xz $OUT", timeout_s = 240
set -uo pipefail
bundle=$(readlink -f "$1") out=$(readlink -f "$2") begin=$SECONDS limit=${LIMIT:-225}
work=$(mktemp -d) && cd "$work" && tar xf "$bundle"
exec > >(tee "$out/part1.txt") 2>&1
left() { echo $((limit - (SECONDS - begin))); }
# tests NAME REGEX: a report of its own, even if the time is over in the middle
tests()
{
    [ "$(left)" -gt 5 ] || { echo "no time for $1"; return; }
    echo "== $1, $(left) s left"
    timeout -k 5 "$(left)" gpu-bundle/tools/gpu_tests.sh "$2"
    cp gpu-bundle/build/gpu-report.txt "$out/part1_$1.txt"
}
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit --format=csv,noheader
# Nothing has run with two ranks of NCCL: the simplest first, and what NCCL says if it fails.
NCCL_DEBUG=WARN tests shared '^shared_2_ranks'
NCCL_DEBUG=WARN tests shared_more '^shared_(4_ranks|2_launched|fp16|sync_bn|killed)'
# Attention against float64, plain and fused; then the rest of the programs, and the steps.
tests attention '^(test_transformer_ops_cuda|fused_gpt)'
tests programs '^test_(ops|amp_ops|gpt_step|model|replicas|streams|loader|text|step|step_amp|ranks_step)_cuda'
tests steps '^(steps_alike|twice|recorded|gloo)'
tests sanitizers '^(memcheck|initcheck)_'
echo "== done, $(left) s left"
