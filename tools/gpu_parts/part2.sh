#!/bin/bash
# part2.sh BUNDLE.tar.xz OUT [BUNDLE_WITH_norm_one_kernel.tar.xz] - second part of what a GPU owes: speed. PyTorch is python3's.
# Ends after LIMIT seconds (225); the tables so far are in OUT.
#
#   run: command = "bash part2.sh gpu-bundle.tar.xz $OUT norm-bundle.tar.xz", timeout_s = 240
set -uo pipefail
bundle=$(readlink -f "$1") out=$(readlink -f "$2") norm=${3:+$(readlink -f "$3")}
begin=$SECONDS limit=${LIMIT:-225} quick=${QUICK:+--quick}
work=$(mktemp -d) && cd "$work" && tar xf "$bundle" && mkdir norm && { [ -z "$norm" ] || tar xf "$norm" -C norm; }
exec > >(tee "$out/part2.txt") 2>&1
left() { echo $((limit - (SECONDS - begin))); }
# bench TREE NAME OPTION...
bench()
{
    local tree=$1 name=$2
    [ "$(left)" -gt 15 ] || { echo "no time for $name"; return; }
    echo "== $name, $(left) s left"
    (
        cd "$tree" || exit
        export DDP_PYTHON=${DDP_PYTHON:-$(type -P python3)}
        export LD_LIBRARY_PATH=$PWD/lib:${DDP_LIBRARIES:-}:${LD_LIBRARY_PATH:-}:$(python3 -c '
import glob
try:
    import nvidia
    print(*(f for p in nvidia.__path__ for f in sorted(glob.glob(p + "/*/lib"))), sep=":")
except ImportError:
    pass')
        timeout -k 5 "$(left)" python3 tools/bench.py gpu $quick "${@:3}"
    )
    cp "$tree"/build/bench/gpu/table.md "$out/part2_$name.md"
}
# 1. BatchNorm in one kernel, in turns with HEAD: 1,315 us at 4171cd6; worth it from -60 us on.
for round in 1 2; do
    bench gpu-bundle "head_$round" --only "${NORM_JOB:-resnet18_tf32}" --modes '' --rounds 2
    [ -z "$norm" ] || bench norm/gpu-bundle "norm_$round" --only "${NORM_JOB:-resnet18_tf32}" --modes '' --rounds 2
done
# 2. The two GPTs, ours, then with fused attention, then beside PyTorch (compiled with a CUDA graph).
bench gpu-bundle gpt --only gpt --modes '' --rounds 2
DDP_ATTENTION=fused bench gpu-bundle gpt_fused --only gpt --modes '' --rounds 2
bench gpu-bundle gpt384_torch --only gpt384 --modes graph --rounds 2
bench gpu-bundle gpt768_torch --only gpt768 --modes graph --rounds 2
echo "== done, $(left) s left"
