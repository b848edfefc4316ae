# shellcheck shell=bash
# eval.sh - for tests of 07's evaluation:
#
#   network                             trains net.st with 06
#   evaluate NAME N SIZE ROWS [OPTIONS] N ranks evaluate net.st with SIZE images, each rank in batches of ROWS
#   same NAME NAME                      succeeds if both evaluations have the same results and predictions
#   shown COMMAND...                    for check: if the command fails, its output is shown
#
# An evaluation leaves NAME.out (what it printed), NAME.RANK.jsonl and NAME.predictions.

step=$BUILD/07_dist_eval
older=$BUILD/06_slurm
train=$step/train
convnet=(--arch convnet --data synthetic --image-size 28 --threads 1 --seed 3 -j 1)

ranks() { timeout -k 5 100 "$step/launch" -n "$1" -- "${@:2}"; }            # ranks N PROGRAM OPTIONS
shown() { "$@" >"$TMP/output" 2>&1; }

# A mediocre network: many predictions are wrong, and some classes are predicted too often.
network()
{
    expect 0 "weight hash: " "$older/train" "${convnet[@]}" --amp off --train-samples 1000 --test-samples 8 -b 25 \
        --lr 0.005 --epochs 3 --save net.st
}

evaluate()
{
    local name=$1 n=$2 size=$3 rows=$4
    shift 4
    ranks "$n" "$train" "${convnet[@]}" --amp off -e --init net.st --train-samples 10 --test-samples "$size" \
        -b "$rows" --per-class --metrics "$name.%r.jsonl" \
        --predictions "$name.predictions" "$@" >"$name.out" 2>&1
}

printed_results() { grep -E '^   == (test:|[0-9]+ )' "$1.out"; grep -hE '"event":"(eval|class)"' "$1.0.jsonl"; }
same()
{
    diff <(printed_results "$1") <(printed_results "$2") && cmp "$1.predictions" "$2.predictions"
}
