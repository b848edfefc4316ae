#!/usr/bin/env bash
# The Slurm cluster that this project makes for itself, tools/slurm.sh: does it do what a real one does, and is all of
# it gone afterwards? Here each node has processes, hostname and network of its own.
#
# ctest: TIMEOUT 240 LABELS deadlines
# shellcheck disable=SC2317,SC2016  # functions are called by expect and check; words for shells in the cluster
. "$SRC/tests/test.sh"
. "$SRC/tests/slurm/cluster.sh"
. "$SRC/tests/slurm/self.sh"
cd "$TMP" || exit 1
export OMPI_MCA_rmaps_base_oversubscribe=1

# --- two clusters at once: the first, with jobs that take their time ------------------------------------------------

cat >limited.sh <<'END'
#!/bin/bash
#SBATCH --nodes=2 --time=1 --signal=B:USR1@50 --requeue --open-mode=append --output=limited.out
echo "start ${SLURM_RESTART_COUNT:-0}"
[ -z "$SLURM_RESTART_COUNT" ] || exit 0
trap 'echo "USR1 after $SECONDS s"; scontrol requeue $SLURM_JOB_ID' USR1
srun sleep 771 &
wait
wait
END
cat >killed.sh <<'END'
#!/bin/bash
#SBATCH --time=1 --output=killed.out
trap 'echo TERM' TERM
sleep 772 &
wait
wait
END

timed "up, 2 nodes" cluster_up 2 --gpus 2 || exit 1
expect 1 "a cluster runs in $TMP/slurm already" "$slurm" up 2
[[ $("$slurm" status 2>&1) = *"network of its own"* ]] || {
    echo "skipped: there are no namespaces here (what works without them: test_slurm_loopback)"
    exit 77
}
limited=$(on_head sbatch --parsable limited.sh)
killed=$(on_head sbatch --parsable killed.sh)
check "the limited job runs" until_so 10 job_is "$limited" RUNNING
check "the other runs" until_so 10 job_is "$killed" RUNNING
# Limits are minutes, and looked at every 30 s; an end may be set to the second.
check "a nearer end" on_head scontrol update "JobId=$killed" EndTime=now+3

# --- the second: node cut off, and mended ---------------------------------------------------------------------------

first=$DDP_SLURM_DIR
export DDP_SLURM_DIR="$TMP/a second one"
timed "up, 3 nodes" cluster_up 3 --timeout 3
check "the second cluster" on_head true
expect 0 "" on_head srun -N 3 -l hostname
check "each node has its name" test "$(sort "$TMP/output" | paste -sd' ')" = "0: node1 1: node2 2: node3"
expect 0 "" on_head srun -N 3 -l getent hosts node1
check "and all know it" test "$(grep -c '10.77.0.11 *node1' "$TMP/output")" = 3
check "the first knows nothing of this" env DDP_SLURM_DIR="$first" "$slurm" node 2 true
expect 2 "there is no node '3'" env DDP_SLURM_DIR="$first" "$slurm" node 3 true
check "nor this of the first's jobs" test -z "$(on_head squeue -h)"

cat >cut.sh <<'END'
#!/bin/bash
#SBATCH --nodes=3 --ntasks-per-node=1 --requeue --open-mode=append --output=cut.out
echo "start ${SLURM_RESTART_COUNT:-0}"
[ "$SLURM_RESTART_COUNT" ] || srun sleep 773
srun --label hostname
END
cut=$(on_head sbatch --parsable cut.sh)
check "the job runs on node 3" until_so 20 node_runs 3 "sleep 773"
check "cut" "$slurm" cut 3
check "no way" not on_node 3 timeout 3 bash -c 'echo >/dev/tcp/node1/6818'
timed "cut off, until the job is requeued" until_so 40 job_has "$cut" Restarts=1
check "requeued" job_has "$cut" Restarts=1
check "the node is down" until_so 10 node_is 3 'down*'
check "the other nodes are cleared" until_so 10 not node_runs 1 "sleep 773"
check "mend" "$slurm" mend node3
timed "mended, until the node is back" until_so 40 node_is 3 idle
check "the job ends" until_so 40 job_is "$cut" COMPLETED
check "after a second start" grep -qx "start 1" cut.out
check "on all nodes" test "$(grep -c '^[0-2]: node[1-3]$' cut.out)" = 3
check "nothing is left of the first start" not node_runs 3 "sleep 773"
check "down" cluster_down
check "the second is gone" gone "$DDP_SLURM_DIR"
export DDP_SLURM_DIR=$first

# --- the first again: steps, cancelled jobs, MPI ---------------------------------------------------------------------

expect 0 "0-1-1" on_head srun -N 2 --ntasks-per-node=1 bash -c 'echo "$SLURM_LOCALID-$SLURM_NODEID-$SLURM_PROCID"'
expect 0 "" on_head srun -N 2 -n 4 --gpus-per-task=1 printenv CUDA_VISIBLE_DEVICES
check "a GPU for each of four tasks" test "$(grep -cE '^[01]$' "$TMP/output")" = 4
expect 3 "" on_head bash -c 'exit 3'
expect 3 "" on_node 1 bash -c 'exit 3'
expect 0 "head" on_head "$slurm" run hostname
expect 1 "inside of the cluster already" on_head "$slurm" status
expect 0 "node2" on_node 2 hostname
expect 0 "limited.sh" "$slurm" status
check "a node sees its own processes" test "$(on_node 1 ps axo args= | grep -c '^slurmd ')" = 1

( exec "$slurm" run sleep 774 ) &
check "a command on the head" until_so 5 on_head pgrep -fx "sleep 774"
kill $!
check "ends when it is ended" until_so 5 not on_head pgrep -fx "sleep 774"

cancelled=$(on_head sbatch --parsable -N 2 --output=/dev/null \
    --wrap 'srun bash -c "trap : TERM; sleep 775 & wait; sleep 776"')
check "the job runs on both" until_so 10 node_runs 2 "sleep 775"
check "scancel" on_head scancel "$cancelled"
for k in 1 2; do
    check "nothing is left on node $k" until_so 15 not node_runs $k "sleep 77[56]"
    check "nor its keeper" until_so 15 not node_runs $k "slurmstepd: [$cancelled."
done

make_mpi
if [ -x mpi ]; then
    expect 0 "3 on node2: 6" mpi_twice "$slurm" run timeout 60 srun --mpi=pmix -N 2 --ntasks-per-node=2 ./mpi
    expect 0 "3 on node2: 6" mpi_twice "$slurm" run timeout 60 salloc -N 2 --ntasks-per-node=2 mpirun ./mpi
fi

# --- death -----------------------------------------------------------------------------------------------------------

export DDP_SLURM_DIR=$TMP/dying
all_deaths
export DDP_SLURM_DIR=$first

# --- and what became of the first two jobs ----------------------------------------------------------------------------

check "the job that trapped TERM was killed" until_so 45 job_is "$killed" TIMEOUT
check "it had its time to end" grep -qx TERM killed.out
check "the limited job was signalled" until_so 45 grep -q "USR1 after" limited.out
cat limited.out
check "and requeued, and ends" until_so 40 job_is "$limited" COMPLETED
check "it knew" grep -qx "start 1" limited.out
check "its tasks are gone" not node_runs 1 "sleep 771"
expect 0 "" "$slurm" down
check "nothing is left ($SECONDS s)" gone "$TMP/slurm"

echo "all of it: $SECONDS s, on $(nproc) cores"
test_done
