#!/usr/bin/env bash
# build_preset.sh PRESET DIRECTORY GENERATOR TARGET... - configures the tree, and builds the targets for the tests that
# run in that build.
set -eu
if [ "$1" = clang ] && ! command -v clang >/dev/null; then
    echo "skipped: clang is not installed"
    exit 77
fi
cmake -S "$SRC" --preset "$1" -B "$2" -G "$3"
cmake --build "$2" --parallel "$(nproc)" --target "${@:4}"
