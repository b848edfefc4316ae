# shellcheck shell=bash disable=SC2034,SC2154
# The result that two and three ranks print after an epoch must be that of the checkpoint they save. A spy (check.c)
# delays broadcasts, and reports each rank's share of the test images. Training must be that of the finished program,
# and the run may have at most two more collective calls.
# fails with: 2 ranks print the result of the model they save
build --with check.c --wrap loader_start --wrap model_forward --wrap comm_broadcast
same=(--arch convnet --test-samples 40 --seed 5 --lr 0.003)
for n in 2 3; do
    learner run$n $n "${same[@]}" --save $n.st --trace run$n.json
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
    why="Line 1 is the loss, line 2 the accuracy. The ranks have the same weights. What else is in a model? If you send
it: on which stream does the forward pass read it? A call for another stream only enqueues the work there."
    beside "$n ranks print the result of the model they save" 1e-9 "" "saved model" expected "printed" printed

    for ((rank = 0; rank < n; rank++)); do
        sed -n "s/^spy: rank $rank evaluates \([0-9]*\)$/rank $rank: \1 images/p" again$n.out
    done >found
    for ((rank = 0; rank < n; rank++)); do echo "rank $rank: $((8 * ((4 - rank) / n + 1))) images"; done >expected
    why="If one rank evaluates alone, the result is that of one model, but all ranks must share the test set."
    beside "$n ranks share the 40 test images" same "" expected expected found found
done

finished right 2 "${same[@]}" --trace right.json
values right.0.jsonl step loss >expected
values run2.0.jsonl step loss >found
why="Training has changed. Only the evaluation needs one model."
beside "training has the losses that it had" 1e-6 step expected expected found found
most=$(($(all_calls right.json) + 2))
why="The ranks exchange their statistics more often than needed. Training does not read them: once for an evaluation is
enough."
[ "$(all_calls run2.json)" -le $most ] ||
    wrong "a run of 2 ranks has at most $most collective calls" <<<"found $(all_calls run2.json)"
passed "a run of 2 ranks has at most $most collective calls"
