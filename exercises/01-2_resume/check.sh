# shellcheck shell=bash disable=SC2034,SC2154
# A run in two pieces must take the steps of one that nobody disturbed, with the same losses: broken off in the middle
# of an epoch, and at the end of one.
# fails with: a run that ended with epoch 1 goes on with epoch 2
build
same=(--train-samples 40 --epochs 3 --schedule cosine)
one=$(printf '%-36s' "one run") two=$(printf '%-36s' "in two pieces")     # as wide as the lines below

# steps NAME...: "epoch 2, step 3: 2.2946, lr 0.01" of each step of these runs.
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
why="The seventh step was the second of epoch 2. What stands in a file of the middle of an epoch was right already."
beside "a run that was broken off in the middle of epoch 2 goes on where it was" same step "$one" expected "$two" found

learner first 1 "${same[@]}" --max-steps 5 --save end.st
for file in end.st end.st.best; do
    learner $file 1 "${same[@]}" --resume $file
    steps first $file >found
    words="a run that ended with epoch 1 goes on with epoch 2"
    [ $file = end.st ] || words="and so does one that begins with the best checkpoint"
    why="An epoch has five steps here: the second piece begins with the sixth line."
    beside "$words" same step "$one" expected "$two" found
    equal "with the same weights in the end" "$(value whole.0.jsonl end weight_hash)" \
        "$(value $file.0.jsonl end weight_hash)"
done

finished other 1 "${same[@]}" --resume end.st
steps first other >found
why="checkpoint.h says that a file names the next step to take. Yours names another one, which only your program
understands."
beside "the finished step goes on from your file in the same way" same step "$one" expected "$two" found
