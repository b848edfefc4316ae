#!/usr/bin/env bash
# Imitates two different machines: each has its own clone and build, and on one, oneDNN uses only AVX2. The ranks accept
# each other's builds, and end with the same weights.
# ctest: PROCESSORS all TIMEOUT 600
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
[ "$RANK" = 0 ] || export DNNL_MAX_CPU_ISA=AVX2
[ "$RANK" = 0 ] || cd another/clone
exec build/cpu/05_ddp_amp/train "$@"
END
chmod +x machine
ln -s "$tree" build
for options in "-a resnet18 --optim adamw --clip-norm 1" "-a gpt --data text:$SRC/README.md --amp bf16"; do
    # shellcheck disable=SC2086
    expect 0 "weight hash:" "$BUILD/$step/launch" --nproc-per-node 2 -- ./machine --data synthetic --threads 1 -b 8 \
        --max-steps 5 --epochs 1 --test-samples 8 $options
    ! grep -q avx512 /proc/cpuinfo ||
        check "they use what both have" is "$(grep -c 'the processors differ: all ranks use avx2' output)" 1
done
test_done
