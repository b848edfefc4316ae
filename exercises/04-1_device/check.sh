# shellcheck shell=bash disable=SC2034,SC2154
# The program sees one machine, then two, with two devices and eight cores each (check.c). Which device does each rank
# open, with how many cores, and would it warn of too few?
# fails with: two machines with two ranks each: each rank has its own device and half of the cores
# fails with: rank 2 on node2: device 2, 2 cores
build --with check.c --wrap machine_here --wrap device_count --wrap device_share --wrap device_open

# ranks WHAT NODE...: starts one rank for each NODE, and claims that each opens the right device. LOCAL_RANK is not set:
# the ranks find out themselves which of them share a node.
cat >on_node.sh <<'END'
nodes=($NODES)
export NODE=${nodes[RANK]}
unset LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK
exec "$@"
END
ranks()
{
    local what=$1 rank=0 node mine
    shift
    declare -A before=()
    rm -f expected found device.*
    run ranks env NODES="$*" "$launch" --nproc-per-node $# -- bash on_node.sh "$train" "${tiny[@]}" \
        --max-steps 1 --threads 0
    for node; do
        mine="device ${before[$node]:-0}, 4 cores"
        [ -n "${before[$node]:-}" ] || mine+=", warns"
        echo "rank $rank on $node: $mine" >>expected
        echo "rank $rank on $node: $(cat device.$rank)" >>found
        before[$node]=1 rank=$((rank + 1))
    done
    beside "$what: each rank has its own device and half of the cores" same "" \
        "expected                                  " expected "what the ranks opened" found
}

ranks "one machine with two ranks" node1 node1
why="A rank has two numbers: the global rank counts all ranks, the local rank only those on its machine. The first rank
of each machine prints the warnings, so that each machine warns once."
ranks "two machines with two ranks each" node1 node1 node2 node2
why="Ranks need not be numbered machine by machine: mpirun --map-by node assigns them to the machines in turn. Then
the global rank modulo the number of devices gives the same device twice."
ranks "the same, numbered in turn" node1 node2 node1 node2
