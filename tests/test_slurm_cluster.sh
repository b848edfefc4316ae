#!/usr/bin/env bash
# The Slurm cluster of tools/slurm.sh must work like a real one, and nothing of it may be left when it ends. Its nodes
# are in namespaces or, where those are refused, all on this host's loopback interface.
#
# ctest: LABELS deadlines
# shellcheck disable=SC2317,SC2016  # functions are called by expect and check; words for shells in the cluster
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
gone() { until_so 2 is_gone "$1"; }
is_gone() { [ ! -e "$1" ] && [ -z "$(processes_of "$1")" ] && [ "$(traces 2>/dev/null)" = "$before" ]; }

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
    check "$1: nothing is left" gone "$DDP_SLURM_DIR"
    check "$1: the job is also gone" until_so 2 not sleeping
}

mkdir bin
printf '#!/bin/sh\necho "unshare failed: Operation not permitted" >&2\nexit 1\n' >bin/unshare
chmod +x bin/unshare
expect 0 "no namespaces here (unshare failed: Operation not permitted): all nodes are on this host's loopback" \
    env PATH="$TMP/bin:$PATH" "$slurm" up 2 --gpus 2
expect 0 "1: $(hostname)" on_head srun -N 2 -l hostname
expect 0 "127.0.0.12" on_head srun -N 1 --nodelist 127.0.0.12 printenv SLURMD_NODENAME
dies "keeper" "$(cat "$DDP_SLURM_DIR/keeper")"

cluster_up 2 --gpus 2 || exit 1
has_namespaces || {
    echo "not tried: nodes in namespaces (they are refused here)"
    test_done
}
expect 0 "" on_head srun -N 2 -l hostname
check "each node has its name" test "$(sort "$TMP/output" | paste -sd' ')" = "0: node1 1: node2"
expect 0 "" on_head srun -N 2 -l getent hosts node1
check "and all nodes can resolve it" test "$(grep -c '10.77.0.11 *node1' "$TMP/output")" = 2

expect 0 "0-1-1" on_head srun -N 2 --ntasks-per-node=1 bash -c 'echo "$SLURM_LOCALID-$SLURM_NODEID-$SLURM_PROCID"'
expect 0 "" on_head srun -N 2 -n 4 --gpus-per-task=1 printenv CUDA_VISIBLE_DEVICES
check "a GPU for each of four tasks" test "$(grep -cE '^[01]$' "$TMP/output")" = 4
expect 3 "" on_head bash -c 'exit 3'
check "a node sees its own processes" test "$(on_node 1 pgrep -cx slurmd)" = 1

"$slurm" run sleep 774 &
check "a command on the head" until_so 5 on_head pgrep -fx "sleep 774"
kill $!
check "is killed with slurm run" until_so 5 not on_head pgrep -fx "sleep 774"

expect 0 "" "$slurm" down
check "nothing is left" gone "$TMP/slurm"

{   # hides the shell's reports of killed processes
    bash -c "'$slurm' hold 2 & wait" >/dev/null 2>&1 &
    dies "hold's parent" $!
    "$slurm" up 2 >/dev/null 2>&1
    dies "keeper" "$(cat "$DDP_SLURM_DIR/keeper")"
} 2>/dev/null
test_done
