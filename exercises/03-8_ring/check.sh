# shellcheck shell=bash disable=SC2034,SC2154
# With 2, 3 and 4 ranks, the ring adds up numbers whose sum shows which ranks are in it, and each rank's bytes are
# counted. The losses of 3 ranks are compared with those of comm_all_reduce.
# fails with: 2 ranks add up 8 numbers
build --with check.c --wrap ddp_set_hook --wrap comm_send --wrap comm_receive
train_a_little=(--train-samples 24 --bucket-mb 0.1)

# numbers FILE COUNT COLUMN: prints this column of check.c's lines "number COUNT ...", in a row.
numbers() { awk -v n="$2" -v c="$3" '$1 == "number" && $2 == n { row = row " " $c } END { print row }' "$1"; }
total() { [ ! -f "$1" ] || awk -v n="$2" -v c="$3" '$1 == "total" && $2 == n { print $c }' "$1"; }
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
    [ "$status" = 0 ] || wrong "$n ranks train to the end" < <(last_lines $n)
done

finished right 3 "${train_a_little[@]}" -b 2
values right.0.jsonl step loss >expected
values 3.0.jsonl step loss >found
why="The sums are right. Are they still right for buckets of other sizes, and in every step?"
beside "3 ranks learn as they do with comm_all_reduce" 1e-4 step "all-reduce" expected "your ring" found
