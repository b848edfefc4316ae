# shellcheck shell=bash disable=SC2034,SC2154
# Starts processes with the variables that srun sets, on one node and on two, with ranks in blocks, cyclic and as in a
# list of hosts. Rank 0 must print the right local rank of each process.
# fails with: on two nodes, in blocks: each rank has the local rank that Slurm gives it
build

# srun NAME RANKS...: starts all ranks, and waits for them. Each argument RANKS, such as "0,1", lists the ranks of one
# node. Rank R's output is in NAME.R.out, and its right local rank in NAME.R.local.
srun()
{
    local name=$1 node ranks rank local_rank tasks=0 pids=()
    shift
    for ranks; do tasks=$((tasks + $(tr , '\n' <<<"$ranks" | wc -l))); done
    for ((node = 0; node < $#; node++)); do
        ranks=${*:node + 1:1}
        local_rank=0
        for rank in ${ranks//,/ }; do
            timeout --kill-after=2 "$limit" env SLURM_CLUSTER_NAME=made-up SLURM_JOB_ID=$$ SLURM_STEP_ID=0 \
                SLURM_NTASKS="$tasks" SLURM_STEP_NUM_TASKS="$tasks" SLURM_JOB_NUM_NODES=$# \
                SLURM_STEP_NUM_NODES=$# SLURM_STEP_NODELIST="node[1-$#]" SLURMD_NODENAME=node$((node + 1)) \
                SLURM_NODEID="$node" SLURM_GTIDS="$ranks" SLURM_PROCID="$rank" SLURM_LOCALID=$local_rank \
                "$train" "${tiny[@]}" --max-steps 1 "${meet_limit[@]}" --master-addr 127.0.0.1 \
                --rendezvous "file:$PWD/$name.note" >"$name.$rank.out" 2>&1 &
            pids+=($!)
            echo "$local_rank" >"$name.$rank.local"
            local_rank=$((local_rank + 1))
        done
    done
    wait "${pids[@]}"
}
# introduced NAME RANK: prints the local rank in RANK's [init] line, which is in rank 0's output. If there is no such
# line: the first error or warning that RANK printed, or "no output".
introduced()
{
    local name=$1 rank=$2 found
    found=$(local_rank_of "$name.0" "$rank")
    [ -n "$found" ] || found=$(first_error "$name.$rank")
    echo "${found:-no output}"
}

# claim WHERE NAME RANKS...
claim()
{
    local where=$1 name=$2 rank
    shift
    srun "$@"
    for ((rank = 0; rank < 4; rank++)); do
        [ -e "$name.$rank.out" ] || continue
        echo "rank $rank: $(cat "$name.$rank.local")" >>"$name.expected"
        echo "rank $rank: $(introduced "$name" "$rank")" >>"$name.found"
    done
    beside "$where: each rank has the local rank that Slurm gives it" same "" \
        expected "$name.expected" found "$name.found"
}
claim "on one node" one 0,1
why="Which of Slurm's variables numbers the tasks on one node?"
claim "on two nodes, in blocks" blocks 0,1 2,3
why="Here ranks 0 and 2 are on the first node. The local rank cannot be computed from the rank alone."
claim "on two nodes, cyclic" turns 0,2 1,3
why="Here the first node has three tasks, ranks 0, 1 and 3: srun took them from a list of hosts. No formula for blocks
and turns fits. Only Slurm knows."
claim "on two nodes, three tasks and one" list 0,1,3 2
