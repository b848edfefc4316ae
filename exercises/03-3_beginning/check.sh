# shellcheck shell=bash disable=SC2034,SC2154
# All ranks must end with the same weights, in a new run and in a resumed one. In the resumed run only rank 0
# may read the checkpoint, and all ranks must begin with rank 0's weights, statistics and momentum (see check.c).
# fails with: all ranks end with the same weights
export SPY=1
build --with check.c --wrap comm_new --wrap model_forward --wrap sgd_update --wrap checkpoint_load

# begins NAME WORDS: claims that ranks 1 and 2 of run NAME begin with the weights, statistics and momentum of rank 0.
# The claims end with WORDS.
begins()
{
    local thing
    for thing in weights statistics momentum; do
        grep "^spy: rank . begins with $thing " "$1.out" | sort | sed 's/.* //' >$thing
        sed -n '2,3p' $thing >found
        { sed -n 1p $thing; sed -n 1p $thing; } >expected
        case $thing in
        weights) why="Only rank 0 reads the checkpoint. Each number is a hash of all weights." ;;
        statistics) why="BatchNorm's running means and variances also belong to the model." ;;
        momentum) why="Rank 0 reads the momentum from the checkpoint. The next update uses 0.9 times this momentum." ;;
        esac
        beside "all ranks begin with the $thing of rank 0$2" same rank "rank 0" expected "its own" found
    done
}

# ends NAME WORDS: claims that all ranks end with the finished step's weights.
ends()
{
    local rank
    : >"$1.first"; : >"$1.others"
    for rank in 1 2; do
        value "$1.0.jsonl" end weight_hash >>"$1.first"
        value "$1.$rank.jsonl" end weight_hash >>"$1.others"
    done
    why="Each number is a hash of all weights of a rank at the end of its run."
    beside "all ranks end with the same weights$2" same rank "rank 0" "$1.first" "its own" "$1.others"
    why="The ranks agree, but the finished step ends with different weights."
    equal "these are the finished step's weights" \
        "$(value "$1.right.0.jsonl" end weight_hash)" "$(value "$1.0.jsonl" end weight_hash)"
}

new=(--arch lenet --train-samples 48 -b 4)
finished new.right 3 "${new[@]}"
learner new 3 "${new[@]}"
ends new ""

# The same for a resumed run.
old=(--arch convnet --train-samples 24 -b 4 --epochs 2)
finished begun 3 "${old[@]}" --max-steps 2 --save begun.st
finished old.right 3 "${old[@]}" --resume begun.st
try_learner old 3 "${old[@]}" --resume begun.st
why="On a cluster, perhaps only rank 0 has the file, or another rank has a different one. Rank 0 sends what it reads."
readers=$(sed -n 's/^spy: \(rank .\) reads the checkpoint/\1/p' old.out | sort -u | paste -sd,)
equal "only rank 0 reads the checkpoint" "rank 0" "$readers"
begins old " after --resume"
[ "$status" = 0 ] || wrong "the run succeeds" < <(last_lines old)
ends old " after --resume"
