# shellcheck shell=bash
# cluster.sh - a Slurm cluster for a test:
#
#   . "$SRC/tests/test.sh"
#   . "$SRC/tests/slurm/cluster.sh"    # without Slurm's programs the test is skipped here
#   cluster_up 2 --gpus 2              # `./ddp slurm help` names the options; remembered in $TMP/slurm
#   J=$(on_head sbatch --parsable job.sbatch)
#   until_so 30 job_is "$J" COMPLETED
#   cluster_down
#
# The cluster ends when the test does, and be it by kill -9: it has the test for its parent, and the kernel sees to it.

for cluster_program in slurmctld slurmd munged srun; do
    PATH=$PATH:/usr/sbin:/sbin type -P $cluster_program >/dev/null || {
        echo "skipped: there is no $cluster_program (apt install slurmctld slurmd slurm-client munge)"
        exit 77
    }
done
slurm=$SRC/tools/slurm.sh
export DDP_SLURM_DIR=$TMP/slurm

# until_so SECONDS COMMAND...: waits until it succeeds; fails when it has not by then.
until_so()
{
    local deadline=$((SECONDS + $1)) ms=100
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.$ms
        [ $ms -ge 700 ] || ms=$((ms + 100))     # to ask the controller costs more than to wait
    done
}

# cluster_up N [OPTION...]: in $DDP_SLURM_DIR. What is not there after a minute will not come: once more, then. Not in a
# subshell, nor in $(...): the cluster would end with it.
cluster_up()
{
    local log=$DDP_SLURM_DIR.log keeper
    for _ in 1 2; do
        "$slurm" hold "$@" >"$log" 2>&1 </dev/null &
        keeper=$!
        disown                                  # bash need not tell us how it ended
        until_so 60 cluster_settled "$log" $keeper
        ! grep -qx ready "$log" || break
        kill -KILL $keeper 2>/dev/null
    done
    grep -v '^ready$' "$log"
    grep -qx ready "$log"
}
cluster_settled() { grep -qx ready "$1" || ! kill -0 "$2"; }

# All of it has gone when this returns.
cluster_down() { "$slurm" down; }

on_head() { "$slurm" run "$@"; }
on_node() { "$slurm" node "$@"; }

# A job is in this state, by now. (There is no accounting: the controller forgets a job after five minutes.)
job_state() { on_head scontrol show job "$1" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }
job_is() { [ "$(job_state "$1")" = "$2" ]; }
job_has() { on_head scontrol show job "$1" | grep -q -- "$2"; }         # job_has JOB Restarts=1

node_is() { [ "$(on_head sinfo -h -n "node$1" -o %T)" = "$2" ]; }         # node_is K STATE; not on the loopback
all_idle() { ! on_head sinfo -h -o %T | grep -qvx idle; }
# A node that has not done with its last job gets no other: the next one would go elsewhere.
none_completing() { ! on_head sinfo -h -o %T | grep -q completing; }

# Before each case: a cluster with nothing on it. Failures of the infrastructure are not those of the program.
cluster_idle() # cluster_idle N [OPTION...]
{
    until_so 20 all_idle && return
    echo "the cluster is not idle: a new one"
    on_head sinfo -N -o '%N %T %E'
    cluster_down
    cluster_up "$@"
}

# node_runs K WORDS: a process with these words in its command line is there.
node_runs() { on_node "$1" ps axo args= | grep -v '^ps ' | grep -qF -- "$2"; }
