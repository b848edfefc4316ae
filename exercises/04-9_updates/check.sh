# shellcheck shell=bash disable=SC2034,SC2154
# A run in two pieces must take the steps of an uninterrupted run: with SGD, and with AdamW.
# fails with: a run that was stopped after step 7 continues with the same losses
# fails with: (adamw)
build
for optim in sgd adamw; do
    same=(--train-samples 80 --epochs 2 --optim "$optim" --lr 0.002)
    finished whole.$optim 2 "${same[@]}"
    values whole.$optim.0.jsonl step loss >expected
    rm -f net.st
    learner early.$optim 2 "${same[@]}" --max-steps 7 --save net.st
    learner late.$optim 2 "${same[@]}" --resume net.st
    values early.$optim.0.jsonl step loss >found
    values late.$optim.0.jsonl step loss >>found
    why="The first seven steps are those of the first run. What did the second process not know?"
    beside "a run that was stopped after step 7 continues with the same losses ($optim)" same step \
        "one run" expected "in two pieces" found
    equal "a run that was stopped after step 7 ends with the weights of an uninterrupted one ($optim)" \
        "$(value whole.$optim.0.jsonl end weight_hash)" "$(value late.$optim.0.jsonl end weight_hash)"
done
