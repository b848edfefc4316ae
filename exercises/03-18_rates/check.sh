# shellcheck shell=bash disable=SC2034,SC2154
# Compares each step's learning rate with the finished program's: several warm-ups, 4 ranks and 2, no
# --lr-scale, and a resumed run.
# fails with: 4 ranks, --warmup 2: the rate rises to four times --lr
build
same=(--epochs 3 -b 4 --train-samples 64 --lr 0.01 --lr-scale linear)
rates() { values "$1" step lr; }

# claim WHAT RANKS OPTION...
claim()
{
    local what=$1 ranks=$2
    shift 2
    finished right "$ranks" "${same[@]}" "$@"
    learner yours "$ranks" "${same[@]}" "$@"
    rates right.0.jsonl >expected
    rates yours.0.jsonl >found
    beside "$what" 1e-6 step expected expected found found
}
why="An epoch has 4 steps here. The factor rises from 1 to 4 by the same amount in each step."
claim "4 ranks, --warmup 2: the rate rises to four times --lr" 4 --warmup 2
why="An epoch has 8 steps here, so the warm-up has 4.8: it ends within an epoch, and between two steps. The rate never
exceeds twice --lr."
claim "2 ranks, --warmup 0.6: the rate rises to twice --lr" 2 --warmup 0.6
why="Without a warm-up, the first step already uses the full rate."
claim "4 ranks, --warmup 0: four times --lr from the start" 4 --warmup 0
why="Without the option, the warm-up takes 5 epochs, and this run has 3."
claim "4 ranks without --warmup: the rate is still rising at the end" 4
why="With --lr-scale sqrt, four ranks have twice the rate of one."
claim "4 ranks, --lr-scale sqrt: twice --lr" 4 --lr-scale sqrt --warmup 2
why="Without --lr-scale, the number of ranks does not change the rate."
claim "4 ranks without --lr-scale: the rate is --lr" 4 --epochs 1 --lr-scale none
learner first 4 "${same[@]}" --warmup 2 --max-steps 5 --save net.st
learner rest 4 "${same[@]}" --warmup 2 --resume net.st
finished whole 4 "${same[@]}" --warmup 2
{ rates first.0.jsonl; rates rest.0.jsonl; } >found
rates whole.0.jsonl >expected
why="A resumed run has to continue with the rate of its next step."
beside "a resumed run continues with the right rate" 1e-6 step expected expected found found
