# shellcheck shell=bash disable=SC2034,SC2154
# What a run with two and three ranks tells after an epoch must be the result of the checkpoint that it saves.
# fails with: 2 ranks have told the result of the model that they saved
build
same=(--arch convnet --test-samples 40 --seed 5 --lr 0.003)
for n in 2 3; do
    learner run$n $n "${same[@]}" --save $n.st
    finished one$n 1 "${same[@]}" --evaluate --resume $n.st
    learner again$n $n "${same[@]}" --evaluate --resume $n.st
    for key in test_loss top1; do
        value one$n.0.jsonl eval $key
    done >expected
    for key in test_loss top1; do
        value again$n.0.jsonl eval $key
    done >again
    for key in test_loss top1; do
        value run$n.0.jsonl epoch $key
    done >told
    beside "$n ranks find in a checkpoint what one finds in it" 1e-9 "" "one rank" expected "$n ranks" again
    why="Line 1 is the loss, line 2 the accuracy. The ranks' weights are the same: what else is in a model?"
    beside "$n ranks have told the result of the model that they saved" 1e-9 "" "the model's" expected "was told" told
done
