# shellcheck shell=bash disable=SC2034,SC2154
# A spy (check.c) writes down three weights of each rank in each step except the last. An exchange is due after every
# H steps of an epoch, and after the epoch's last step. The outer optimizer must move the anchor (the weights of the
# last exchange), and all ranks must continue with the new anchor. With H = 1, SGD, an outer rate of 1 and no outer
# momentum, the losses are those of DDP.
# fails with: 12 steps with --sync-every 4 have 4 messages
export SPY=1
build --with check.c --wrap optim_step --wrap model_forward --wrap comm_all_reduce
# exchanges N H MESSAGES LR MOMENTUM OPTION...: trains with N ranks for two epochs of 6 steps. Claims that each
# rank sends MESSAGES messages and has the right weights after each step. LR and MOMENTUM are the outer optimizer's.
exchanges()
{
    local n=$1 h=$2 rank files=()
    rm -f spy.?
    try_learner h$h.$n "$n" --train-samples $((48 * n)) --epochs 2 --sync-every "$h" --outer-lr "$4" \
        --outer-momentum "$5" "${@:6}"
    for ((rank = 0; rank < n; rank++)); do
        [ -s spy.$rank ] || wrong "$n ranks train" < <(last_lines h$h.$n)
        files+=("spy.$rank")
        why="Neither backward nor apply_gradients may exchange anything now. After the last step of an epoch
there is also an exchange, but only one, even if H steps are over."
        equal "12 steps with --sync-every $h have $3 messages (rank $rank)" "$3" "$(grep -c message spy.$rank)"
    done
    awk -v n="$n" -v h="$h" -v lr="$4" -v momentum="$5" '
        FNR == 1 { rank++ }
        $1 == "start" { anchor[$3] = $4 }
        $1 == "step" { inner[$2, $3, rank] = $4; found[$2, $3, rank] = $5; last = $2 }
        END {
            for (step = 1; step <= last; step++)
                for (i = 0; i < 3; i++) {
                    mean = 0
                    for (r = 1; r <= n; r++) mean += inner[step, i, r] / n
                    due = step % 6 % h == 0
                    if (due) {
                        way = anchor[i] - mean
                        velocity[i] = momentum * velocity[i] + way
                        anchor[i] -= lr * (way + momentum * velocity[i])
                    }
                    for (r = 1; r <= n; r++)
                        printf "step %d, rank %d, weight %d:\t%.7f\t%.7f\n", step, r - 1, i,
                            due ? anchor[i] : inner[step, i, r], found[step, i, r]
                }
        }' "${files[@]}" >weights
    cut -f2 weights >expected
    cut -f3 weights >found
    cut -f1 weights >which
    why="Between exchanges a rank's optimizer alone changes its weights. In an exchange the outer optimizer takes a step
with the gradient (anchor - mean of the ranks' weights), and all weights become the new anchor. H steps are
counted from the beginning of each epoch."
    beside "$n ranks, --outer-lr $4 --outer-momentum $5: each step ends with the right weights" 2e-6 "" \
        expected expected found found "" which
    why="In the last step the ranks did not get equal weights."
    [ "$status" = 0 ] || wrong "all ranks have equal weights at the end" < <(last_lines h$h.$n)
    passed "all ranks have equal weights at the end"
}
exchanges 2 4 4 1 0
exchanges 3 3 4 0.7 0.9 --optim adamw --lr 0.004
learner one 2 --sync-every 1
finished ddp 2
values ddp.0.jsonl step loss >expected
values one.0.jsonl step loss >found
why="The losses differ after the second step? Only weights are exchanged: each rank's optimizer keeps its momentum."
beside "with an exchange after each step, SGD's losses are those of DDP" 1e-4 step "DDP" expected "yours" found
