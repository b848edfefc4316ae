#!/usr/bin/env bash
# Imitates three different machines: rank 1 has its own clone and build, and oneDNN uses only AVX2 there; on rank 2 only
# SSE4.1. The ranks accept each other, have the losses of equal machines up to rounding, and end with equal weights.
# ctest: PROCESSORS all TIMEOUT 600 LABELS slow
. "$SRC/tests/test.sh"
step=05_ddp_amp
tree=${BUILD%/*}

found() { sed -n "s/^$1:[A-Z]*=//p" "$tree/CMakeCache.txt"; }

# The second clone is a copy without Git's files. So a line in its revision.cmake sets the first build's revision.
mkdir -p another/clone/tests
cp -r "$SRC"/{common,cmake,CMakeLists.txt,[0-9][0-9]_*,tools,exercises} another/clone
cp -r "$SRC/tests/fake_cuda" another/clone/tests
revision=$(grep -aoE '^revision [^,]+' "$BUILD/$step/train")
sed -i "s/^file(CONFIGURE/set(${revision%% *} ${revision#* })\n&/" another/clone/cmake/revision.cmake
expect 0 "" cmake -S another/clone -B another/clone/build -DDDP_CUDA=OFF -DDDP_TESTS=OFF \
    -DDDP_MARCH="$(found DDP_MARCH)" -DCMAKE_C_COMPILER="$(found CMAKE_C_COMPILER)"
expect 0 "" cmake --build another/clone/build --target ${step}_cpu --parallel 2

cat >machine <<'END'
#!/bin/sh
[ "$RANK" != 1 ] || cd another/clone
[ -n "$EQUAL" ] || case $RANK in 1) export DNNL_MAX_CPU_ISA=AVX2 ;; 2) export DNNL_MAX_CPU_ISA=SSE41 ;; esac
exec build/cpu/05_ddp_amp/train "$@"
END
chmod +x machine
ln -s "$tree" build
all=("$BUILD/$step/launch" --nproc-per-node 3 -- ./machine --threads 1 --max-steps 5 --epochs 1 --print-freq 1)

# alike NAME OPTIONS...: trains on different machines, and on equal ones.
alike()
{
    local name=$1
    shift
    # The program compares the ranks' weights before it prints a hash.
    expect 0 "weight hash:" "${all[@]}" --metrics "$PWD/$name.different" "$@"
    expect 0 "weight hash:" env EQUAL=1 "${all[@]}" --metrics "$PWD/$name.equal" "$@"
    check "$name: the losses are those of equal machines" near "$name"
}

near()
{
    python3 - "$1" <<'END'
import json, sys
def losses(kind):
    rows = (json.loads(line) for line in open(f"{sys.argv[1]}.{kind}"))
    return [row["loss"] for row in rows if row["event"] == "step"]
a, b = losses("different"), losses("equal")
print(a, b)
sys.exit(len(a) != 5 or any(abs(x - y) > 1e-3 * y for x, y in zip(a, b)))
END
}

alike resnet18 -a resnet18 --data synthetic -b 8 --test-samples 8 --amp off --lr 0.0005 --clip-norm 1
alike gpt -a gpt --data "text:$SRC/README.md" -b 8 --amp bf16
test_done
