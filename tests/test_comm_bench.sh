#!/usr/bin/env bash
# comm_bench starts its own ranks, or is one of a launcher's ranks (-n 0), or the only rank. Also tools/network.sh,
# which compares comm_bench's numbers with those of known networks.
. "$SRC/tests/test.sh"
bench=$BUILD/comm_bench

expect 0 "# all_reduce, 3 ranks" "$bench" -n 3 -b 64 -e 256 -r 3
check "three sizes" test "$(grep -c ' sum ' "$TMP/output")" = 3
expect 0 "# all_reduce, 2 ranks" "$BUILD/06_slurm/launch" --nproc-per-node 2 -- "$bench" -n 0 -b 8 -e 64 -r 3
check "only rank 0 prints" test "$(grep -c '^# all_reduce' "$TMP/output")" = 1
expect 0 "# all_reduce, 1 ranks" "$bench" -n 0 -b 8 -e 8 -r 3
expect 2 "begin" "$bench" -b 64 -e 8

expect 0 "These ranks share one machine" "$SRC/tools/network.sh" machine "$bench" -n 2
check "a verdict" grep -qE "^[0-9.]+ GB/s over TCP \(Gloo\), and [0-9]+ us for a small message: about as fast as " \
    "$TMP/output"
cat >"$TMP/bench" <<'END'
echo "# all_reduce, 2 ranks, gloo on CPU, avx512_bf16, 1 thread; median of up to 30 calls"
echo "        1024         256   f32   sum        60.0     0.00     0.00"
echo "    67108864    16777216   f32   sum     22369.6     3.00     3.00"
END
expect 0 "3.00 GB/s over TCP (Gloo), and 60 us for a small message: about as fast as 25 Gbit/s (3 GB/s)." \
    "$SRC/tools/network.sh" nodes bash "$TMP/bench"
expect 0 "exchanges 16.9 MB of gradients: 5.6 ms" "$SRC/tools/network.sh" nodes bash "$TMP/bench"

test_done
