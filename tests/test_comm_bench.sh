#!/usr/bin/env bash
# comm_bench starts its own ranks, or is one rank that a launcher started.
. "$SRC/tests/test.sh"
bench=$BUILD/comm_bench

expect 0 "# all_reduce, 3 ranks" "$bench" -n 3 -b 64 -e 256 -r 3
check "three sizes" test "$(grep -c ' sum ' "$TMP/output")" = 3
expect 0 "# broadcast, 2 ranks" "$BUILD/06_slurm/launch" --nproc-per-node 2 -- \
    "$bench" -n 0 --op broadcast -b 8 -e 64 -r 3
check "only rank 0 prints" test "$(grep -c '^# broadcast' "$TMP/output")" = 1
expect 0 "# all_reduce, 1 ranks" "$bench" -n 0 -b 8 -e 8 -r 3
expect 2 "ranks" "$bench" -n 17
expect 2 "begin" "$bench" -b 64 -e 8

test_done
