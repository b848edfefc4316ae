# shellcheck shell=bash disable=SC2034,SC2154
# Evaluates one checkpoint with several batch sizes: the result must always be the finished step's.
# fails with: the test result does not depend on the size of the batches
build
net=(--arch convnet --train-samples 64 --test-samples 32)
finished trained 1 "${net[@]}" --save net.st
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
beside "the test result is the finished step's" 1e-4 run "step 01's loss" expected "your loss" found batches sizes
