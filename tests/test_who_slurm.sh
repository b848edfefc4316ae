#!/usr/bin/env bash
# How a process finds its rank and the other ranks from Slurm's variables, simulated here.
#
# ctest: LABELS deadlines
# shellcheck disable=SC2317,SC2016,SC2094  # functions are called by expect and check
. "$SRC/tests/test.sh"
train=$BUILD/06_slurm/train
tiny=(--arch lenet --data synthetic --train-samples 16 --test-samples 8 -b 4 --epochs 1 --threads 1 --max-steps 1)
for name in RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR OMPI_COMM_WORLD_RANK PMIX_RANK DDP_TOKEN "${!SLURM_@}"; do
    unset "$name"
done

# A job number that no other test uses: ranks of two tests with one job number could connect to each other.
job=$((1000 + $$))
in_job=(SLURM_CLUSTER_NAME=ddp "SLURM_JOB_ID=$job" SLURM_NTASKS=8 SLURM_JOB_NUM_NODES=4)

# task RANK LOCAL "NAME=VALUE ..." OPTION...: runs one of two tasks, each on its own simulated node.
task()
{
    local rank=$1 local=$2 more=$3
    shift 3
    # shellcheck disable=SC2086
    env "${in_job[@]}" SLURM_STEP_ID=0 SLURM_PROCID="$rank" SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID="$local" \
        SLURM_GTIDS="$rank" SLURM_NODEID="$rank" SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST="node[1-2].invalid" \
        SLURMD_NODENAME="node$((rank + 1)).invalid" $more timeout -k 5 60 "$train" "${tiny[@]}" --timeout 20 "$@"
}
alone() { env "${in_job[@]}" "$@"; }

# both "NAME=VALUE ... (of rank 0)" "... (of rank 1)" OPTION...: runs both tasks, and prints their statuses and outputs.
both()
{
    local first=$1 second=$2 status
    shift 2
    task 0 0 "$first" "$@" >first 2>&1 &
    task 1 0 "$second" "$@" >second 2>&1
    status=$?
    wait $!
    echo "statuses $? $status"
    cat first second
}
loopback=(--master-addr 127.0.0.1)

expect 0 "statuses 0 0" both "" "" "${loopback[@]}"

all_of=(SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_STEP_NODELIST=x SLURM_GTIDS=3)
expect 0 "0 of 1: environment ==" alone "${all_of[@]}" RANK=0 WORLD_SIZE=1 "$train" "${tiny[@]}"

# In a job, but not one of its tasks: 4294967290 is the shell that salloc may start, 4294967291 the batch script.
for step in SLURM_STEP_ID= SLURM_STEP_ID=4294967290 SLURM_STEP_ID=4294967291; do
    expect 2 "    srun --kill-on-bad-exit=1 $train ..." alone SLURM_PROCID=0 SLURM_LOCALID=0 \
        $step SLURM_STEP_NUM_TASKS=1 "$train" "${tiny[@]}"
done
expect 0 "0 of 1: alone" env SLURM_PROCID=0 SLURM_NTASKS=8 "$train" "${tiny[@]}"

while read -r list host; do
    expect 1 "'$host'" task 0 0 "SLURM_STEP_NODELIST=$list SLURMD_NODENAME=$host" --timeout 0.3
done <<'END'
a[007-019,30].invalid a007.invalid
a[1-2]b[03-04]c.invalid a1b03c.invalid
a[12.invalid a12.invalid
END

note=(--rendezvous "file:$TMP/note" "${loopback[@]}")
printf 'ddp.c rendezvous\nddp 99.0, restart 0\n0123\n127.0.0.1 9\n' >note
expect 1 "$TMP/note belongs to the run 'ddp 99.0, restart 0', but this is the run 'ddp $job.0, restart 0'" \
    task 1 0 "" "${note[@]}" --timeout 0.5
expect 0 "statuses 0 0" both "" "" "${note[@]}"
check "it replaced the other run's file and removed its own" test ! -e note
echo "my notes" >note
expect 1 "$TMP/note exists, but is not a rendezvous file" task 0 0 "" "${note[@]}" --timeout 2
check "it left this file alone" grep -qx "my notes" note
rm note
expect 2 "--rendezvous: neither srun nor launch started this process" "$train" "${tiny[@]}" "${note[@]}"

test_done
