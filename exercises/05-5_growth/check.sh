# shellcheck shell=bash disable=SC2034,SC2154
# The loss scale must be right after each training step. So must the number of skipped steps, in all runs but the third.
# In the first run the scale only grows. In the second it grows until gradients overflow. In the third the check causes
# an overflow, two steps after the scale has doubled. In the fourth no step overflows, in the fifth all do. Finally,
# this program and the finished one each resume this program's checkpoint.
# fails with: clean steps double the loss scale
build --with check.c --wrap loss_scale_adapt --wrap loss_cross_entropy
same=(--amp fp16 --train-samples 192 --test-samples 8 --seed 5)
run_both()
{
    learner "$1" 1 "${same[@]}" "${@:2}"
    finished "$1.right" 1 "${same[@]}" "${@:2}"
}
# scales_beside WHAT RIGHT.jsonl FOUND.jsonl
scales_beside()
{
    values "$2" step loss_scale >expected
    values "$2" step skipped_steps >expected.skipped
    values "$3" step loss_scale >found
    values "$3" step skipped_steps >skipped
    beside "$1" same step expected expected found found "skipped" expected.skipped
    beside "the count of skipped steps is right ($1)" same step expected expected.skipped found skipped
}

run_both slow --growth-interval 5
why="Nothing overflows in this run, and --growth-interval is 5."
! grep -q "loss_scale_adapt does nothing" slow.out || why="loss_scale_adapt does nothing here: you write it yourself."
scales_beside "clean steps double the loss scale" slow.right.0.jsonl slow.0.jsonl

run_both fast --growth-interval 3
[ "$(value fast.right.0.jsonl step skipped_steps)" -gt 0 ] || fail_check "nothing overflows"
why="The third column counts skipped steps. --growth-interval is 3."
scales_beside "overflows halve the loss scale" fast.right.0.jsonl fast.0.jsonl

export OVERFLOW_IN_STEP=6
learner early 1 "${same[@]}" --growth-interval 4 --max-steps 11
unset OVERFLOW_IN_STEP
printf '%s\n' 65536 65536 65536 131072 131072 65536 65536 65536 65536 131072 131072 >expected
values early.0.jsonl step loss_scale >found
why="Step 6 overflows. After it, --growth-interval clean steps (4) must follow before the scale doubles."
beside "after an overflow the count of clean steps starts from 0" same step expected expected found found

GRADIENTS=0 learner zero 1 "${same[@]}" --growth-interval 1 --train-samples 96
awk 'BEGIN { for (i = 1; i <= 12; i++) printf "%.1f\n", 65536 * 2 ^ i }' >expected
values zero.0.jsonl step loss_scale >found
why="All gradients are 0 here, and --growth-interval is 1. Only an overflow limits the scale, not a fixed number."
beside "the scale doubles as long as nothing overflows" same step expected expected found found

OVERFLOW_IN_STEP=all try_learner ever 1 "${same[@]}"
awk 'BEGIN { for (i = 1; i <= 16; i++) printf "%.1f\n", 65536 / 2 ^ i }' >expected
values ever.0.jsonl step loss_scale >found
why="Every step overflows here, as with weights that are NaN. The program ends a run whose scale falls below 1. A
run whose scale stops at 1 would continue, and skip every step."
beside "the scale is halved as long as all steps overflow, and the run ends" same step expected expected found found
[ "$status" != 0 ] || wrong "a run that skips all steps ends with an error" < <(last_lines ever)

learner part 1 "${same[@]}" --growth-interval 5 --max-steps 8 --save part.st
learner rest 1 "${same[@]}" --growth-interval 5 --resume part.st
cat part.0.jsonl rest.0.jsonl >resumed.jsonl
why="A second run resumes the first after step 8. The checkpoint holds the numbers from the device."
scales_beside "a resumed run continues with the same scale" slow.right.0.jsonl resumed.jsonl
finished rest.right 1 "${same[@]}" --growth-interval 5 --resume part.st
cat part.0.jsonl rest.right.0.jsonl >resumed.jsonl
why="The finished program resumes your checkpoint. Step 5 has doubled the scale, so after step 8 clean must be 3."
scales_beside "the finished program continues with the same scale" slow.right.0.jsonl resumed.jsonl
