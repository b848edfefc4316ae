# shellcheck shell=bash disable=SC2034,SC2154
# Rank 1 gets SIGINT during its third step. Both ranks must stop after the same step. Once resumed, the run must end
# with the weights of an uninterrupted one. No gradient may be changed, and no message added. Three ranks must
# stop, too.
# fails with: both ranks stop after the same step
build --with check.c --wrap comm_all_reduce --wrap sgd_update --wrap model_new --wrap stop_agree
same=(--timeout 4)
SIGNAL=1 try_learner two 2 "${same[@]}" --save stopped.st
for rank in 0 1; do values two.$rank.jsonl step step | wc -l >steps.$rank; done
why="Rank 0 waits for gradients that rank 1 will never send."
[ "$status" != 1 ] || wrong "both ranks stop after the same step" < <(
    echo "rank 0 finished $(cat steps.0) steps and waits in the next; rank 1 finished $(cat steps.1) and left"
    last_lines two 5)
equal "both ranks stop after the same step" "$(cat steps.0)" "$(cat steps.1)"
why="The signal arrives in step 3. The stop flag travels with the gradients of a later step."
holds "the ranks stop soon after the signal" test "$(cat steps.0)" -le 5
equal "the exit status is that of a signal: 130 (rank 1's SIGINT) or 143 (the SIGTERM of rank 0)" yes \
    "$([ "$status" = 130 ] || [ "$status" = 143 ] && echo yes || echo "$status")"

SIGNAL=1 try_learner three 3 "${same[@]}" -b 4
for rank in 0 1 2; do
    echo "rank $rank: stopped after step $(values three.$rank.jsonl step step | tail -1)" >>found
done
sed "s/ [0-9]*$/ $(tail -1 found | sed 's/.* //')/" found >expected
why="Two ranks stop, three do not: is the average of three ranks' requests, one of which is not 0, still seen? SIGINT is
2, and a third of it is less than 1."
[ "$(tail -1 found | sed 's/.* //')" -le 5 ] || wrong "three ranks stop, too" <found
beside "three ranks stop, too" same "" "expected                    " expected found found

why="The last gradients in the arena may be padding, as here, or belong to a parameter. The spare floats come after
them: they begin at grads[grad_count]."
[ -z "$(sed -n '/^gradient .* changed$/p' two.out)" ] ||
    wrong "stop_agree changes no gradient" < <(grep '^gradient .* changed$' two.out | sort | uniq -c)

finished rest 2 "${same[@]}" --resume stopped.st
finished whole 2 "${same[@]}"
why="A flag among the gradients must not change the weights."
equal "the resumed run ends with the weights of an uninterrupted one" "$(value whole.0.jsonl end weight_hash)" \
    "$(value rest.0.jsonl end weight_hash)"

learner calm 2 "${same[@]}" --trace calm.json
finished whole 2 "${same[@]}" --trace whole.json
why="The gradients have room for a flag: MODEL_SPARE floats after them."
equal "no message is added" "$(all_calls whole.json) calls" "$(all_calls calm.json) calls"
