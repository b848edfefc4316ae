#!/usr/bin/env bash
# ctest: PROCESSORS 2
# Linux counts the bytes that collectives send in a private network. The algorithm needs a known number of bytes. Packet
# headers and the rendezvous may add at most 3 %.
# shellcheck disable=SC2317  # check calls functions
if [ "${1:-}" != inside ]; then
    exec "$SRC/tests/wire.sh" bash "$0" inside
fi
. "$SRC/tests/test.sh"
sent() { awk '$1 == "lo:" { print $10 }' /proc/net/dev; }
between() { awk -v a="$1" -v b="$2" -v least="$3" -v most="$4" 'BEGIN { exit !(least * b <= a && a <= most * b) }'; }

# carries OP RANKS TYPE WIDTH FACTOR: runs OP on 2 million values of WIDTH bytes. In each call all ranks together must
# send FACTOR times these bytes.
carries()
{
    local what="$1 of $3 between $2 ranks" given before
    before=$(sent)
    expect 0 "# bytes given to the calls: " "$BUILD/comm_bench" --op "$1" -n "$2" --type "$3" \
        -r 5 -b $((2000000 * $4)) -e $((2000000 * $4))
    wire=$(($(sent) - before))
    given=$(sed -n 's/^# bytes given to the calls: //p' "$TMP/output")
    echo "$what: $given bytes given by each, $wire on the wire"
    check "$what: $5 times that is sent" between "$wire" $((given * $5)) 1 1.03
}

carries all_reduce 2 f32 4 2
full=$wire
carries all_reduce 2 bf16 2 2
check "bf16: half of f32's bytes" between "$wire" "$full" 0.485 0.515
carries all_reduce 3 f16 2 4
carries broadcast 2 f16 2 1
test_done
