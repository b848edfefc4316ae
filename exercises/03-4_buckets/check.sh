# shellcheck shell=bash disable=SC2034,SC2154
# A spy (check.c) notes the range of gradients of each bucket that is sent. In a step the ranges must follow each other,
# from the first gradient to the last.
# fails with: each bucket begins where the last one ended
export SPY=1
build --with check.c --wrap comm_all_reduce --wrap model_new --wrap sgd_update
same=(--train-samples 64 --bucket-mb 0.001)
finished right 2 "${same[@]}" --trace right.json
try_learner yours 2 "${same[@]}" --trace yours.json
[ "$status" != 0 ] || equal "the weights in the end are those of the finished step" \
    "$(value right.0.jsonl end weight_hash)" "$(value yours.0.jsonl end weight_hash)"

# once RANK STEP: claims that this step of the rank's has sent each gradient once.
once()
{
    local all sent
    sed -n "s/^spy: rank $1 step $2 sends //p" yours.out >ranges
    awk '{ printf "%5d to %5d\n", last, $2; last = $2 }' ranges >expected
    awk '{ printf "%5d to %5d\n", $1, $2 }' ranges >found
    all=$(sed -n '1s/.* //p' ranges) sent=$(awk '{ n += $2 - $1 } END { print 0 + n }' ranges)
    why="Each line is a bucket: the gradients that rank $1 sent in step $2. There are $all of them (the last 16 are not
gradients, but travel with them), and $sent were sent."
    beside "each bucket begins where the last one ended (rank $1, step $2)" same bucket expected expected found found
    equal "and the last one ends behind the last gradient" "$all" "$(awk '{ end = $2 } END { print end }' ranges)"
}
once 0 1
once 1 4
[ "$status" = 0 ] || wrong "the run ends well" < <(said yours)

why="--bucket-mb says how large buckets are; they should be sent while backward goes on, not all at its end."
equal "there are as many messages as in the finished step" "$(grep -c '"all_reduce ' right.json)" \
    "$(grep -c '"all_reduce ' yours.json)"
