# shellcheck shell=bash disable=SC2034,SC2154
# A run in two pieces must take the steps of an uninterrupted run, with the same losses, whether it stopped in the
# middle of an epoch, in the evaluation after one, or at its end.
# fails with: a run that stopped after epoch 1 continues with epoch 2
build --with check.c --wrap model_forward
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

DIE=1 try_learner died 1 "${same[@]}" --save died.st
[ "$status" = 9 ] || wrong "a run can die in the evaluation after epoch 1" < <(last_lines died)
learner revived 1 "${same[@]}" --resume died.st
steps died revived >found
why="The run died in the evaluation after epoch 1, so its checkpoint is the one saved before the evaluation: all five
steps of epoch 1 taken, and the test still to do. With a larger epoch number, it says that epoch 2 is over."
beside "a run that died in the evaluation after epoch 1 continues with epoch 2" same step "$one" expected "$two" found

for name in whole end.st; do values $name.0.jsonl epoch epoch >$name.epochs; done
sed -i 1d whole.epochs
why="The resumed run trained epochs 2 and 3. The epoch's number is needed for this line before it may change."
beside "the results of an epoch have its number" same "" expected whole.epochs found end.st.epochs

finished other 1 "${same[@]}" --resume end.st
steps first other >found
why="According to checkpoint.h, a checkpoint stores the next step to take. Yours stores a different step, which
only your program understands."
beside "step 01 continues from your checkpoint in the same way" same step "$one" expected "$two" found
