# shellcheck shell=bash disable=SC2034,SC2154
# With four virtual ranks, runs of 4, 2 and 1 processes must end with the same weights and test loss: those of the
# finished program. The same must hold for a network for text, and for what a run saves within an epoch.
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

finished middle.right 4 "${same[@]}" --max-steps 3 --save right.st
learner middle 1 "${same[@]}" --max-steps 3 --save middle.st
finished test.right 1 "${same[@]}" --evaluate --resume right.st
finished test 1 "${same[@]}" --evaluate --resume middle.st
why="Both runs stopped after step 3 and saved, before any evaluation. The file holds model->buffers, so these must be
rank 0's after each step: virtual_step chooses them."
equal "a checkpoint from the middle of an epoch has the test loss of 4 processes" \
    "$(value test.right.0.jsonl eval test_loss)" "$(value test.0.jsonl eval test_loss)"

same=(--arch gpt --data words --layers 1 --width 16 --heads 1 --block 8 --optim sgd --lr 0.1 --clip-norm 0 --seed 5
    --virtual-ranks 4 -b 2 --train-samples 24 --test-samples 8 --amp off)
finished right 4 "${same[@]}"
learner words 2 "${same[@]}"
why="The loss is a mean over labels. An image has one, but a row of text has one for each of its bytes."
equal "2 processes that learn text end with the weights of 4" "$(value right.0.jsonl end weight_hash)" \
    "$(value words.0.jsonl end weight_hash)"
