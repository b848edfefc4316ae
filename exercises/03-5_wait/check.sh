# shellcheck shell=bash disable=SC2034,SC2154
# On a slow network (check.c), the optimizer must not begin before every bucket has arrived and been averaged: with
# small buckets, and with one large bucket. Backward must not wait for a bucket, nor the host for a stream.
# fails with: all buckets are averaged when the optimizer begins
export SPY=1
build --with check.c --wrap comm_all_reduce --wrap values_scale --wrap sgd_update --wrap stream_sync \
    --wrap event_sync --wrap replay_run
same=(--train-samples 64)

# waits NAME WORDS OPTION...: claims that the ranks of run NAME wait for all buckets, end with the right weights, and
# send as many messages as in step 03. The claims contain WORDS.
waits()
{
    local name=$1 words=$2 rank
    shift 2
    finished "$name.right" 2 "${same[@]}" "$@" --trace "$name.right.json"
    try_learner "$name" 2 "${same[@]}" "$@" --trace "$name.json"
    [ "$status" != 124 ] || wrong "the run ends${words:+ ($words)}" < <(last_lines "$name")
    for rank in 0 1; do
        sed -n "s/^spy: rank $rank \([0-9]*\) .*/\1, rank $rank/p" "$name.out" >sent.$rank
        sed -n "s/^spy: rank $rank [0-9]* \([0-9]*\) .*/\1, rank $rank/p" "$name.out" >averaged.$rank
    done
    paste -d'\n' sent.0 sent.1 >sent
    paste -d'\n' averaged.0 averaged.1 >averaged
    why="The numbers count a rank's buckets since the start. A bucket that is not averaged still holds this rank's own
gradients, or a sum that is being computed while the optimizer reads it."
    beside "all buckets are averaged when the optimizer begins${words:+ ($words)}" same "" sent sent averaged averaged
    [ "$status" = 0 ] || wrong "the run succeeds" < <(last_lines "$name")
    why="Gradients should still travel in buckets, while backward is running."
    equal "weights and messages are those of step 03${words:+ ($words)}" \
        "$(value "$name.right.0.jsonl" end weight_hash), $(all_reduces "$name.right.json") messages" \
        "$(value "$name.0.jsonl" end weight_hash), $(all_reduces "$name.json") messages"
}

waits small "" --bucket-mb 0.01
why="Each bucket had been averaged before the next one was sent: backward waited for the network. The averages are
right, but as slow as with train_naive."
for rank in 0 1; do
    [ "$(sed -n "s/^spy: rank $rank //p" small.out | awk '$3 > most { most = $3 } END { print most + 0 }')" -gt 1 ] ||
        wrong "backward continues while a bucket travels" <<<"buckets of rank $rank on their way at once: at most one"
done
passed "backward continues while a bucket travels"
why="The averages are right. But stream_sync and event_sync stop the host until a stream is done. On a GPU, a step is
recorded once and then replayed without the host, so only streams may wait, with stream_wait."
equal "only streams wait in a step, never the host" "" "$(sed -n 's/^spy: \(.* in a step\)/\1/p' small.out | sort -u)"
waits one "one large bucket"
