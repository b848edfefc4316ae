# shellcheck shell=bash disable=SC2034,SC2154
# The result that two and three ranks print after an epoch must be that of the checkpoint they save.
# fails with: 2 ranks print the result of the model they save
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
    done >printed
    beside "$n ranks and one rank agree on the checkpoint" 1e-9 "" "one rank" expected "$n ranks" again
    why="Line 1 is the loss, line 2 the accuracy. The ranks have the same weights. What else is in a model?"
    beside "$n ranks print the result of the model they save" 1e-9 "" "saved model" expected "printed" printed
done
