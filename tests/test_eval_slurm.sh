#!/usr/bin/env bash
# 07's evaluation under a real Slurm, on two nodes of this machine (tools/slurm.sh): four tasks, or one on each node
# that starts two ranks. It says the same, and writes the same files, as one rank does.
#
# ctest: TIMEOUT 200 LABELS deadlines
# shellcheck disable=SC2317,SC2034  # check calls functions; what train is, evaluate reads
. "$SRC/tests/test.sh"
. "$SRC/tests/slurm/cluster.sh"
. "$SRC/tests/eval.sh"
cd "$TMP" || exit 1
mkdir bin                               # so that other tests' processes have other names
ln -s "$step"/{train,launch} bin/
network
check "one rank" evaluate one 1 501 16

# shellcheck disable=SC2086
cluster_up 2 ${CLUSTER:-} || exit 1
train=$TMP/bin/train
# --- four tasks: as many ranks
ranks() { on_head timeout -k 5 60 srun --kill-on-bad-exit=1 -N2 --ntasks-per-node=2 "${@:2}"; }
check "srun" shown evaluate many 4 501 16
check "srun: four ranks" grep -q "global rank: 3 of 4: Slurm" many.out
check "srun: as one" shown same many one
rm many.*
# --- one task a node, as LAYOUT=node of job.sbatch has it; which says itself what to go on from: SAVE
ranks()
{
    local options=("${@:3}") status i
    for i in "${!options[@]}"; do
        [ "${options[i]:-}" != --init ] || unset "options[i]" "options[i+1]"
    done
    PROGRAMS=$TMP/bin LAYOUT=node SAVE=net.st on_head sbatch --wait --output=job.log "$SRC/07_dist_eval/job.sbatch" \
        "${options[@]}"
    status=$?
    cat job.log
    return $status
}
check "one task a node" shown evaluate many 4 501 16
check "one task a node: four ranks" grep -q "global rank: 3 of 4: environment" many.out
check "one task a node: as one" shown same many one
cluster_down
test_done
