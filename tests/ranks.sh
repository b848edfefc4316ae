# shellcheck shell=bash
# ranks.sh - for tests that compare one process (01) with several ranks (03):
#
#   one                             trains one process for two epochs of ten steps: one.st, one.jsonl
#   same_as_one TRAIN N [OPTIONS]   trains N ranks of the program TRAIN with the same global batch; prints what
#                                   differs and fails if mean losses differ by more than 1e-4, or a tensor of the
#                                   weights by more than 5e-3 of its largest entry

batch=48
lenet=(--arch lenet --data synthetic --train-samples 480 --test-samples 64 --epochs 2 --threads 1
    --lr 0.02 --seed 5 -p 1)

one() { "$BUILD/01_single_gpu/train" "${lenet[@]}" -b $batch --metrics one.jsonl --save one.st >one.out; }

losses() { sed -n 's/.*"event":"step".*"loss":\([^,]*\),"acc".*/\1/p' "$1"; }

same_weights() { "$BUILD/../tests/tool_compare_weights" "$1" one.st 5e-3; }

same_as_one()
{
    local train=$1 n=$2 rank
    shift 2
    rm -f ranks.*
    "$train" -n "$n" "${lenet[@]}" -b $((batch / n)) --metrics ranks.%r.jsonl --save ranks.st "$@" \
        >ranks.out 2>&1 || { tail -20 ranks.out; return 1; }
    for ((rank = 0; rank < n; rank++)); do
        losses ranks.$rank.jsonl >ranks.$rank.losses
    done
    paste ranks.*.losses <(losses one.jsonl) | awk -v n="$n" '
        { d = -$NF; for (i = 1; i < NF; i++) d += $i / n
          if (NF != n + 1 || !(d * d <= 1e-8)) { print "step " NR ": losses " $0; bad = 1 } }
        END { exit bad || NR != 20 }' || return 1
    same_weights ranks.st
}
