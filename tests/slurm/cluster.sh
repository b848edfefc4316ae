# shellcheck shell=bash
# cluster.sh - a Slurm cluster for a test:
#
#   . "$SRC/tests/test.sh"
#   . "$SRC/tests/slurm/cluster.sh"    # without Slurm's programs the test is skipped here
#   cluster_up 2 --gpus 2              # `./ddp slurm help` names the options; remembered in $TMP/slurm
#   J=$(on_head sbatch --parsable job.sbatch)
#   until_so 30 job_is "$J" COMPLETED
#
# The cluster ends when the test does, even by kill -9: it is a child of the test, and the kernel kills it.

for cluster_program in slurmctld slurmd munged srun; do
    PATH=$PATH:/usr/sbin:/sbin type -P $cluster_program >/dev/null || {
        echo "skipped: there is no $cluster_program (apt install slurmctld slurmd slurm-client munge)"
        exit 77
    }
done
slurm=$SRC/tools/slurm.sh
export DDP_SLURM_DIR=$TMP/slurm

# until_so SECONDS COMMAND...: until the command succeeds. Fails if it has not by then.
until_so()
{
    local deadline=$((SECONDS + $1)) ms=100
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $deadline ] || return 1
        sleep 0.$ms
        [ $ms -ge 700 ] || ms=$((ms + 100))     # each question costs the controller time
    done
}

# cluster_up N [OPTION...]: in $DDP_SLURM_DIR. Tries twice. Not in a subshell: the cluster would end with it.
cluster_up()
{
    local log=$DDP_SLURM_DIR.log keeper
    for _ in 1 2; do
        "$slurm" hold "$@" >"$log" 2>&1 </dev/null &
        keeper=$!
        disown                                  # bash need not report how it ended
        until_so 60 cluster_settled "$log" $keeper
        ! grep -qx ready "$log" || break
        kill -KILL $keeper 2>/dev/null
    done
    grep -v '^ready$' "$log"
    grep -qx ready "$log"
}
cluster_settled() { grep -qx ready "$1" || ! kill -0 "$2"; }
has_namespaces() { grep -qF 'mode="hosts"' "$DDP_SLURM_DIR/cluster"; }

on_head() { "$slurm" run "$@"; }
on_node() { "$slurm" node "$@"; }

# There is no accounting: the controller forgets a job after five minutes.
job_state() { on_head scontrol show job "$1" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }
job_is() { [ "$(job_state "$1")" = "$2" ]; }

# A node that still cleans up after a job gets no other job.
none_completing() { ! on_head sinfo -h -o %T | grep -q completing; }
