#!/usr/bin/env bash
# ctest: TIMEOUT 180
# 07: the numbers of training are those of all ranks' samples, though they are told one step later: each is the mean of
# what 06's ranks say of themselves, none is lost or late, and a run that goes on says what it would have said.
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
. "$SRC/tests/eval.sh"
cd "$TMP" || exit 1
# 5 steps an epoch for 2 ranks of 12, the last of 2 samples each; 4 for 3 ranks, the last of 34 - 33 = 1 each.
run=(--data synthetic --train-samples 100 --test-samples 24 --epochs 2 --threads 1 -j 1 --seed 5 --lr 0.02 --amp off)
lenet=(--arch lenet -b 12)
# What does not depend on time, of each step and epoch.
numbers() { sed -n '/"event":"\(step\|epoch\)"/{s/"\(samples_per_s\|data_wait_ms\|seconds\)":[^,}]*//g;p}' "$@"; }
# epoch step loss acc running_loss running_acc lr norm
table()
{
    paste -d ' ' <(field "$1" step epoch) <(field "$1" step step) <(field "$1" step loss) <(field "$1" step acc) \
        <(field "$1" step running_loss) <(field "$1" step running_acc) <(field "$1" step lr) \
        <(field "$1" step gradient_norm)
}

# --- means of all ranks -----------------------------------------------------------------------------------

# like_each RANKS STEPS [OPTIONS]
like_each()
{
    local n=$1 steps=$2
    shift 2
    rm -f six.* seven.*
    ranks "$n" "$older/train" "${run[@]}" -p 1 --metrics six.%r.jsonl "$@" >six.out 2>&1 &&
        ranks "$n" "$train" "${run[@]}" -p 1 --metrics seven.%r.jsonl "$@" >seven.out 2>&1 ||
        { tail -3 six.out seven.out; return 1; }
    is "$(sed -n 's/^weight hash: //p' seven.out)" "$(sed -n 's/^weight hash: //p' six.out)" || return 1
    for ((rank = 0; rank < n; rank++)); do
        table "six.$rank.jsonl"
    done >each
    table seven.0.jsonl | awk -v n="$n" -v steps="$steps" '
        FNR == NR { for (i = 3; i <= NF; i++) sum[$1, $2, i] += $i / n; next }
        {
            for (i = 3; i <= NF; i++) {
                d = $i - sum[$1, $2, i]
                most = i == 4 || i == 6 ? 1e-4 : 1e-6       # percent, in so many digits
                if (i == NF)
                    most = 1e-6 * $i
                if (!(d <= most && d >= -most)) { print $0 ": " $i ", not " sum[$1, $2, i]; bad = 1 }
            }
            bad = bad || NF != 8
        }
        END { if (FNR != steps) { print FNR " steps"; bad = 1 } exit bad }' each - || return 1
    # What the line says is what the event says.
    sed -n 's/.*== step: .* loss: \(.*\) | acc: *\(.*\)%.*/\1 \2/p' seven.out |
        diff - <(table seven.0.jsonl | awk '{ printf "%.3f %.3f\n", $5, $6 }') &&
        for ((rank = 1; rank < n; rank++)); do
            diff <(numbers seven.0.jsonl) <(numbers seven.$rank.jsonl) || return 1
        done
}
check "1 rank" shown like_each 1 18 "${lenet[@]}"
check "2 ranks" shown like_each 2 10 "${lenet[@]}"
check "they differ" shown not diff <(table six.0.jsonl) <(table six.1.jsonl)
check "whose numbers these are is not said" not grep -q "| rank\|\"rank\":[0-9]" seven.out seven.0.jsonl
check "3 ranks" shown like_each 3 8 -b 11 --arch convnet
check "the last batch is smaller" shown is "$(field six.0.jsonl step steps | head -1)" 4
check "2 ranks, in parts, bf16" shown like_each 2 10 "${lenet[@]}" --accumulate 3 --amp bf16
check "4 ranks" shown like_each 4 10 -b 6 --arch lenet

# --- in order -----------------------------------------------------------------------------------------------

# "1.2 1.4 test save Finished hash": what was printed in which order.
order()
{
    sed -n 's/.*== step: \[ *\([0-9]*\)\/.*\] \[\([0-9]*\)\/.*/\2.\1/p; s/.*== test: .*/test/p
        s/.*== saving: .*best/best/p; s/.*== saving: .*/save/p; s/.*==  Training \([A-Z][a-z]*\) .*/\1/p
        s/^weight hash.*/hash/p' "$TMP/output" | tr '\n' ' '
}
expect 0 "" ranks 2 "$train" "${run[@]}" "${lenet[@]}" -p 2
check "steps, then the test" shown is "$(order)" "1.2 1.4 1.5 test 2.2 2.4 2.5 test Finished hash "
expect 0 "" ranks 2 "$train" "${run[@]}" "${lenet[@]}" -p 50 --max-steps 8
check "the last step of the run, too" shown is "$(order)" "1.5 test 2.3 Finished hash "
rm -f net.st*
expect 0 "" ranks 2 "$train" "${run[@]}" "${lenet[@]}" -p 2 --max-steps 9 --save net.st --save-every 2 --lr 0
check "before what is saved then" shown is "$(order)" \
    "1.2 save 1.4 save 1.5 test best save save 2.2 save 2.4 save Finished hash "
