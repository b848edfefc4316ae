# shellcheck shell=bash
# cluster.sh - a Slurm cluster for a test:
#
#   . "$SRC/tests/test.sh"
#   . "$SRC/tests/slurm/cluster.sh"    # without Slurm's programs the test is skipped here
#   cluster_up 2 --gpus 2              # the options are those of `./ddp slurm up`
#   J=$(on_head sbatch --parsable job.sbatch)
#   until_so 30 job_is "$J" COMPLETED
#
# The cluster is a child of the test. When the test ends, even by kill -9, the cluster ends: see tools/slurm.sh.

for cluster_program in slurmctld slurmd munged srun; do
    PATH=$PATH:/usr/sbin:/sbin type -P $cluster_program >/dev/null || {
        echo "skipped: there is no $cluster_program (apt install slurmctld slurmd slurm-client munge)"
        exit 77
    }
done
# shellcheck disable=SC2046
unshare $([ $EUID = 0 ] || echo --map-root-user) --net true 2>/dev/null || {
    echo "skipped: namespaces are refused here"
    exit 77
}
slurm=$SRC/tools/slurm.sh
export DDP_SLURM_DIR=$TMP/slurm

# shellcheck disable=SC2034  # for until_so: each query costs the controller time
until_pause=0.4

# cluster_up N [OPTION...]: starts N nodes; the cluster's directory is $DDP_SLURM_DIR. Tries twice. Do not call it in a
# subshell: the cluster would end with the subshell.
cluster_up()
{
    local log=$DDP_SLURM_DIR.log keeper
    for _ in 1 2; do
        "$slurm" hold "$@" >"$log" 2>&1 </dev/null &
        keeper=$!
        disown                                  # keeps bash from reporting its end
        until_so 60 cluster_settled "$log" $keeper
        ! grep -qx ready "$log" || break
        kill -KILL $keeper 2>/dev/null
    done
    grep -v '^ready$' "$log"
    grep -qx ready "$log"
}
cluster_settled() { grep -qx ready "$1" || ! kill -0 "$2"; }

on_head() { "$slurm" run "$@"; }
on_node() { "$slurm" node "$@"; }

# Prints nothing for a job that ended more than five minutes ago: without accounting, the controller forgets it.
job_state() { on_head scontrol show job "$1" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }
job_is() { [ "$(job_state "$1")" = "$2" ]; }

# A node that is still cleaning up after a job gets no new job.
none_completing() { ! on_head sinfo -h -o %T | grep -q completing; }
