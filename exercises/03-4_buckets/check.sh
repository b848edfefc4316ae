# shellcheck shell=bash disable=SC2034,SC2154
# A spy (check.c) records the range of gradients in each bucket. The ranges of a step must cover all gradients, without
# gaps and without overlaps; two steps are checked. A run must send as many messages as the finished program, also with
# buckets of several layers.
# fails with: each bucket begins where the last one ended
export SPY=1
build --with check.c --wrap comm_all_reduce --wrap model_new --wrap sgd_update
same=(--train-samples 64 --bucket-mb 0.001)
finished right 2 "${same[@]}" --trace right.json
try_learner yours 2 "${same[@]}" --trace yours.json
[ "$status" != 0 ] || equal "the final weights are those of step 03" \
    "$(value right.0.jsonl end weight_hash)" "$(value yours.0.jsonl end weight_hash)"

# once NAME RANK STEP WORDS: claims that the rank sent each gradient once in this step of the run.
once()
{
    local all sent name=$1
    shift
    sed -n "s/^spy: rank $1 step $2 sends //p" "$name.out" >ranges
    awk '{ printf "%5d to %5d\n", last, $2; last = $2 }' ranges >expected
    awk '{ printf "%5d to %5d\n", $1, $2 }' ranges >found
    all=$(sed -n '1s/.* //p' ranges) sent=$(awk '{ n += $2 - $1 } END { print 0 + n }' ranges)
    why="Each line is a bucket: a range of gradients that rank $1 sent in step $2. The rank has $all numbers to send
(the last 16 are not gradients, but travel with them), and it sent $sent. A gradient that is not sent stays this rank's
own; one that is sent twice costs time."
    beside "each bucket begins where the last one ended (rank $1, step $2$3)" same bucket expected expected found found
    why="The last 16 numbers travel with the last bucket. They are not gradients: step 04 uses them."
    equal "the last bucket ends with the last gradient (rank $1, step $2$3)" "$all" \
        "$(awk '{ end = $2 } END { print end }' ranges)"
}
once yours 0 1 ""
once yours 1 4 ""
[ "$status" = 0 ] || wrong "the run succeeds" < <(last_lines yours)

why="--bucket-mb is the size of a bucket. Buckets should leave while backward is running, not all at its end."
equal "the number of messages equals step 03's" "$(all_reduces right.json)" \
    "$(all_reduces yours.json)"
same=(--train-samples 64 --bucket-mb 0.05)
finished large 2 "${same[@]}" --trace large.json
try_learner yours.large 2 "${same[@]}" --trace yours.large.json
once yours.large 1 1 ", larger buckets"
[ "$status" = 0 ] || wrong "the run with larger buckets succeeds" < <(last_lines yours.large)
why="--bucket-mb is the size of a bucket: several layers may share one."
equal "the number of messages is also right with larger buckets" \
    "$(all_reduces large.json)" "$(all_reduces yours.large.json)"
