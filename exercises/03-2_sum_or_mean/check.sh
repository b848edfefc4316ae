# shellcheck shell=bash disable=SC2034,SC2154
# Two and three ranks must have the losses of one process with all their images. If not, a third column shows one
# process with an N times larger learning rate: without weight decay, a sum of gradients has exactly that effect. AdamW
# takes almost the same steps with a sum and a mean, so its runs fail if the learning rate is divided instead. The same
# must hold with several buckets, and with ddp_naive.c.
# fails with: two ranks learn what one process with all their images learns
# fails with: one, lr x 2
build --with check.c --wrap comm_all_reduce --wrap values_scale --wrap stream_wait
same=(--train-samples 288 --lr 0.02 --wd 0 --seed 5)
one one "${same[@]}" -b 48
one still "${same[@]}" -b 48 --lr 0
for name in one still; do values $name.0.jsonl step loss >$name.losses; done

for n in 2 3; do
    SPY=1 try_learner $n $n "${same[@]}" -b $((48 / n))
    why="The buckets travel on a stream of their own. Before ddp_wait, the compute stream scales numbers that are being
added up at the same time: some before, some after their sum, and which ones changes from run to run."
    equal "no gradient is scaled while it travels ($n ranks)" "" "$(sed -n 's/^spy: //p' $n.out | sort -u)"
    why="Do all ranks scale by the same factor?"
    [ "$status" = 0 ] || wrong "the run with $n ranks succeeds" < <(last_lines $n)
    for ((rank = 0; rank < n; rank++)); do
        values $n.$rank.jsonl step loss >$n.$rank.losses
    done
    mean $n.?.losses >$n.losses
    one fast "${same[@]}" -b 48 --lr 0.0$((2 * n))
    values fast.0.jsonl step loss >fast.losses
    words=(- - two three)
    why="Each step is too long or too short. Is your factor right for any number of ranks?"
    ! are_near 1e-4 "$(tail -1 fast.losses)" "$(tail -1 $n.losses)" ||
        why="These are the losses of a learning rate $n times as large, in the third column."
    ! are_near 1e-5 "$(tail -1 still.losses)" "$(tail -1 $n.losses)" ||
        why="The weights do not change, because your factor is 0 or almost 0. In C, 1 / 2 is 0."
    beside "${words[n]} ranks learn what one process with all their images learns" 1e-4 step \
        "one process" one.losses "$n ranks" $n.losses "one, lr x $n" fast.losses
done

adam=(--train-samples 288 --optim adamw --lr 0.002 --seed 5)
one adam.one "${adam[@]}" -b 48
learner adam 2 "${adam[@]}" -b 24
values adam.one.0.jsonl step loss >one.losses
for rank in 0 1; do values adam.$rank.jsonl step loss >2.$rank.losses; done
mean 2.?.losses >2.losses
why="AdamW divides each gradient by its own size, so a sum and a mean take the same steps, and the learning rate must
stay as it is. The gradients have to be right, not only SGD's steps."
beside "with AdamW they also learn what one process learns" 1e-3 step "one process" one.losses "2 ranks" 2.losses

# in_buckets MIB WORDS: claims that two ranks of $train with buckets of this size learn what one process learns.
one one "${same[@]}" -b 48
values one.0.jsonl step loss >one.losses
in_buckets()
{
    local rank
    learner "buckets$1" 2 "${same[@]}" -b 24 --bucket-mb "$1"
    for rank in 0 1; do values "buckets$1.$rank.jsonl" step loss >2.$rank.losses; done
    mean 2.?.losses >2.losses
    beside "two ranks learn the same $2" 1e-4 step "one process" one.losses "2 ranks" 2.losses
}
why="With --bucket-mb 0.01 the gradients travel in three messages. Each must be scaled once, and only its own numbers."
in_buckets 0.01 "with several buckets"
why="train_naive sends all gradients at once, after backward. Its average, in ddp_naive.c, must be the mean, too."
build_naive
train=$naive in_buckets 64 "with ddp_naive.c"
