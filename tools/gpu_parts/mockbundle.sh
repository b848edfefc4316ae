#!/bin/bash
# mockbundle.sh SOURCE BUILD OUT.tar.xz - a bundle whose programs run on the mock, to try part1.sh and part2.sh without a GPU
set -e
src=$1 build=$2 out=$(readlink -f "$3") work=$(mktemp -d) to=$work/gpu-bundle
mkdir -p "$to"/{lib,tools/reference,tests} "$to"/build/{cuda,cuda-gloo,tests}
for f in "$build"/fake/0*/train; do n=$(basename "$(dirname "$f")"); mkdir -p "$to/build/cuda/$n"; cp "$f" "$to/build/cuda/$n"; done
for f in "$build"/cuda/0*/launch; do n=$(basename "$(dirname "$f")"); [ ! -d "$to/build/cuda/$n" ] || cp "$f" "$to/build/cuda/$n"; done
for f in "$build"/tests/test_*_fake; do n=$(basename "$f" _fake); cp "$f" "$to/build/tests/${n}_cuda"; done
cp "$build"/tests/tool_compare_weights "$to/build/tests"
cp -r "$src"/tests/{run.sh,ranks.sh,reference} "$to/tests"
cp "$src"/tools/{shell.sh,gpu_tests.sh,bench.py,bench_torch.py} "$to/tools"
cp "$src/tools/reference/gpt.py" "$to/tools/reference"
echo "revision: mock" >"$to/about"
tar -C "$work" -cf - gpu-bundle | xz -0 >"$out"; rm -rf "$work"; ls -la "$out"
