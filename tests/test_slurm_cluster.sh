#!/usr/bin/env bash
# The Slurm cluster that this project makes for itself, tools/slurm.sh: does it do what a real one does, and is all of
# it gone afterwards?
#
# ctest: TIMEOUT 240
# shellcheck disable=SC2317,SC2016  # functions are called by expect and check; words for shells in the cluster
. "$SRC/tests/test.sh"
. "$SRC/tests/slurm/cluster.sh"
cd "$TMP" || exit 1
export OMPI_MCA_rmaps_base_oversubscribe=1

# --- wrong words: exit 2, and nothing done --------------------------------------------------------------------------

expect 0 "slurm up N" "$slurm" help
expect 0 "slurm up N" "$SRC/ddp" slurm --help
expect 2 "there is no 'upp'" "$slurm" upp
expect 2 "how many nodes?" "$slurm" up
expect 2 "the number of nodes is from 1 to 32, not '0'" "$slurm" up 0
expect 2 "not '33'" "$slurm" up 33
expect 2 "not 'two'" "$SRC/ddp" slurm up two
expect 2 "one number of nodes" "$slurm" up 2 3
expect 2 "unknown option --cpu" "$slurm" hold 2 --cpu
expect 2 "--cpus is from 1 to 256, not '0'" "$slurm" up 2 --cpus 0
expect 2 "--gpus is from 0 to 16, not ''" "$slurm" up 2 --gpus
expect 2 "--dir needs a directory" "$slurm" up --dir
expect 2 "run: which command?" "$slurm" run
expect 2 "takes no arguments" "$slurm" down all
for words in "run true" "node 1 true" "cut 1" "mend 1" status down; do
    # shellcheck disable=SC2086
    expect 1 "no cluster runs in $TMP/slurm" "$slurm" $words
done
check "nothing was done" test ! -e "$TMP/slurm"


# --- what this machine shows of a cluster ---------------------------------------------------------------------------

# Processes that inherited this directory from who started the cluster, jobs included.
processes_of() { env -u DDP_SLURM_DIR grep -lzxF "DDP_SLURM_DIR=$1" /proc/[0-9]*/environ 2>/dev/null; }

# Only what no other test beside this one could have made.
traces()
{
    ip -o link | grep -oE ' node[0-9]+[:@]'
    grep -E ' /etc/(slurm|hosts) ' /proc/mounts
    cat /etc/hosts
    ls -lR /etc/slurm
}
before=$(traces 2>/dev/null)

# gone DIR: nothing is left of the cluster in DIR, now or in a moment.
gone() { until_so 2 is_gone "$1"; }
is_gone() { [ ! -e "$1" ] && [ -z "$(processes_of "$1")" ] && [ "$(traces 2>/dev/null)" = "$before" ]; }

# timed WHAT COMMAND...: says how long it takes, to a tenth of a second.
timed()
{
    local what=$1 from=${EPOCHREALTIME/./} took status
    shift
    "$@"
    status=$?
    took=$(((${EPOCHREALTIME/./} - from) / 100000))
    echo "$what: $((took / 10)).$((took % 10)) s"
    return $status
}

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

# Open MPI 4.1.4 crashes in MPI_Init, in btl_tcp, once in a hundred times on a machine that has much to do.
mpi_twice() { "$@" || { echo "once more:"; "$@"; }; }
if type -P mpicc >/dev/null; then
    cat >mpi.c <<'END'
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int rank, sum;
    char host[MPI_MAX_PROCESSOR_NAME];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Get_processor_name(host, &sum);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("%d on %s: %d\n", rank, host, sum);
    return MPI_Finalize();
}
END
    check "an MPI program" mpicc -o mpi mpi.c
    expect 0 "3 on node2: 6" mpi_twice "$slurm" run timeout 60 srun --mpi=pmix -N 2 --ntasks-per-node=2 ./mpi
    expect 0 "3 on node2: 6" mpi_twice "$slurm" run timeout 60 salloc -N 2 --ntasks-per-node=2 mpirun ./mpi
else
    echo "not tried, since it is not here: MPI (mpicc)"
fi

# --- death -----------------------------------------------------------------------------------------------------------

# dies WHAT PID: it is killed once the cluster runs a job, one that does not know from whom it has its environment.
dies()
{
    check "$1: up" until_so 20 on_head true
    on_head sbatch --export=NONE -N 2 --output=/dev/null --wrap 'srun /bin/sleep 777' >/dev/null
    check "$1: a job" until_so 10 sleeps 777
    kill -KILL "$2"
    check "$1: nothing is left" gone "$DDP_SLURM_DIR"
    check "$1: nor of the job" until_so 2 not sleeps 777
}
sleeps() { pgrep -fx "/bin/sleep $1"; }

