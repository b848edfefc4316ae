#!/usr/bin/env bash
# ./ddp: what it prints and runs. Compilers, CMake and other tools are simulated, so that the test can remove them.
# shellcheck disable=SC2016  # a $ in single quotes is for a pretended command, or printed by ddp
. "$SRC/tests/test.sh"

tree="$TMP/a tree"
mkdir "$tree" "$TMP/bin"
cp -r "$SRC/ddp" "$SRC/tools" "$SRC/cmake" "$SRC/CMakePresets.json" "$tree"
mkdir "$tree/01_single_gpu" "$tree/02_data_parallel" "$tree/03_three" "$tree/04_four"
cp "$SRC/01_single_gpu/train.c" "$tree/01_single_gpu"
cd "$tree" || exit 1

for command in bash sh env cat cp ls rm mv mkdir rmdir mktemp dirname readlink id uname head tail cut paste \
    tr sed awk grep sort comm wc find stat cmp diff touch nproc flock setpriv tput sha256sum od gzip xz tar date \
    sleep chmod true; do
    ln -s "$(type -P $command)" "$TMP/bin/$command"
done
# Removes a link first: its target must not be overwritten.
pretend() { rm -f "$TMP/bin/$1"; printf '#!/bin/sh\n%s\n' "$2" >"$TMP/bin/$1"; chmod +x "$TMP/bin/$1"; }
pretend cc 'case "$*" in
--version) echo "cc 1" ;;
*-E*) read -r include name; name=${name#<}; test -e '"'$TMP'"'/headers || exit 1
    test "$name" != "$HIDDEN>" && echo "# 1 \"/include/${name%>}\"" ;;
*) exit 1 ;;
esac'
cp "$TMP/bin/cc" "$TMP/bin/c++"
pretend cmake 'case "$*" in
--version) echo "cmake version 3.25.1" ;;
*--preset*) mkdir -p build/cpu/01_single_gpu; echo "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" >build/CMakeCache.txt
    [ -f build/backends ] || echo cpu >build/backends; touch build/build.ninja ;;
*--build*) printf "#!/bin/sh\necho trained with \"\$@\"\nexit 3\n" >build/cpu/01_single_gpu/train
    chmod +x build/cpu/01_single_gpu/train
    for step in 02_data_parallel 03_three 04_four; do
        mkdir -p build/cpu/$step
        cp build/cpu/01_single_gpu/train build/cpu/$step
    done
    printf "#!/bin/sh\necho launched \"\$@\"\nexit 4\n" >build/cpu/04_four/launch
    chmod +x build/cpu/04_four/launch ;;
esac'
pretend ctest 'echo "ctest got $*"; echo "100% tests passed"'
pretend curl 'exit 1'
pretend ninja 'exit 0'
pretend patch 'exit 0'
pretend mpirun 'exit 0'
pretend mpicc 'exit 0'
touch "$TMP/headers"
ddp() { env -u CUDA_HOME PATH="$TMP/bin" ./ddp "$@"; }

expect 1 "cmake --build build --target 04_four_cpu" ddp slurm run sbatch 04_four/job.sbatch
check "then the command runs" grep -q "slurm: no cluster runs" "$TMP/output"
rm -rf build

expect 2 "there is no command 'tset'" ddp tset
expect 2 "there is no step '09'" ddp run 09
expect 2 "it has no ranks" ddp run 01 -n 2
check "none of this built anything" test ! -e build

expect 3 'trained with --epochs 1 --save a b' ddp run 01 -- --epochs 1 --save 'a b'
expect 3 "\$ build/cpu/01_single_gpu/train --save 'a b'" ddp run 01_single_gpu -n 1 -- --save 'a b'
check "only that program is built" grep -qF '$ cmake --build build --target 01_single_gpu_cpu' "$TMP/output"
expect 3 'trained with --devices 4 -b 8' ddp run 02 -n 4 -- -b 8
expect 3 'trained with -n 4 -b 8' ddp run 03 -n 4 -- -b 8
expect 4 'launched --nproc-per-node 4 -- build/cpu/04_four/train -b 8' ddp run 04 -n 4 -- -b 8
pretend python3 'echo "server $*" >&2'
expect 4 'launched --max-restarts 3 --nproc-per-node 2 -- build/cpu/04_four/train -b 8 --trace=t --metrics /' \
    ddp run 04 --watch -- -b 8 --trace=t
