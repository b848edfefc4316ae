#!/usr/bin/env bash
# ctest: TIMEOUT 300
# A recorded step has at most two more graph nodes on the simulated GPU than in revision 8d380f2. Even a node that
# computes little takes a GPU a microsecond or two. That revision had two messages for ResNet-18, so there is one here.
. "$SRC/tests/test.sh"
. "$SRC/tests/fake.sh"
export FAKE_PRINT=1

# nodes WANTED STEP [OPTIONS]: a run's largest recording has at most WANTED + 2 nodes.
nodes()
{
    local wanted=$1 program=$tree/fake/$2/train most
    shift 2
    expect 0 "recorded a graph of" "$program" -b 2 --train-samples 10 --test-samples 1 --epochs 1 "$@"
    most=$(sed -n 's/^recorded a graph of \([0-9]*\) nodes$/\1/p' output | sort -n | tail -1)
    check "$most nodes, $wanted at 8d380f2: $*" test "$most" -le $((wanted + 2))
}
resnet=(-a resnet18 --data synthetic)
gpt=(-a gpt --data "text:$SRC/LICENSE" --layers 2 --heads 2 --width 16 --block 16)
nodes 151 01_single_gpu "${resnet[@]}"
nodes 174 07_dist_eval "${resnet[@]}" --amp fp16 --bucket-mb 50
nodes 106 01_single_gpu "${gpt[@]}"
nodes 112 07_dist_eval "${gpt[@]}" --amp fp16
test_done
