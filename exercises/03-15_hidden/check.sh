# shellcheck shell=bash disable=SC2034,SC2154
# The program must send as many buckets as the finished step, and none in the thread that runs backward.
# fails with: the network works beside backward
build
same=(--train-samples 320 --bucket-mb 0.001 --slow-network 100)
finished right 2 "${same[@]}" --trace right.json
learner yours 2 "${same[@]}" --trace yours.json
equal "the final weights are those of the finished step" \
    "$(value right.0.jsonl end weight_hash)" "$(value yours.0.jsonl end weight_hash)"
equal "the number of messages equals the finished step's" "$(grep -c '"all_reduce ' right.json)" \
    "$(grep -c '"all_reduce ' yours.json)"
main=$(sed -n 's/.*"pid":0,"tid":\([0-9]*\),"name":"thread_name","args":{"name":"main"}.*/\1/p' yours.json)
why="The main thread runs backward. While it sends a bucket, backward cannot continue."
[ "$(grep -c "\"pid\":0,\"tid\":$main,.*\"all_reduce " yours.json)" = 0 ] ||
    wrong "the network works beside backward" < <(python3 "$root/tools/why.py" yours.json yours.0.jsonl 2>&1 | head -4)
passed "the network works beside backward"