expect 3 'trained with -n 4 @c --trace a b --metrics=m.%r --save s' \
    ddp run 03 --watch -n 4 -- @c --trace 'a b' --metrics=m.%r --save s
check "the page shows the options' files" until_so 10 grep -q "server .*watch.py [0-9]* a b m.0$" "$TMP/output"
sed -i 's,^CMAKE_HOME.*,CMAKE_HOME_DIRECTORY:INTERNAL=/elsewhere,' build/CMakeCache.txt
expect 3 'was moved or copied' ddp run 01
expect 1 'the cuda backend cannot be built here' ddp run 01 --backend cuda
expect 0 'ctest got --preset all --no-tests=error --parallel' ddp test -R data
expect 0 "All three are true" ddp test quick
check "quick stops there" is "$(grep -c 'ctest got' "$TMP/output")" 1
expect 0 "-LE ^quick\$|^slow\$" ddp test
expect 0 "ctest got --preset tsan" ddp test all
check "all has the slow tests" grep -q -- '-LE ^quick\$$' "$TMP/output"

pretend ctest 'case "$*" in
*-N*) printf "  Test  #1: test_late\n  Test #12: test_later\n" ;;
*--rerun-failed) echo "second try" ;;
*) mkdir -p build/Testing/Temporary; cp failed build/Testing/Temporary/LastTestsFailed.log; exit 8 ;;
esac'
echo "12:test_later" >failed
expect 0 "they run again, alone" ddp test
check "the late test runs again" grep -qx "second try" "$TMP/output"
rm failed

pretend nvidia-smi 'echo "GPU 0: NVIDIA Something (UUID: GPU-1)"'
expect 3 '$ build/cpu/' ddp run 01
echo cpu cuda >build/backends
mkdir -p build/cuda/01_single_gpu
printf '#!/bin/sh\nexit 5\n' >build/cuda/01_single_gpu/train
chmod +x build/cuda/01_single_gpu/train
expect 5 'not been tested on a GPU like this one' ddp run 01
expect 3 '$ build/cpu/' ddp run 01 --backend cpu
CUDA_VISIBLE_DEVICES='' expect 3 '$ build/cpu/' ddp run 01
rm "$TMP/bin/nvidia-smi"
CUDA_VISIBLE_DEVICES=0 expect 3 '$ build/cpu/' ddp run 01
expect 5 '$ build/cuda/' ddp run 01 --backend cuda

# Debian's Fashion-MNIST may or may not be installed here, so the requirement is removed.
sed -i '/Fashion-MNIST/d' cmake/requirements.txt
is_debian() { grep -qE '^ID(_LIKE)?=.*(debian|ubuntu)' /etc/os-release; }

ddp clean >/dev/null 2>&1
check "clean" test ! -e build
rm "$TMP/bin/ninja"
expect 0 'missing: Ninja' ddp setup

if is_debian; then
    pretend apt-get "echo \"\$*\" >>'$TMP/apt'
        case \"\$*\" in *install*) printf '#!/bin/sh\n' >'$TMP/bin/ninja'; chmod +x '$TMP/bin/ninja';; esac"
    pretend id 'echo 0'
    expect 0 '=600 -q -y --no-install-recommends ninja-build' ddp setup
    check "first update, then install" test "$(cut -d' ' -f1 "$TMP/apt" | paste -sd' ')" = "update install"
    rm -rf build
    export HIDDEN=gloo/config.h
    expect 3 'trained with' ddp run 01
    check "01 needs no Gloo" not grep -q "needs" "$TMP/output"
    rm -rf build
    expect 3 '03_three needs: Gloo' ddp run 03
    check "and apt installs it" grep -qF -- '--no-install-recommends libgloo-dev' "$TMP/output"
fi
rm "$TMP/headers"
expect 1 'apt install libdnnl-dev' ddp doctor

test_done
