# shellcheck shell=bash disable=SC2034,SC2154
# A run in two pieces must take the steps of an uninterrupted run, with the same losses, whether it stopped in the
# middle of an epoch or at the end of one.
# fails with: a run that stopped after epoch 1 continues with epoch 2
build
same=(--train-samples 40 --epochs 3 --schedule cosine)
one=$(printf '%-36s' "one run") two=$(printf '%-36s' "in two pieces")     # titles of columns

# steps NAME...: prints "epoch 2, step 3: 2.289737, lr 0.00552" for each step of these runs.
steps()
{
    local name
    for name; do
        paste -d' ' <(values "$name.0.jsonl" step epoch) <(values "$name.0.jsonl" step step) \
            <(values "$name.0.jsonl" step loss) <(values "$name.0.jsonl" step lr)
    done | awk '{ printf "epoch %d, step %d: %.6f, lr %.5f\n", $1, $2, $3, $4 }'
}

finished whole 1 "${same[@]}"
steps whole >expected

learner early 1 "${same[@]}" --max-steps 7 --save middle.st
learner late 1 "${same[@]}" --resume middle.st
steps early late >found
why="Step 7 was the second step of epoch 2. Resuming from the middle of an epoch worked before your change."
beside "a run that stopped in the middle of epoch 2 continues with the next step" same step "$one" expected "$two" found

learner first 1 "${same[@]}" --max-steps 5 --save end.st
for file in end.st end.st.best; do
    learner $file 1 "${same[@]}" --resume $file
    steps first $file >found
    which="a run that stopped after epoch 1"
    [ $file = end.st ] || which="a run that resumes the best checkpoint"
    why="An epoch has five steps here, so line 6 is the first step of the second run."
    beside "$which continues with epoch 2" same step "$one" expected "$two" found
    equal "$which ends with the weights of an uninterrupted one" "$(value whole.0.jsonl end weight_hash)" \
        "$(value $file.0.jsonl end weight_hash)"
done

finished other 1 "${same[@]}" --resume end.st
steps first other >found
why="According to checkpoint.h, a checkpoint stores the next step to take. Yours stores a different step, which
only your program understands."
beside "the finished step continues from your checkpoint in the same way" same step "$one" expected "$two" found
