#!/usr/bin/env bash
# mpirun, torchrun, launch and a start by hand give the same weights, on one host and on two. Ranks that a cut cable
# separates end with a message that names the cause.
#
# ctest: TIMEOUT 300 LABELS deadlines
# shellcheck disable=SC2317,SC2094,SC2016  # functions are called by expect and check
. "$SRC/tests/test.sh"
type -P mpirun >/dev/null || { echo "skipped: there is no mpirun"; exit 77; }
train=$BUILD/04_ddp_launcher/train
launch=$BUILD/04_ddp_launcher/launch
hosts=$SRC/tests/hosts.sh
twenty=(--arch lenet --data synthetic --train-samples 1600 --test-samples 8 -b 8 --epochs 9 --max-steps 20 --threads 1
    --timeout 20)
export OMPI_MCA_btl_tcp_if_exclude=lo,docker0
next_port() { port=$((port + 20)); }

# separately N PROGRAM OPTION...: starts N ranks by hand, with only the variables that they need.
separately()
{
    local n=$1 rank pids=() status=0
    shift
    for ((rank = n - 1; rank >= 0; rank--)); do
        by_hand $rank "$n" timeout -k 5 60 "$@" >"by_hand.$rank" 2>&1 &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do
        wait "$rank" || status=$?
    done
    cat by_hand.*
    next_port
    return "$status"
}

# Looks for no leaks, because Open MPI itself has some.
by_mpirun() { ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 timeout -k 5 100 mpirun -x ASAN_OPTIONS "$@"; }
limit() { timeout -k 5 100 "$@"; }
each_says() # each_says N SOURCE: each of N ranks has an [init] line, which names SOURCE
{
    local rank
    for ((rank = 0; rank < $1; rank++)); do
        grep -q "^\[init\] == local rank: [0-9]*, global rank: $rank of $1: $2 ==" "$TMP/output" || return 1
    done
}

torchrun=$(type -P torchrun)
[ -n "${DDP_PYTHON:-}" ] && [ -x "${DDP_PYTHON%/*}/torchrun" ] && torchrun=${DDP_PYTHON%/*}/torchrun
[ -n "$torchrun" ] || echo "not tried, because it is not installed: torchrun (DDP_PYTHON=/where/is/bin/python)"

one_host()
{
    local n wanted
    for n in 2 4; do
        expect 0 "weight hash: " limit "$BUILD/03_ddp_fork/train" -n $n "${twenty[@]}"
        hash_of >wanted.$n
    done
    wanted=$(cat wanted.4)
    expect 0 "weight hash: $wanted" by_mpirun -np 4 "$train" "${twenty[@]}"
    check "mpirun: four ranks" each_says 4 "Open MPI"
    expect 0 "weight hash: $wanted" separately 4 "$train" "${twenty[@]}"
    check "by hand: four ranks" each_says 4 environment
    if [ -n "$torchrun" ]; then
        expect 0 "weight hash: $wanted" limit "$torchrun" --no-python --nproc-per-node 4 --master-port $port \
            "$train" "${twenty[@]}"
        check "torchrun: four ranks" each_says 4 environment
        next_port
    fi

    expect 0 "weight hash: $wanted" limit "$launch" -n 4 -- "$train" "${twenty[@]}"

    # If a rank dies, mpirun ends the others, although the ranks no longer use MPI.
    by_mpirun -np 3 "$train" "${twenty[@]}" --max-steps 1000000 --epochs 1000000 >endless 2>&1 &
    started endless && kill -KILL "$(pgrep -f -- "^$train .*--epochs 1000000" | sed -n 2p)"
    wait $!
    check "mpirun ends with the killed rank's status" test $? = 137
    by_mpirun -np 3 "$train" "${twenty[@]}" --max-steps 1000000 --epochs 1000000 >orphaned 2>&1 &
    started orphaned
    check "mpirun is killed" pkill -KILL -f -- "^(mpirun|prterun) .*$train .*--epochs 1000000"
    wait $!
    check "no rank outlives its mpirun" until_so 10 not pgrep -f -- "^$train .*--epochs 1000000"
}

started() { until_so 60 grep "== step:" "$1"; }      # started FILE: waits until the program has written a step to FILE

# For two hosts, this script runs again on a host that is connected to both.
# both_hosts COMMAND...: runs it on node1 and node2 at once, with NODE replaced by 0 and 1.
both_hosts()
{
    local status
    "$hosts" on node2 timeout -k 5 60 "${@//NODE/1}" >node2 2>&1 &
    "$hosts" on node1 timeout -k 5 60 "${@//NODE/0}" >node1 2>&1
    status=$?
    wait $! || status=$?
    cat node1 node2
    next_port
    return "$status"
}

two_hosts()
{
    local wanted nodes
    wanted=$(cat wanted.4)
    nodes=(--nnodes 2 --node-rank NODE --nproc-per-node 2 --master-addr node1)
    expect 0 "weight hash: $wanted" both_hosts "$launch" "${nodes[@]}" --master-port $port -- "$train" "${twenty[@]}"
    check "four ranks" each_says 4 environment
    check "local ranks" grep -q "local rank: 1, global rank: 3 of 4" "$TMP/output"
    unset OMPI_MCA_btl_tcp_if_exclude       # --iface also selects the network of Open MPI
    expect 0 "weight hash: $wanted" by_mpirun --mca plm_rsh_agent "$hosts agent" -H node1:2,node2:2 -np 4 "$train" \
        "${twenty[@]}" --iface eth1
    check "mpirun: four ranks" each_says 4 "Open MPI"
    [ -n "$torchrun" ] && expect 0 "weight hash: $wanted" both_hosts "$torchrun" --no-python --nnodes 2 \
        --node-rank NODE \
        --nproc-per-node 2 --master-addr node1 --master-port $port "$train" "${twenty[@]}"

    rm node1 node2
    both_hosts env RANK=NODE WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=$port "$train" "${twenty[@]}" --epochs 1000000 \
        --max-steps 1000000 --timeout 2 >cable 2>&1 &
    started node1
    "$hosts" cut node2
    wait $!
    check "status after a cut (it is $?)" test $? = 4
    check "the unreachable rank is named" grep -q "rank 1 of 2 (node2" cable
    "$hosts" join node2

}

if [ "${1:-}" = hosts ]; then
    two_hosts
    test_done
fi
one_host
"$hosts" run 2 bash "$SRC/tests/test_launchers.sh" hosts >hosts.out 2>&1
status=$?
cat hosts.out
if [ $status = 77 ]; then
    echo "not tried: two hosts"
else
    check "two hosts" test $status = 0
fi
test_done
