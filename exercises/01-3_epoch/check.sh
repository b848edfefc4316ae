# shellcheck shell=bash disable=SC2034,SC2154
# The steps, losses, reports, saves and final weights must be the finished program's. The last batch of an epoch is
# smaller, and the learning rate changes with every step. Each step must go through replay_run. A run must be able to
# continue in the middle of an epoch, and must end after Ctrl-C.
# fails with: both epochs use all of their batches
export SPY=1
build --with check.c --wrap log_step --wrap loader_next --wrap replay_run
limit=10
same=(--train-samples 60 --epochs 2)
rates=(--lr 0.05 --warmup 1 --schedule cosine)

# steps NAME: prints "epoch 2, step 3" for each step in the metrics. reported NAME: the same for each call of log_step.
steps()
{
    paste -d' ' <(values "$1.0.jsonl" step epoch) <(values "$1.0.jsonl" step step) |
        awk '{ printf "epoch %d, step %d\n", $1, $2 }'
}
reported() { sed -n 's/^spy: //p' "$1.out"; }

finished right 1 "${same[@]}" "${rates[@]}"
learner yours 1 "${same[@]}" "${rates[@]}"
steps right >expected
reported yours >found
why="60 images make 7 full batches of 8 and a last batch of 4. Each step is counted, then reported."
beside "both epochs use all of their batches" same "" expected expected found found

why="A recorded step has the sizes and addresses of the batch for which it was recorded. A GPU would repeat them."
equal "a recorded step is replayed only for batches like its own" "" \
    "$(sed -n 's/^key: //p' yours.out | sort -u | head -3)"

why="Step by step, the result is the same here. But on a GPU, queueing the hundreds of small pieces of work of a step
takes longer than a replay, which queues all of them at once."
equal "each step goes through replay_run" "$(wc -l <expected)" "$(grep -c '^replay:' yours.out)"

# What the losses would be if the learning rate never changed.
finished still 1 "${same[@]}" --lr "$(values right.0.jsonl step lr epoch=1 | head -1)"
for name in right yours still; do
    values $name.0.jsonl step loss >$name.losses
done
why="The number of steps is right, but the losses differ. The log computes the learning rate itself, but the optimizer
reads it from device memory. Compare the third column, where the rate in device memory never changes."
beside "their losses are step 01's" 1e-5 step expected right.losses found yours.losses \
    "lr stays" still.losses
equal "the final weights are step 01's" "$(value right.0.jsonl end weight_hash)" \
    "$(value yours.0.jsonl end weight_hash)"

for more in "--max-steps 5" "--max-steps 8" "--print-freq 3" "--print-freq 3 --max-steps 4"; do
    # shellcheck disable=SC2206  # two words or four
    options=("${same[@]}" "${rates[@]}" $more)
    finished right 1 "${options[@]}"
    learner yours 1 "${options[@]}"
    steps right >expected
    reported yours >found
    why="--max-steps ends the run after that many steps, even within an epoch. --print-freq chooses the steps to report,
because each report waits for the device. The last step before a stop is always reported."
    beside "with $more the right steps are reported" same "" expected expected found found
    equal "with $more the final weights are step 01's" "$(value right.0.jsonl end weight_hash)" \
        "$(value yours.0.jsonl end weight_hash)"
done

finished right 1 "${same[@]}" --save right.st --save-every 4 --trace right.json
learner yours 1 "${same[@]}" --save yours.st --save-every 4 --trace yours.json
why="--save-every saves after every so many steps, and finish_epoch after each epoch."
equal "with --save-every 4 the run saves as often as step 01" "$(saves right.json)" \
    "$(saves yours.json)"

finished first 1 "${same[@]}" "${rates[@]}" --max-steps 5 --save middle.st
finished rest 1 "${same[@]}" "${rates[@]}" --resume middle.st
try_learner resumed 1 "${same[@]}" "${rates[@]}" --resume middle.st
steps rest >expected
reported resumed >found
why="The checkpoint was saved after step 5, so the loader begins with batch 6 and returns NULL after batch 8. An epoch
need not begin with its first step."
beside "a run that is resumed after step 5 takes the rest of the epoch's steps" same "" expected expected found found
[ "$status" = 0 ] || wrong "the resumed run succeeds" < <(last_lines resumed)
equal "and ends with step 01's weights" "$(value rest.0.jsonl end weight_hash)" \
    "$(value resumed.0.jsonl end weight_hash)"

# The spy simulates Ctrl-C.
CTRL_C=3 try_learner yours 1 "${same[@]}" --print-freq 10
reported yours >found
why="should_stop is also true after Ctrl-C. Then the step is finished, reported and, with --save, saved."
beside "Ctrl-C in step 3 ends the run after this step" same "" expected <(echo "epoch 1, step 3") found found