all_deaths() # all_deaths [OPTION]
{
    local after
    bash -c "'$slurm' hold 2 $* & wait" >/dev/null 2>&1 &
    dies "hold's parent" $!
    "$slurm" hold 2 "$@" >/dev/null 2>&1 &
    dies "hold" $!
    "$slurm" up 2 "$@" >/dev/null 2>&1
    dies "keeper" "$(cat "$DDP_SLURM_DIR/keeper")"
    for after in 0.1 0.2 0.3; do
        timeout --foreground -s KILL $after "$slurm" up 2 "$@" >/dev/null 2>&1
        [ -e "$DDP_SLURM_DIR/cluster" ] && "$slurm" down            # it was quicker
        check "killed after $after s, while it starts" until_so 10 is_gone "$DDP_SLURM_DIR"
    done
} 2>/dev/null
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

# --- without namespaces ----------------------------------------------------------------------------------------------

mkdir bin
printf '#!/bin/sh\necho "unshare failed: Operation not permitted" >&2\nexit 1\n' >bin/unshare
chmod +x bin/unshare
expect 0 "no namespaces here (unshare failed: Operation not permitted): all nodes are on this host's loopback" \
    env PATH="$TMP/bin:$PATH" "$slurm" up 2 --timeout 3 --gpus 2
expect 0 "all on this host" "$slurm" status
expect 0 "1: $(hostname)" on_head srun -N 2 -l hostname
expect 0 "127.0.0.12" on_head srun -N 1 --nodelist 127.0.0.12 printenv SLURMD_NODENAME
expect 0 "0" on_head srun -n 1 --gpus-per-task=1 printenv CUDA_VISIBLE_DEVICES
[ ! -x mpi ] || expect 0 "3 on $(hostname): 6" \
    mpi_twice "$slurm" run timeout 60 srun --mpi=pmix -N 2 --ntasks-per-node=2 ./mpi
sed -i 's/nodes=3/nodes=2/; s/sleep 773/sleep 778/; s/cut.out/stopped.out/' cut.sh
two_sleep() { [ "$(pgrep -fxc '(/usr/bin/|/bin/|)sleep 778')" = 2 ]; }
stopped=$(on_head sbatch --parsable cut.sh)
check "the job runs" until_so 20 test -s stopped.out
check "on both nodes" until_so 20 two_sleep
check "cut" "$slurm" cut 2
timed "standing still, until the job is requeued" until_so 40 job_has "$stopped" Restarts=1
check "requeued" job_has "$stopped" Restarts=1
check "mend" "$slurm" mend 2
check "the job ends" until_so 40 job_is "$stopped" COMPLETED
check "on both" test "$(grep -c "^[01]: $(hostname)\$" stopped.out)" = 2
expect 0 "" "$slurm" down
check "nothing is left ($SECONDS s)" gone "$TMP/slurm"
all_deaths --loopback

export DDP_SLURM_DIR="$TMP/a directory with blanks in its name"
check "a name that Slurm would not take" cluster_up 1 --loopback
blanks=$(on_head printenv DDP_SLURM)
check "they are in /tmp" test -e "$blanks/slurm.conf"
expect 0 "$(hostname)" on_head srun hostname
check "down" cluster_down
check "nothing is left" gone "$DDP_SLURM_DIR"
check "nor of its files" not ls -d "$blanks"
export DDP_SLURM_DIR=$TMP/slurm

# --- somebody else than root ------------------------------------------------------------------------------------------

if [ $EUID = 0 ] && id nobody >/dev/null 2>&1; then
    mkdir -p his/tools
    cp "$SRC"/tools/{slurm,shell}.sh his/tools
    chown -R nobody his
    chmod 711 "$TMP"
    as_nobody() { (cd his && DDP_SLURM_DIR=$TMP/his/slurm setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"); }
    expect 0 "up after" as_nobody tools/slurm.sh up 2
    grep -F 'no namespaces' "$TMP/output"
    expect 0 "1: nobody" as_nobody tools/slurm.sh run srun -N 2 -l id -un
    [ ! -x mpi ] || cp mpi his
    [ ! -x mpi ] || expect 0 "3 on " \
        mpi_twice as_nobody tools/slurm.sh run timeout 60 srun --mpi=pmix -N 2 --ntasks-per-node=2 ./mpi
    expect 0 "" as_nobody tools/slurm.sh cut 2
    expect 0 "" as_nobody tools/slurm.sh mend 2
    expect 0 "" as_nobody tools/slurm.sh down
    check "nothing is left" gone "$TMP/his/slurm"
else
    echo "not tried, since this is not root: to be somebody else"
fi

echo "all of it: $SECONDS s, on $(nproc) cores"
test_done
