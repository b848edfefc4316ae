# shellcheck shell=bash disable=SC2034,SC2154
# All ranks must end with the same weights: in a new run, with --init, and in a resumed one, also with AdamW, which has
# two arenas. In the resumed run only rank 0 may read the checkpoint, and all ranks must begin with rank 0's weights,
# statistics and momentum (see check.c), also in ResNet-18, where some weights have no gradient. Nothing is broadcast
# after the first step.
# fails with: all ranks end with the same weights
export SPY=1
build --with check.c --wrap comm_new --wrap model_forward --wrap sgd_update --wrap adamw_update --wrap checkpoint_load \
    --wrap comm_broadcast --wrap comm_broadcast_host --wrap optim_new

# begins NAME WORDS THING...: claims that ranks 1 and 2 of run NAME begin with these things of rank 0. The claims end
# with WORDS.
begins()
{
    local name=$1 words=$2 thing
    shift 2
    for thing; do
        [ "$words" != "$wide" ] || why=$of_padding
        grep "^spy: rank . begins with $thing " "$name.out" | sort | sed 's/.* //' >"$thing"
        [ -s "$thing" ] || wrong "all ranks take their first step$words" < <(last_lines "$name")
        sed -n '2,3p' "$thing" >found
        { sed -n 1p "$thing"; sed -n 1p "$thing"; } >expected
        case $thing in
        weights) why="Only rank 0 reads the checkpoint. Each number is a hash of all weights." ;;
        statistics) why="BatchNorm's running means and variances also belong to the model." ;;
        momentum) why="Rank 0 reads the momentum from the checkpoint. The next update uses 0.9 times this momentum." ;;
        squares) why="AdamW keeps two means for each weight: of its gradients, and of their squares." ;;
        esac
        [ "$words" != "$wide" ] || why+=$'\n'$of_padding
        beside "all ranks begin with the $thing of rank 0$words" same rank "rank 0" expected "its own" found
    done
}

wide=" in ResNet-18, after --resume"
of_padding="On small images some weights of ResNet-18 only ever meet padding, and have no gradient. They follow the
others: param_count counts all weights, grad_count those with a gradient. All decay, and are saved and compared."

# ends NAME WORDS: claims that all ranks end with step 03's weights.
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
    why="The ranks agree, but step 03 ends with different weights."
    equal "these are step 03's weights" \
        "$(value "$1.right.0.jsonl" end weight_hash)" "$(value "$1.0.jsonl" end weight_hash)"
}

new=(--arch lenet --train-samples 24 -b 4 --epochs 2)
finished new.right 3 "${new[@]}"
why="If the ranks hang in a broadcast, they have named different senders: all must name rank 0."
learner new 3 "${new[@]}"
ends new ""
why="Equal steps keep equal weights equal. Another broadcast takes time, and changes nothing."
equal "nothing is broadcast after the first step" "" \
    "$(sed -n 's/^spy: \(rank . broadcasts\)/\1/p' new.out | sort -u | head -3)"
why="comm_broadcast takes the number of values, not of bytes. What follows them in memory is not yours."
equal "each broadcast is as long as the array" "" "$(sed -n 's/^long: //p' new.out | sort -u | head -3)"

# The same for a resumed run.
old=(--arch convnet --train-samples 24 -b 4 --epochs 2)
finished begun 3 "${old[@]}" --max-steps 2 --save begun.st
finished old.right 3 "${old[@]}" --resume begun.st
try_learner old 3 "${old[@]}" --resume begun.st
why="On a cluster, perhaps only rank 0 has the file, or another rank has a different one. Rank 0 sends what it reads."
readers=$(sed -n 's/^spy: \(rank .\) reads the checkpoint/\1/p' old.out | sort -u | paste -sd,)
equal "only rank 0 reads the checkpoint" "rank 0" "$readers"
begins old " after --resume" weights statistics momentum
why="comm_broadcast_host copies from and to the host's memory, where the state is. The arrays are in the device's, which
on a GPU is another memory."
equal "arrays on the device are sent with comm_broadcast" "" \
    "$(sed -n 's/^host: //p' new.out old.out | sort -u | head -3)"
[ "$status" = 0 ] || wrong "the run succeeds" < <(last_lines old)
ends old " after --resume"

new=(--arch lenet --train-samples 24 -b 4 --optim adamw)
finished adam.begun 3 "${new[@]}" --max-steps 1 --save adam.st
finished adam.right 3 "${new[@]}" --resume adam.st
try_learner adam 3 "${new[@]}" --resume adam.st
begins adam " with AdamW" weights momentum squares
[ "$status" = 0 ] || wrong "the run with AdamW succeeds" < <(last_lines adam)
ends adam " with AdamW"

# A new run whose weights only rank 0 reads.
finished init.right 3 "${new[@]}" --init adam.st
try_learner init 3 "${new[@]}" --init adam.st
begins init " with --init" weights
[ "$status" = 0 ] || wrong "the run with --init succeeds" < <(last_lines init)
ends init " with --init"

# A network in which param_count and grad_count differ.
new=(--arch resnet18 --train-samples 6 --test-samples 1 -b 1)
finished wide.begun 1 "${new[@]}" -b 3 --max-steps 1 --save wide.st
try_learner wide 3 "${new[@]}" --resume wide.st
begins wide "$wide" weights statistics momentum
[ "$status" = 0 ] || wrong "the run with ResNet-18 succeeds" < <(last_lines wide)
rm -f wide.st
