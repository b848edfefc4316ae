#!/usr/bin/env bash
# ctest: PROCESSORS all TIMEOUT 900 LABELS slow
# ./ddp setup for real, on a copy of the tree (CPU backend, not optimized) in a directory with a space.
. "$SRC/tests/test.sh"

copy()
{
    mkdir "$1"
    (cd "$SRC" && tar -cf - --exclude=./build --exclude=./data --exclude=./.git --exclude=./tests/reference .) |
        tar -xf - -C "$1"
    cpu='"CMAKE_BUILD_TYPE": "Debug", "DDP_CUDA": "OFF", "DDP_TESTS": "OFF"'
    sed -i "s/\"CMAKE_BUILD_TYPE\": \"RelWithDebInfo\"/$cpu/" "$1/CMakePresets.json"
}

tree="$TMP/a tree"
copy "$tree"
cd "$tree" || exit 1
unset CFLAGS LDFLAGS

expect 0 "ready" ./ddp setup
check "the program is there" test -x build/cpu/01_single_gpu/train

before=$(stat -c %Y.%Z build/cpu/01_single_gpu/train)
expect 0 "ready" ./ddp setup
check "it builds nothing" test "$(stat -c %Y.%Z build/cpu/01_single_gpu/train)" = "$before"

expect 0 "usage:" ./ddp run 01 -- --help

expect 0 "rm -rf build" ./ddp clean
check "clean" test ! -e build

# Each step's directory is a complete program.
for step in 0[1-7]_*; do
    expect 0 "cpu backend: all steps" cmake -S "$step" -B "$TMP/alone/$step" -DDDP_CUDA=OFF
done
expect 0 "cuda backend: left out: DDP_CUDA is OFF" cmake -S 03_ddp_fork -B "$TMP/any where" -DDDP_CUDA=OFF \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_DISABLE_FIND_PACKAGE_PNG=ON
check "pictures need libpng" grep -q "folders of pictures: left out: no libpng (libpng-dev)" "$TMP/output"
expect 0 "" cmake --build "$TMP/any where" --parallel
alone=$TMP/any\ where/cpu/03_ddp_fork
expect 0 "usage:" "$alone/train" --help
expect 0 "weight hash" "$alone/train" -n 2 -a lenet --data synthetic --max-steps 1 --threads 1
expect 1 "cannot read pictures: when it was built, there was no libpng (libpng-dev)" "$alone/train" --data /tmp

# Without Open MPI, 04 is built without support for mpirun.
expect 0 "ranks of mpirun: left out: no Open MPI (libopenmpi-dev openmpi-bin)" cmake -S 04_ddp_launcher \
    -B "$TMP/no_mpi" -DDDP_CUDA=OFF -DCMAKE_BUILD_TYPE=Debug -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON
expect 0 "" cmake --build "$TMP/no_mpi" --parallel
alone=$TMP/no_mpi/cpu/04_ddp_launcher
small=(-a lenet --data synthetic --max-steps 1 --threads 1)
expect 0 "weight hash" "$alone/launch" -n 2 -- "$alone/train" "${small[@]}"
expect 1 "install libopenmpi-dev and openmpi-bin" env OMPI_COMM_WORLD_SIZE=2 "$alone/train" "${small[@]}"

test_done
