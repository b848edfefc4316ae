#!/usr/bin/env bash
# Whoever starts the ranks, 07's evaluation says the same, and writes the same files: rank 0's.
# (test_eval_slurm.sh: under Slurm.)
#
# ctest: SANITIZERS asan
# shellcheck disable=SC2317  # check calls functions
. "$SRC/tests/test.sh"
. "$SRC/tests/eval.sh"
cd "$TMP" || exit 1
export OMPI_MCA_btl_tcp_if_exclude=lo,docker0
network

port=$((10000 + $$ % 20000))        # below those that the system gives away
torchrun=$(type -P torchrun)
[ -n "${DDP_PYTHON:-}" ] && [ -x "${DDP_PYTHON%/*}/torchrun" ] && torchrun=${DDP_PYTHON%/*}/torchrun
[ -n "$torchrun" ] || echo "not tried, since it is not here: torchrun (DDP_PYTHON=/where/is/bin/python)"

# Each rank by itself, with no more than it needs to know.
by_hand()
{
    local rank pids=() status=0 n=$1
    shift
    for ((rank = n - 1; rank >= 0; rank--)); do
        RANK=$rank WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout -k 5 60 "$@" >"by_hand.$rank" 2>&1 &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do
        wait "$rank" || status=$?
    done
    cat by_hand.*
    return "$status"
}
by_mpirun() { ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 timeout -k 5 100 mpirun -x ASAN_OPTIONS -np "$@"; }
by_torchrun() { timeout -k 5 100 "$torchrun" --no-python --master-port $port --nproc-per-node "$@"; }

check "one rank" evaluate one 1 501 16
for n in 2 3; do
    for launcher in by_hand by_mpirun ${torchrun:+by_torchrun}; do
        port=$((port + 20))
        # shellcheck disable=SC2317  # evaluate calls it
        ranks() { $launcher "$@"; }
        check "$launcher, $n ranks" shown evaluate many $n 501 16
        check "$launcher, $n ranks: as one" shown same many one
        check "$launcher: these are $n ranks" grep -q "global rank: $((n - 1)) of $n: " many.out
    done
done
test_done
