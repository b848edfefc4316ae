# shellcheck shell=bash disable=SC2034,SC2154
# With 2, 3 and 4 ranks, the ring adds up numbers whose sum shows which ranks are in it, and each rank's bytes are
# counted. Four ranks must not wait for each other in a chain, nor the host for the ring. The losses of 3 ranks are
# compared with those of comm_all_reduce.
# fails with: 2 ranks add up 8 numbers
build --with check.c --wrap ddp_set_hook --wrap comm_send --wrap comm_receive --wrap stream_sync \
    --wrap event_sync
train_a_little=(--train-samples 24 --bucket-mb 0.1)

# numbers FILE COUNT COLUMN: prints this column of check.c's lines "number COUNT ...", in a row.
numbers() { awk -v n="$2" -v c="$3" '$1 == "number" && $2 == n { row = row " " $c } END { print row }' "$1"; }
total() { [ ! -f "$1" ] || awk -v n="$2" -v c="$3" '$1 == "total" && $2 == n { print $c }' "$1"; }
# messages_in_a_row N COUNT: how long N ranks take to add up COUNT numbers, if a message of COUNT / N numbers takes 1. A
# message begins when one rank sends and the other receives. Neither does anything else meanwhile.
messages_in_a_row()
{
    local rank
    for ((rank = 0; rank < $1; rank++)); do
        awk -v r=$rank -v c="$2" '/^(send|receive) / && $2 == c { print r, $1, $3, $4 }' ring."$1".$rank
    done | awk -v n="$1" -v count="$2" '
        { call[$1, ++calls[$1]] = $2 " " $3; size[$1, calls[$1]] = $4 }
        END {
            for (r = 0; r < n; r++) at[r] = 1
            do {
                moved = 0
                for (r = 0; r < n; r++) {
                    split(call[r, at[r]], part, " ")
                    to = part[2]
                    if (part[1] != "send" || call[to, at[to]] != "receive " r) continue
                    end = (time[r] > time[to] ? time[r] : time[to]) + size[r, at[r]]
                    time[r] = time[to] = end
                    at[r]++; at[to]++; moved = 1
                    if (end > last) last = end
                }
            } while (moved)
            print last / (count / n)
        }'
}
for n in 2 3 4; do
    try_learner $n $n "${train_a_little[@]}" -b 2 --timeout 4
    if all_wait $n; then
        why="comm_send waits until the other rank receives (comm.h). If all ranks send first, all wait. Or a rank sends
a part that no rank receives."
        wrong "$n ranks finish" < <(last_lines $n 7)
    fi
    for ((rank = 0; rank < n; rank++)); do
        [ -n "$(total ring.$n.$rank 12001 3)" ] || wrong "$n ranks add up numbers" < <(last_lines $n)
    done
    for count in 8 7 1; do
        rm -f expected found
        for ((rank = 0; rank < n; rank++)); do
            echo "rank $rank:$(numbers ring.$n.$rank $count 3)" >>expected
            echo "rank $rank:$(numbers ring.$n.$rank $count 4)" >>found
        done
        why="Rank 0 starts with 1 2 3 ..., rank 1 with 10 20 30 ..., rank 2 with 100 200 300 ... The digits of a sum
show which ranks are in it, and how often."
        columns=$((13 + count * (n + 1)))
        beside "$n ranks add up $count number$([ $count = 1 ] || echo s)" same "" \
            "$(printf '%-*s' $columns 'expected')" expected "your sums" found
    done
    rm -f expected found sent ring
    for ((rank = 0; rank < n; rank++)); do
        for count in 12000 12001; do
            echo "rank $rank: 0 of $count are wrong" >>expected
            echo "rank $rank: $(total ring.$n.$rank $count 3) of $count are wrong" >>found
        done
        echo "rank $rank: $((2 * (n - 1) * 4 * 12000 / n)) bytes, 0 in other calls" >>ring
        echo "rank $rank: $(total ring.$n.$rank 12000 4) bytes, $(total ring.$n.$rank 12000 5) in other calls" >>sent
    done
    beside "$n ranks add up 12000 and 12001 numbers" same "" "expected                      " expected found found
    why="With $n ranks, each rank sends 2 x $((n - 1)) messages of 1/$n of the numbers."
    beside "each rank sends 2 x $((n - 1))/$n of 12000 numbers" same "" \
        "a ring                                 " ring "your ring" sent
    why="In each turn, half of the ranks should send while the others receive; then the other way round. So 6 turns
should take as long as 12 messages. Here a rank waits for the next one, which waits for the one after it: a turn takes
longer, the more ranks there are."
    [ $n != 4 ] || equal "4 ranks: all messages together take as long as 12" 12 "$(messages_in_a_row 4 12000)"
    why="ddp_ready calls the hook in the middle of backward. If the hook waits for the stream or for other ranks,
backward waits too, and nothing overlaps. So enqueue the additions as well: ring_add."
    [ $n != 2 ] || equal "the host continues while the ring works" "the hook returns at once" \
        "$(cat ring.2.? | grep -q "^returned 0" && echo "the hook waits" || echo "the hook returns at once")"
    [ "$status" = 0 ] || wrong "$n ranks train to the end" < <(last_lines $n)
done

finished right 3 "${train_a_little[@]}" -b 2
values right.0.jsonl step loss >expected
values 3.0.jsonl step loss >found
why="The sums are right. Are they still right for buckets of other sizes, and in every step?"
beside "3 ranks learn as they do with comm_all_reduce" 1e-4 step "all-reduce" expected "your ring" found
