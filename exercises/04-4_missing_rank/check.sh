# shellcheck shell=bash disable=SC2034,SC2154
# Three runs with three ranks: rank 1 does not arrive in time; rank 0 does not; rank 2 is only a second late.
# ctest: LABELS deadlines
# fails with: if rank 1 does not arrive, the others give up
build
cat >late.sh <<'END'
[ "$RANK" != "$LATE" ] || sleep "$SECONDS_LATE"
exec "$@"
END
three() # three NAME RANK SECONDS OPTION...: RANK starts SECONDS late
{
    try "$1" env LATE="$2" SECONDS_LATE="$3" "$launch" --nproc-per-node 3 -- bash late.sh "$train" "${tiny[@]}" "${@:4}"
}
gives_up() # gives_up NAME RANK: claims that the run ended with an error
{
    [ "$status" != 124 ] || wrong "if rank $2 does not arrive, the others give up" < <(
        echo "expected  an error after --timeout"
        echo "found     they are still waiting after $limit s")
    [ "$status" != 0 ] || wrong "if rank $2 does not arrive, the others give up" < <(
        echo "they trained without rank $2: exit status 0"
        last_lines "$1" 3)
    passed "if rank $2 does not arrive, the others give up"
}
limit=20
why="All remaining ranks are alive and waiting, so nothing else will end the run."
three absent 1 60 --timeout 4
gives_up absent 1
found=$(who_is_missing absent)
found=${found/1, 2,/1,}                 # on a very busy machine, rank 2 may be late too
why="Rank 0 knows which ranks have arrived, and --timeout is 4."
equal "after --timeout rank 0 names the missing rank" "1, after 4 s" "$found"

three alone 0 60 --timeout 3
gives_up alone 0
why="The output was: $(grep -m1 . alone.out)"
equal "the other ranks report that they could not find rank 0" "after 3 s" \
    "after $(looked_for_rank_0 alone) s"

limit=20
three late 2 1 --timeout 15
why="The rank was one second late; the timeout is 15 s."
[ "$status" = 0 ] || wrong "a rank that arrives a second late can still join" < <(last_lines late)
passed "a rank that arrives a second late can still join"
