# shellcheck shell=bash disable=SC2034,SC2154
# One machine and two, with two devices and eight cores each, as the program sees it (check.c): which device does each
# rank open, with how many cores, and which ranks print warnings?
# fails with: two machines with two ranks each: each rank has its own device and half of the cores
# fails with: rank 2 on node2: device 2, 2 cores
build --with check.c --wrap machine_here --wrap device_count --wrap device_share --wrap device_open

# ranks WHAT NODES...: starts a rank on each of these nodes. As under mpirun, the ranks themselves find out which of them
# share a node.
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
why="A rank has two numbers: its place among all ranks, and its place on its machine. The first rank of each machine
warns, because only it speaks for that machine."
ranks "two machines with two ranks each" node1 node1 node2 node2
why="Ranks need not be numbered machine by machine: mpirun --map-by node deals them out in turn. The remainder of the
global rank then gives the same device twice."
ranks "the same, numbered in turn" node1 node2 node1 node2
