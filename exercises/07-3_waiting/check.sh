# shellcheck shell=bash disable=SC2034,SC2154
# 2 ranks evaluate 6 batches, then 5, and 4 ranks evaluate 6. All runs must end, the last two with the result of one
# rank. If a run with two ranks hangs, a spy's record shows their barriers and all-reduces.
# fails with: two ranks finish five batches
build --with check.c --wrap comm_barrier --wrap comm_all_reduce
same=(-b 8 --seed 5)
finished trained 1 "${same[@]}" --save net.st

# evaluated BATCHES RANKS WHAT
evaluated()
{
    local name=$1x$2 rank
    try_learner "$name" "$2" "${same[@]}" --test-samples $(($1 * 8)) --evaluate --resume net.st
    for ((rank = 0; rank < $2; rank++)); do
        sed -n "s/.*spy $rank //p" "$name.out" >"$name.$rank.calls"
    done
    [ "$status" = 0 ] || {
        [ -s "$name.0.calls" ] || wrong "$3" < <(last_lines "$name")
        beside "$3" same call "rank 0" "$name.0.calls" "rank 1" "$name.1.calls"
        why=
        wrong "$3" < <(last_lines "$name")
    }
    passed "$3"
}
evaluated 6 2 "two ranks finish six batches"
limit=5
why="Rank 0 has three batches and rank 1 has two. A collective that only one rank calls never returns."
evaluated 5 2 "two ranks finish five batches"
limit=10
why="Two of four ranks have two batches, two have one."
evaluated 6 4 "four ranks finish six batches"
for n in 5x2 6x4; do
    finished right 1 "${same[@]}" --test-samples $((${n%x*} * 8)) --evaluate --resume net.st
    value right.0.jsonl eval test_loss >>expected
    value $n.0.jsonl eval test_loss >>found
done
why="Both runs end, but some images do not count exactly once."
beside "the ranks' result is that of one rank" 1e-9 run expected expected found found
