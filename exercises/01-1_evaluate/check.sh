# shellcheck shell=bash disable=SC2034,SC2154
# Evaluates one checkpoint with several batch sizes: the result must always be step 01's. A training run must
# have step 01's losses, also in the test after its epoch, and its weights.
# fails with: the test result does not depend on the size of the batches
build
net=(--arch convnet --train-samples 64 --test-samples 32)
finished trained 1 "${net[@]}" --save net.st
learner training 1 "${net[@]}"
for b in 32 16 4; do
    learner "$b" 1 "${net[@]}" --evaluate --resume net.st -b $b
    finished right 1 "${net[@]}" --evaluate --resume net.st -b $b
    value $b.0.jsonl eval test_loss >>found
    head -1 found >>first
    echo "-b $b" >>sizes
    value right.0.jsonl eval test_loss >>expected
done
why="The weights and the images are the same and only -b differs. So the output for an image depends on the rest
of its batch."
beside "the test result does not depend on the size of the batches" 1e-4 run "loss with -b 32" first "your loss" found \
    batches sizes
why="The result no longer depends on the batch size, but it is wrong. Evaluation normalises with the means and
variances gathered during training, not with those of any batch, large or small."
beside "the test result is step 01's" 1e-4 run "step 01's loss" expected "your loss" found batches sizes

for name in trained training; do values $name.0.jsonl step loss >$name.losses; done
why="Training was correct. It normalises with the batch's own mean and variance, and gathers both for evaluation."
beside "training is as before" 1e-4 step "step 01's loss" trained.losses "your loss" training.losses
why="--evaluate is right, but the test after an epoch of training is not. Both call evaluate."
near "the test after an epoch gives the same result" 1e-4 "$(value trained.0.jsonl epoch test_loss)" \
    "$(value training.0.jsonl epoch test_loss)"
equal "and changes nothing in the model" "$(value trained.0.jsonl end weight_hash)" \
    "$(value training.0.jsonl end weight_hash)"
