# shellcheck shell=bash disable=SC2034,SC2154
# One checkpoint, evaluated with batches of several sizes: each time the result must be the finished step's.
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
why="The same weights and the same images: only -b was another. So what an image gives depends on the images beside it."
beside "the test result does not depend on the size of the batches" 1e-4 run "loss with -b 32" first "your loss" found \
    batches sizes
beside "and it is what the finished step finds" 1e-4 run "step 01's loss" expected "your loss" found batches sizes
