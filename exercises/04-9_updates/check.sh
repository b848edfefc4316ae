# shellcheck shell=bash disable=SC2034,SC2154
# A run in two pieces must take the steps of an uninterrupted run: with SGD, and with AdamW. If the second piece
# has fewer ranks, it must take the steps of the finished program.
# fails with: a run that was stopped after step 7 continues with the same losses
# fails with: (adamw)
build
for optim in sgd adamw; do
    same=(--train-samples 80 --epochs 2 --optim "$optim" --lr 0.002)
    finished whole.$optim 2 "${same[@]}"
    values whole.$optim.0.jsonl step loss >expected
    rm -f net.st
    learner early.$optim 2 "${same[@]}" --max-steps 7 --save net.st
    try_learner late.$optim 2 "${same[@]}" --resume net.st
    why="Only rank 0 reads the checkpoint: restore returns early on the others. They get job->state from share_start."
    [ "$status" = 0 ] || wrong "after a restart all ranks take the same steps ($optim)" < <(last_lines late.$optim)
    values early.$optim.0.jsonl step loss >found
    values late.$optim.0.jsonl step loss >>found
    why="The first seven steps are those of the first run. What did the second process not know? (If step 2 differs,
note that optim_settings adds 1 to the number that it gets.)"
    beside "a run that was stopped after step 7 continues with the same losses ($optim)" same step \
        "one run" expected "in two pieces" found
    equal "a run that was stopped after step 7 ends with the weights of an uninterrupted one ($optim)" \
        "$(value whole.$optim.0.jsonl end weight_hash)" "$(value late.$optim.0.jsonl end weight_hash)"
done

same=(--train-samples 80 --optim adamw --lr 0.002)
rm -f net.st
learner early 2 "${same[@]}" --epochs 1 --save net.st
learner late 1 "${same[@]}" --epochs 2 --resume net.st
finished right 1 "${same[@]}" --epochs 2 --resume net.st
values right.0.jsonl step loss >expected
values late.0.jsonl step loss >found
why="The first epoch had 5 steps on two ranks; this one has 10 on one rank. So how many updates came before? A number
computed from the epoch assumes that all epochs have had as many steps as this one."
beside "a run that continues on fewer ranks counts the updates that were made (adamw)" same step \
    "expected" expected "found" found
