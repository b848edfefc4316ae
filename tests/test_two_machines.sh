#!/usr/bin/env bash
# Imitates two different machines: each has its own clone and build, and on one, oneDNN uses only AVX2. The ranks accept
# each other's builds, but not the other instructions; limited to AVX2, both end with the same weights.
# ctest: PROCESSORS all TIMEOUT 600 LABELS slow
. "$SRC/tests/test.sh"
step=05_ddp_amp
tree=${BUILD%/*}

found() { sed -n "s/^$1:[A-Z]*=//p" "$tree/CMakeCache.txt"; }

# The second clone is a copy without Git's files. So a line in its revision.cmake sets the first build's revision.
mkdir -p another/clone
cp -r "$SRC"/{common,cmake,CMakeLists.txt,[0-9][0-9]_*,tools,exercises} another/clone
revision=$(grep -aoE '^revision [^,]+' "$BUILD/$step/train")
sed -i "s/^file(CONFIGURE/set(${revision%% *} ${revision#* })\n&/" another/clone/cmake/revision.cmake
expect 0 "" cmake -S another/clone -B another/clone/build -DDDP_CUDA=OFF -DDDP_TESTS=OFF \
    -DDDP_MARCH="$(found DDP_MARCH)" -DCMAKE_C_COMPILER="$(found CMAKE_C_COMPILER)"
expect 0 "" cmake --build another/clone/build --target ${step}_cpu --parallel 2

cat >machine <<'END'
#!/bin/sh
[ "$RANK" = 0 ] || cd another/clone
[ "$RANK" = 0 ] || export DNNL_MAX_CPU_ISA=AVX2
exec build/cpu/05_ddp_amp/train "$@"
END
chmod +x machine
ln -s "$tree" build
both=("$BUILD/$step/launch" --nproc-per-node 2 -- ./machine --data synthetic --threads 1 -b 8 --max-steps 5 --epochs 1
    --test-samples 8)
if grep -q avx512 /proc/cpuinfo; then
    expect 1 "instructions: rank 1 (" "${both[@]}" -a lenet
    check "it says what to do" grep -q "set DNNL_MAX_CPU_ISA=AVX2" output
fi
export DNNL_MAX_CPU_ISA=AVX2
expect 0 "weight hash:" "${both[@]}" -a resnet18 --optim adamw --clip-norm 1
expect 0 "weight hash:" "${both[@]}" -a gpt --data "text:$SRC/README.md" --amp bf16
test_done
