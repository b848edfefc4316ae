# shellcheck shell=bash disable=SC2034,SC2154
# With AdamW, two and three ranks must learn what one process learns. So must two with SGD, where even a mean of weights
# passes. A run that is stopped and resumed must end with the weights of an uninterrupted one. The ranks must send as
# many messages as step 03, with the spare floats after the gradients. gradients_check must see the average.
# fails with: 2 ranks learn what one process learns with adamw
build --with check.c --wrap model_new --wrap comm_all_reduce --wrap gradients_check --wrap adamw_update
# learns N OPTIM OPTION...: claims that the mean losses of N ranks are those of one process with all their images
learns()
{
    local n=$1 optim=$2 same=(--train-samples 288 --seed 5 --optim "$2" "${@:3}") rank
    [ -s one.$optim.0.jsonl ] || one one.$optim "${same[@]}" -b 48
    values one.$optim.0.jsonl step loss >one
    rm -f $optim.$n.?.losses
    learner $optim.$n $n "${same[@]}" -b $((48 / n))
    for ((rank = 0; rank < n; rank++)); do values $optim.$n.$rank.jsonl step loss >$optim.$n.$rank.losses; done
    mean $optim.$n.?.losses >found
    why="AdamW divides each gradient by its own size. Is the mean of the ranks' steps the step of the mean gradient?"
    beside "$n ranks learn what one process learns with $optim" 1e-3 step "one process" one "$n ranks" found
}
learns 2 sgd --lr 0.02
learns 2 adamw --lr 0.004
learns 3 adamw --lr 0.004

# A checkpoint has only rank 0's momentum, so all ranks must have the same.
for optim in sgd adamw; do
    same=(--train-samples 96 --epochs 2 --optim "$optim" --lr 0.004 --seed 5)
    learner whole 2 "${same[@]}" --trace whole.json
    rm -f net.st
    learner early 2 "${same[@]}" --max-steps 7 --save net.st
    learner late 2 "${same[@]}" --resume net.st
    why="After a restart all ranks have the momentum of rank 0, because a checkpoint holds only one. So before the
restart, all must have the same momentum: that of the averaged gradients."
    equal "a run that is resumed ends with the same weights ($optim)" "$(value whole.0.jsonl end weight_hash)" \
        "$(value late.0.jsonl end weight_hash)"
done
finished right 2 "${same[@]}" --trace right.json
why="The average of the gradients is enough, in one message for each step."
equal "the ranks send as many messages as step 03" "$(all_reduces right.json)" \
    "$(all_reduces whole.json)"
why="From step 04 on, stop.c keeps a float after the gradients, with which all ranks agree to stop. So send ready_count
floats: the gradients and the spare floats after them."
equal "each message also has the spare floats after the gradients" 16 \
    "$(sed -n 's/^after the gradients: //p' whole.out | sort -u | paste -sd' ')"
why="gradients_check looks for infinite and NaN gradients; if there is one, the optimizer skips the step. A NaN of one
rank is in all ranks' average. If each rank looks at its own gradients, only that rank skips, and the others' weights
become NaN. So: average, check, optimizer."
holds "gradients_check reads the average, before the optimizer" awk '
    /^gradients checked: / { count[$3]++; n++ }
    /^unchecked/ { early++ }
    END {
        for (h in count) own += count[h] % 2
        if (n == 0) print "gradients_check is not called"
        if (own) print "the two ranks\047 checks read different gradients in " own / 2 " of " n / 2 " steps"
        if (early) print "the optimizer runs before the check"
        exit n == 0 || own || early }' whole.out
