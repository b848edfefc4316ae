# shellcheck shell=bash disable=SC2034,SC2154
# With four virtual ranks, runs of 4, 2 and 1 processes must end with the same weights and test loss: those of the
# finished program.
# fails with: 2 processes end with the weights of 4
build
same=(--arch convnet --virtual-ranks 4 -b 4 --train-samples 72 --seed 5 --lr 0.02 --amp off)
finished right 4 "${same[@]}"
processes=('' '1 process' '2 processes' '' '4 processes') s=('' s)
for n in 4 2 1; do
    learner v$n $n "${same[@]}"
    why="All runs have the same four virtual ranks."
    equal "${processes[n]} end${s[n == 1]} with the weights of 4" "$(value right.0.jsonl end weight_hash)" \
        "$(value v$n.0.jsonl end weight_hash)"
done
for n in 4 2 1; do
    why="The weights are equal, but what the model computes in evaluation is not."
    equal "${processes[n]} print${s[n == 1]} the test loss of 4" "$(value right.0.jsonl epoch test_loss)" \
        "$(value v$n.0.jsonl epoch test_loss)"
done
