# shellcheck shell=bash disable=SC2034,SC2154
# ctest: TIMEOUT 600
# With 3, 2 and 4 ranks, every rank must get all numbers, by sends to the next rank and receives from the one before,
# both at the same time. Every send and receive takes at least 30 ms here, so those of a group overlap in the
# timeline. A spy (check.c) counts the numbers that a rank sends, and makes a rank late.
# fails with: rank 0 waits in a send to rank 1
type -P mpirun >/dev/null || wrong "mpirun is installed (Open MPI: ./ddp setup)" </dev/null
build --with check.c --wrap ncclSend --wrap MPI_Finalize
export GPU_TIMEOUT=4 GPU_SLOW=nccl:30

# who_waits NAME: prints what each rank waits for, from the message of the run that hung.
who_waits()
{
    sed -nE 's/.*: (rank [0-9]+) of .*, in (send|receive) of .*: ([0-9]+) > ([0-9]+)\);.*/\1 \2 \3 \4/p' "$1.out" |
        awk '{ print "rank", $2, "waits in a", $3, $3 == "send" ? "to rank " $5 : "from rank " $4 }'
}
# all_numbers N: what N ranks must print
all_numbers()
{
    local n=$1 rank i
    for ((rank = 0; rank < n; rank++)); do
        printf 'rank %d:' $rank
        for ((i = 0; i < 4 * n; i++)); do printf ' %d' $((100 * (i / 4) + i % 4)); done
        echo
    done
}
for n in 3 2 4; do
    try_learner $n $n
    if all_wait $n; then
        why="A send is done when the other rank receives. Here each rank's ncclRecv comes after its ncclSend on the same
stream, so it never begins. Which calls have to begin together?"
        wrong "$n ranks pass on their numbers" < <(who_waits $n)
    fi
    why=
    [ "$status" = 0 ] || wrong "$n ranks pass on their numbers" < <(last_lines $n)
    all_numbers $n >expected
    grep ^rank $n.out | sort >found
    why="-1: this rank never got the number. In turn 2, a rank passes on what it received in turn 1."
    columns=$((12 + 16 * n))
    beside "$n ranks: every rank has all numbers" same "" \
        "$(printf '%-*s' $columns expected)" expected "your ring" found
    if [ $n = 3 ]; then
        LATE=1 learner late 3
        grep ^rank late.out | sort >found
        why="Here rank 0 was late, and a rank passed on numbers that it had not received yet. The calls of a group have
no order: a turn must begin after both calls of the turn before."
        beside "one of 3 ranks is late: every rank still has all numbers" same "" \
            "$(printf '%-*s' $columns expected)" expected "your ring" found
    fi
    for ((rank = 0; rank < n; rank++)); do
        for ((turn = 1; turn < n; turn++)); do
            echo "rank $rank: send to $(((rank + 1) % n)), receive from $(((rank + n - 1) % n))"
        done
    done >expected
    for ((rank = 0; rank < n; rank++)); do
        timeline $n.json $rank | awk -v rank=$rank '
            $1 == "begin" && /ncclSend/ { to[++sends] = $4 }
            $1 == "begin" && /ncclRecv/ { from[++receives] = $4 }
            $1 == "begin" && /nccl[^SR]/ { print "rank " rank ": " $2 }
            END { for (i = 1; i <= sends || i <= receives; i++)
                print "rank " rank ": send to " (i in to ? to[i] : "?") ", receive from " (i in from ? from[i] : "?") }'
    done >found
    why="In each turn a rank sends to the next rank and receives from the one before, and uses no other call."
    beside "$n ranks: $((n - 1)) turn$([ $n = 2 ] || echo s) around the ring" same "" \
        "expected                        " expected "your ring" found
    for ((rank = 0; rank < n; rank++)); do
        both=$(timeline $n.json $rank |
            awk '/nccl/ { open += $1 == "begin" ? 1 : -1; n += open == 2 } END { print n + 0 }')
        why="A rank that first sends and then receives, or the reverse, needs twice the time, and the others wait for
it. In a group, both begin together."
        equal "$n ranks: in each turn, a send and a receive overlap (rank $rank)" "$((n - 1)) times" "$both times"
    done
    for ((rank = 0; rank < n; rank++)); do echo "rank $rank sends $((4 * (n - 1))) numbers"; done >expected
    sed -n 's/^spy: //p' $n.out | sort >found
    why="In each turn a rank passes on four numbers: those that it has just received. More is wasted time."
    beside "$n ranks: each sends four numbers in a turn" same line "expected              " expected "your ring" found
done
