# shellcheck shell=bash disable=SC2034,SC2154
# Three ranks of which one is not there in time: rank 1, then rank 0; and one that is only late.
# fails with: if rank 1 does not come, the others give up
build
cat >late.sh <<'END'
[ "$RANK" != "$LATE" ] || sleep "$SECONDS_LATE"
exec "$@"
END
three() # three NAME RANK SECONDS TIMEOUT: that rank comes so much later
{
    try "$1" env LATE="$2" SECONDS_LATE="$3" "$launch" --nproc-per-node 3 -- bash late.sh "$train" "${tiny[@]}" \
        --timeout "$4"
}
gives_up() # gives_up NAME RANK: the run has ended, and badly
{
    [ "$status" != 124 ] || wrong "if rank $2 does not come, the others give up" < <(
        echo "expected  an error after the 3 s of --timeout"
        echo "found     after $limit s they still wait")
    [ "$status" != 0 ] || wrong "if rank $2 does not come, the others give up" < <(
        echo "they have trained without it: exit status 0"
        said "$1" 3)
    passed "if rank $2 does not come, the others give up"
}
limit=9
why="Nobody else will end it: each of them is alive, and waits."
three absent 1 60 3
gives_up absent 1
found=$(grep -o 'ranks came within [0-9.]* s: missing.*' absent.out)
found=${found/are 1, 2/is 1}            # on a machine that is very busy
why="Rank 0 knows who has come and who has not. What was said: $(grep -m1 . absent.out)"
equal "and rank 0 says who is missing" "ranks came within 3 s: missing is 1" "$found"

three alone 0 60 3
gives_up alone 0
why="What was said: $(grep -m1 . alone.out)"
equal "and the others say that they have not found it" "has not found rank 0, within 3 s" \
    "$(sed -n 's/.*\(has not found rank 0\) at .* \(within [0-9.]* s\).*/\1, \2/p' alone.out | head -1)"

limit=20
three late 2 1 15
why="One second late is not too late when there are 15."
[ "$status" = 0 ] || wrong "a rank that comes a second later is let in" < <(said late)
passed "a rank that comes a second later is let in"
