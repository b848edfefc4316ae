#!/usr/bin/env bash
# How a process finds its rank (from the environment or Open MPI), which contradictions it reports,
# and which options and programs the ranks must share.
#
# ctest: SANITIZERS asan
# shellcheck disable=SC2317,SC2094,SC2016  # functions are called by expect and check
. "$SRC/tests/test.sh"
train=$BUILD/04_ddp_launcher/train
tiny=(--arch lenet --data synthetic --train-samples 16 --test-samples 8 -b 4 --epochs 1 --threads 1 --max-steps 1)
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT OMPI_COMM_WORLD_RANK PMIX_RANK DDP_TOKEN

with()
{
    local environment=$1
    shift
    # shellcheck disable=SC2086
    env $environment timeout -k 5 60 "$train" "${tiny[@]}" "$@"
}

# Looks for no leaks, because Open MPI itself has some.
by_mpirun() { ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 timeout -k 5 60 mpirun "$@"; }

one='[init] == local rank: 0, global rank: 0 of 1:'
expect 0 "$one alone ==" with ""

expect 0 "$one environment ==" \
    with "RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=1"

if type -P mpirun >/dev/null; then
    expect 0 "$one Open MPI ==" by_mpirun -np 1 "$train" "${tiny[@]}"
    expect 0 "" by_mpirun -np 2 "$train" "${tiny[@]}"
    check "rank 1 of 2" grep -qF '[init] == local rank: 1, global rank: 1 of 2: Open MPI ==' "$TMP/output"
fi

wrong() # wrong TEXT "NAME=VALUE ..." OPTION...
{
    local text=$1
    shift
    expect 2 "$text" with "$@"
    check "nothing was done: $text" not grep -q parameters "$TMP/output"
}
wrong "only one of RANK" "RANK=1"
wrong "the rank is 2, but the world size is 2" "RANK=2 WORLD_SIZE=2"
wrong "but no MASTER_ADDR (--master-addr) is given" "RANK=0 WORLD_SIZE=2 MASTER_PORT=$port"

for variable in OMPI_COMM_WORLD_SIZE WORLD_SIZE PMI_SIZE SLURM_STEP_NUM_TASKS; do
    train=$BUILD/03_ddp_fork/train \
        wrong "a launcher has started 2 processes ($variable), but this program expects 1" "$variable=2"
done
expect 0 "$one alone ==" with "SLURM_STEP_NUM_TASKS=1 PMI_SIZE=1"

# both "NAME=VALUE ... (of rank 0)" "... (of rank 1)" OPTION...: runs two ranks, and prints their statuses and outputs.
# of_0, of_1: more options for rank 0, for rank 1, in the next call. $other: the program of rank 1, if it is not that of
# rank 0.
other='' of_0=() of_1=()
both()
{
    local status
    by_hand 0 2 with "$1" --timeout 20 "${@:3}" "${of_0[@]}" >first 2>&1 &
    train=${other:-$train} by_hand 1 2 with "$2" --timeout 20 "${@:3}" "${of_1[@]}" >second 2>&1
    status=$?
    wait $!
    echo "statuses $? $status"
    cat first second
    port=$((port + 1)) of_0=() of_1=()
}
expect 0 "statuses 0 0" both "" ""
check "rank 1: its local rank is counted" grep -qF '[init] == local rank: 1, global rank: 1 of 2: environment ==' \
    "$TMP/output"
expect 0 "local rank: 0, global rank: 1 of 2" both "LOCAL_RANK=1 LOCAL_WORLD_SIZE=2" "LOCAL_RANK=0 LOCAL_WORLD_SIZE=2"
here=$(hostname)
of_0=(--lr 0.1) of_1=(--lr 0.2)
expect 0 "options: rank 1 ($here) has --lr 0.2, but rank 0 has --lr 0.1" both "" ""
check "both ranks end with status 2" grep -qx 'statuses 2 2' "$TMP/output"
check "before any work" not grep -q parameters "$TMP/output"
of_0=(--threads 1 --workers 0 --metrics a)
of_1=(--threads 2 --workers 1 --metrics b --trace b.json)
expect 0 "local rank: 1, global rank: 0 of 2" both LOCAL_RANK=1 LOCAL_RANK=0
check "these may differ" grep -qx 'statuses 0 0' "$TMP/output"
cp "$train" other
other=./other
sed -i 's/^revision ./revision ?/' other
expect 0 "program: rank 1 ($here) has revision ?" both "" ""
test_done
