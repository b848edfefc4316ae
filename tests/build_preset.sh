#!/usr/bin/env bash
# build_preset.sh PRESET DIRECTORY GENERATOR - configures and builds another variant of the whole tree,
# for the tests that run in it.
set -eu
preset=$1
directory=$2
generator=$3
if [ "$preset" = clang ] && ! command -v clang >/dev/null; then
    echo "skipped: clang is not installed"
    exit 77
fi
cmake -S "$SRC" --preset "$preset" -B "$directory" -G "$generator"
cmake --build "$directory" --parallel "$(nproc)"
