#!/usr/bin/env bash
# Nothing may be left of a Slurm cluster of tools/slurm.sh, however it ends.
#
# ctest: LABELS deadlines
# shellcheck disable=SC2317  # functions are called by expect and check
. "$SRC/tests/test.sh"
. "$SRC/tests/slurm/cluster.sh"

# processes_of DIR: the processes that were started with DDP_SLURM_DIR=DIR in their environment.
processes_of() { env -u DDP_SLURM_DIR grep -lzxF "DDP_SLURM_DIR=$1" /proc/[0-9]*/environ 2>/dev/null; }
# Prints what is in places where a cluster could leave traces. Omits places that other tests change at the same time.
traces()
{
    ip -o link | grep -oE ' node[0-9]+[:@]'
    grep -E ' /etc/(slurm|hosts) ' /proc/mounts
    cat /etc/hosts
    ls -lR /etc/slurm
}
before=$(traces 2>/dev/null)
gone() { [ -z "$(processes_of "$DDP_SLURM_DIR")" ] && [ "$(traces 2>/dev/null)" = "$before" ]; }

nap=$((1000000 + $$))       # no other test's job sleeps exactly this long
sleeping() { pgrep -fx "/bin/sleep $nap"; }
# dies WHAT PID: kills the process while the cluster runs a job. Nothing may be left of the cluster, nor of this job,
# whose environment does not name the cluster.
dies()
{
    check "$1: up" until_so 20 on_head true
    on_head sbatch --export=NONE -N 2 --output=/dev/null --wrap "srun /bin/sleep $nap" >/dev/null
    check "$1: a job" until_so 10 sleeping
    kill -KILL "$2"
    check "$1: nothing is left" until_so 10 gone
    check "$1: the job is also gone" until_so 10 not sleeping
}

cluster_up 2 || exit 1
expect 0 "" on_head srun -N 2 -l hostname
check "each node has its name" test "$(sort "$TMP/output" | paste -sd' ')" = "0: node1 1: node2"
expect 0 "" "$slurm" down
check "nothing is left" until_so 10 gone
check "nor a file" test ! -e "$DDP_SLURM_DIR"

{   # hides the shell's reports of killed processes
    bash -c "'$slurm' hold 2 & wait" >/dev/null 2>&1 &
    dies "hold's parent" $!
    "$slurm" up 2 >/dev/null 2>&1
    dies "keeper" "$(cat "$DDP_SLURM_DIR/keeper")"
} 2>/dev/null
test_done
