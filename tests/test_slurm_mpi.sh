#!/usr/bin/env bash
# On many clusters, srun without --mpi starts tasks with PMIx. A rank of step 06 that srun starts must use Slurm's
# variables, with PMIx and without. A rank that mpirun starts in a job must use mpirun's.
#
# ctest: LABELS deadlines
# shellcheck disable=SC2016  # words for shells in the cluster
. "$SRC/tests/test.sh"
. "$SRC/tests/slurm/cluster.sh"
train=$BUILD/06_slurm/train
tiny=(--arch lenet --data synthetic --train-samples 64 --test-samples 8 -b 8 --threads 1 --max-steps 2 --epochs 1)

cluster_up 2 --mpi pmix || exit 1
check "the cluster's default is PMIx" grep -q pmix <(on_head scontrol show config | grep MpiDefault)

step() { until_so 20 none_completing; on_head timeout -k 5 60 srun -N2 --ntasks-per-node=2 --kill-on-bad-exit=1 "$@"; }
starts()
{
    expect 0 "weight hash: " "${@:2}"
    check "four ranks: $1" test "$(grep -c "of 4: $1 == host node" "$TMP/output")" = 4
}
# Imitates a container that cannot reach srun's PMIx server.
unreachable='unset ${!PMIX_SERVER_URI*}; exec "$@"'

expect 0 "" step bash -c 'echo "PMIX_RANK=$PMIX_RANK"'
check "srun sets PMIX_RANK" grep -qx "PMIX_RANK=3" "$TMP/output"
starts Slurm step "$train" "${tiny[@]}"
starts Slurm step --mpi=none "$train" "${tiny[@]}"
starts Slurm step bash -c "$unreachable" bash "$train" "${tiny[@]}"
starts "Open MPI" on_head timeout -k 5 60 salloc -N2 --ntasks-per-node=2 mpirun "$train" "${tiny[@]}"
# Step 04 does not know Slurm. If srun starts it with PMIx, it finds its rank through Open MPI.
starts "Open MPI" step "$BUILD/04_ddp_launcher/train" "${tiny[@]}"

test_done