expect 0 "" ranks 3 "$train" "${run[@]}" -b 200 --arch lenet
check "one step an epoch" shown is "$(order)" "1.1 test 2.1 test Finished hash "
expect 3 "the loss is not finite" ranks 2 "$train" "${run[@]}" "${lenet[@]}" --lr 1000 --wd 1 -p 1
check "no more is said" not grep -q "== test\|loss: -\?nan" "$TMP/output"

"$step/launch" -n 2 -- "$train" "${run[@]}" "${lenet[@]}" -p 3 --epochs 100000 --train-samples 4000 \
    --save stopped.st >"$TMP/output" 2>&1 &
for _ in {1..200}; do grep -qs "== step" "$TMP/output" && break; sleep 0.05; done
kill -TERM $!
wait $!
check "TERM: status $?" test $? = 143
last=$(order | sed -n 's/.* \([0-9.]*\) save Interrupted hash $/\1/p')
check "the last step is told" test -n "$last"
expect 0 "== resumed: stopped.st, epoch ${last%.*}, step ${last#*.}" ranks 2 "$train" "${run[@]}" "${lenet[@]}" \
    --epochs 100000 --train-samples 4000 --max-steps 1 --resume stopped.st

# --- going on -------------------------------------------------------------------------------------------------

# A step that keeps each checkpoint within an epoch, with the number of steps behind its name.
keep='char kept[32]; snprintf(kept, sizeof kept, ".%lld", (long long)job->state.global_step);
    if (job->config.checkpoint.save) save(job, kept);'
check "a copy of the step" shown build ./keeps \
    train.c "job->state.running = sum_stats(job);" "job->state.running = sum_stats(job); $keep"
integer() { od -An -t d8 -N8 -j "$(offset_of "ddp.running.$1" "$2")" "$2" | tr -d ' '; }      # integer NAME FILE
real() { od -An -t f8 -N8 -j "$(offset_of "ddp.running.$1" "$2")" "$2" | tr -d ' '; }
# goes_on RANKS STEPS... [-- OPTIONS]: from the checkpoints after so many steps.
goes_on()
{
    local n=$1 stop steps=() near keeps=./keeps
    [ "$train" != ./mistaken ] || keeps=./mistaken
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        steps+=("$1")
        shift
    done
    rm -f whole.* rest.*
    ranks "$n" $keeps "${run[@]}" -p 1 "${@:2}" --save whole.st --save-every 1 --metrics whole.jsonl >whole.out 2>&1 ||
        return 1
    for stop in "${steps[@]}"; do
        cp "whole.st.$stop" rest.st
        rm -f rest.jsonl
        ranks "$n" "$train" "${run[@]}" -p 1 "${@:2}" --resume rest.st --save rest.st --metrics rest.jsonl \
            >rest.out 2>&1 || return 1
        diff <(numbers rest.jsonl) <(numbers whole.jsonl | tail -n "$(numbers rest.jsonl | wc -l)") || return 1
        cmp rest.st whole.st || return 1
        is "$(numbers rest.jsonl | wc -l)" $((12 - stop - stop / 5)) || return 1
        near=$(table whole.jsonl | awk -v row="$stop" 'NR == row { print $5, $6 }')
        awk -v count="$(integer count "whole.st.$stop")" -v right="$(integer correct1 "whole.st.$stop")" \
            -v loss="$(real loss_sum "whole.st.$stop")" -v n="$((n * 12 * (stop % 5)))" -v near="$near" '
            BEGIN { split(near, of); print count, loss / count, 100 * right / count, near
                    exit !(count == n && loss / count - of[1] < 1e-6 && of[1] - loss / count < 1e-6 &&
                           100 * right / count - of[2] < 1e-3 && of[2] - 100 * right / count < 1e-3) }' || return 1
    done
}
check "2 ranks" shown goes_on 2 1 3 8 -- "${lenet[@]}"
check "2 ranks, with statistics, bf16" shown goes_on 2 3 9 -- --arch convnet -b 12 --amp bf16
check "2 ranks" shown goes_on 2 3 -- "${lenet[@]}"
# Twice as many ranks, with batches half as large: the same samples, so the same numbers, but for rounding.
near_whole()
{
    rm -f rest.*
    cp "$1" rest.st
    ranks 4 "$train" "${run[@]}" -p 1 --arch lenet -b 6 --resume rest.st --metrics rest.jsonl >rest.out 2>&1 || return 1
    table rest.jsonl | paste - <(table whole.jsonl | tail -n "$(table rest.jsonl | wc -l)") | awk -v rows="$2" '
        { for (i = 1; i <= 5; i += 2) { d = $i - $(i + 8); if (!(d <= 1e-4 && d >= -1e-4)) { print; bad = 1 } }
          if ($2 != $10 || $6 != $14) { print; bad = 1 } }
        END { exit bad || NR != rows }'
}
check "4 ranks go on where 2 were" shown near_whole whole.st.3 7
expect 0 "" ranks 2 "$train" "${run[@]}" "${lenet[@]}" --epochs 1 --save whole.st.5
check "4 ranks go on after an epoch of 2" shown near_whole whole.st.5 5

# --- mistakes ---------------------------------------------------------------------------------------------------

two() { like_each 2 10 "${lenet[@]}"; }
mistake "rank 0's own numbers" two eval.c "eval->line.stats = sum_end(eval);" "sum_end(eval);"
rest_of_two() { goes_on 2 3 -- "${lenet[@]}"; }
mistake "rank 0's own sums are saved" rest_of_two train.c "job->state.running = sum_stats(job);" \
    "job->state.running = read_stats(job, job->train_stats); $keep"
test_done
