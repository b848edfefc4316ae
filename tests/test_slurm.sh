#!/usr/bin/env bash
# Training under a real Slurm with three nodes on this machine (tools/slurm.sh): each in its own namespaces, or, where
# those are refused, all on the loopback interface.
#
# ctest: TIMEOUT 600 LABELS deadlines
# shellcheck disable=SC2317,SC2016  # functions are called by expect and check; what is in '' is for a node's shell
. "$SRC/tests/test.sh"
. "$SRC/tests/slurm/cluster.sh"
export PROGRAMS=$TMP/bin                # pgrep finds our processes by this path
mkdir bin
ln -s "$BUILD"/06_slurm/{train,launch} bin/
train=$PROGRAMS/train
script=$SRC/06_slurm/job.sbatch
tiny=(--arch lenet --data synthetic --train-samples 1600 --test-samples 8 -b 8 --threads 1 --timeout 20)
twenty=("${tiny[@]}" --epochs 9 --max-steps 20 --amp off)
endless=("${tiny[@]}" --epochs 1000000)

# shellcheck disable=SC2086
cluster_up 3 --gpus 2 ${CLUSTER:-} || exit 1
has_namespaces && hosts=yes || hosts=

node_name() { if [ -n "$hosts" ]; then echo "node$1"; else echo "127.0.0.$((10 + $1))"; fi; }
step() { until_so 20 none_completing; on_head timeout -k 5 60 srun --kill-on-bad-exit=1 "$@"; }
submit() { until_so 20 none_completing; on_head sbatch --parsable "$@"; }
over() { [[ $(job_state "$1") =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY)$ ]]; }
says() { grep -qs -- "$2" "ddp-$1.log"; }
done_with()
{
    until_so "${2:-60}" over "$1" || on_head scontrol show job "$1"
    cat "ddp-$1.log"
}
nothing_left()
{
    local k
    for k in 1 2 3; do
        ! on_node "$k" pgrep -f "^$train" || return 1
    done
    ! compgen -G "*note*" && ! compgen -G "*.st.*" | grep -v best
}

hash_of() { sed -n 's/^weight hash: //p' "$TMP/output" | tail -n 1; }
# each_says N SOURCE NODE...: N ranks printed [init] lines in order, which name SOURCE and these nodes.
each_says()
{
    local rank=0 name
    : >wanted
    for name in "${@:3}"; do
        echo "global rank: $rank of $1: $2 == host $name" >>wanted
        rank=$((rank + 1))
    done
    [ -n "$hosts" ] || sed -i "s/host node[0-9]*/host $(hostname)/" wanted
    sed -nE 's/^\[init\] == local rank: [0-9]*, (.*), pid [0-9]+$/\1/p' "$TMP/output" >found
    diff found wanted
}

four=(node1 node1 node2 node2)
same_bits()
{
    local wanted job
    expect 0 "weight hash: " timeout 100 "$PROGRAMS/launch" -n 4 -- "$train" "${twenty[@]}" --save net.st
    wanted=$(hash_of)
    expect 0 "weight hash: $wanted" step -N2 --ntasks-per-node=2 "$train" "${twenty[@]}"
    check "four ranks" each_says 4 Slurm "${four[@]}"
    expect 0 "weight hash: $wanted" step -N2 --ntasks-per-node=2 "$train" "${twenty[@]}" \
        --rendezvous "file:$TMP/note"
    check "the rendezvous file is removed" test ! -e note
    printf 'ddp.c rendezvous\nddp 1.0, restart 0\n0123\n127.0.0.1 9\n' >note
    expect 0 "0 of 4: Slurm" step -N2 --ntasks-per-node=2 "$train" "${twenty[@]}" --rendezvous "file:$TMP/note"
    check "the old file is removed" test ! -e note
    expect 0 "weight hash: " step -N2 --ntasks-per-node=2 -m cyclic "$train" "${twenty[@]}"
    check "cyclic ranks" each_says 4 Slurm node1 node2 node1 node2
    printf '%s\n' "$(node_name 2)" "$(node_name 1)" "$(node_name 1)" "$(node_name 2)" >order
    swapped() { submit -N2 --ntasks-per-node=2 -o ddp-%j.log --wrap "SLURM_HOSTFILE=$TMP/order srun -n4 $*"; }
    job=$(swapped --kill-on-bad-exit=1 "$train" "${twenty[@]}")
    expect 0 "rank 0 is on $(node_name 2), but the others expect it on the step's first host, $(node_name 1)" \
        done_with "$job"
    job=$(swapped "$train" "${twenty[@]}" --rendezvous "file:$TMP/note")
    expect 0 "weight hash: " done_with "$job"
    check "--rendezvous: the ranks stay where they are" each_says 4 Slurm node2 node1 node1 node2
    job=$(submit "$script" "${twenty[@]}")
    expect 0 "weight hash: $wanted" done_with "$job"
    check "job.sbatch" each_says 4 Slurm "${four[@]}"
    expect 0 "== test" "$BUILD/07_dist_eval/train" "${tiny[@]}" -e --init net.st --test-samples 501 --predictions one
    expect 0 "0 of 2: Slurm" step -N2 --ntasks-per-node=1 "$BUILD/07_dist_eval/train" "${tiny[@]}" -e --init net.st \
        --test-samples 501 --predictions many
    check "07: the same predictions" cmp one many
    rm -f net.st one many
    [ -n "$hosts" ] || return
    job=$(LAYOUT=node submit "$script" "${twenty[@]}")
    expect 0 "weight hash: $wanted" done_with "$job"
    check "one task on each node" grep -qF "global rank: 3 of 4: environment" "$TMP/output"
    printf '#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2 -o ddp-%%j.log\nmpirun --oversubscribe "$@"\n' >mpi.sbatch
    job=$(submit mpi.sbatch "$train" "${twenty[@]}")
    expect 0 "weight hash: $wanted" done_with "$job"
    check "mpirun in a job" grep -qF \
        "[init] == local rank: 1, global rank: 1 of 4: Open MPI ==" "$TMP/output"
    check "mpirun in a job: no warning" not grep -q "left over" "$TMP/output"
}

# Which build job.sbatch takes, and what its ranks see. In $TMP/tree are programs that print both.
layouts()
{
    local job backend
    for backend in cpu cuda; do
        mkdir -p tree/06_slurm tree/build/$backend/06_slurm
        cat >tree/build/$backend/06_slurm/train <<END
#!/bin/bash
echo "$backend: rank \$SLURM_PROCID\$RANK sees GPU \$CUDA_VISIBLE_DEVICES; \$SLURM_CPUS_PER_TASK cores, \$INSIDE"
[ \${#DDP_TOKEN} = 32 ]
END
        chmod +x tree/build/$backend/06_slurm/train
        cp "$BUILD"/06_slurm/launch tree/build/$backend/06_slurm
    done
    cp "$script" tree/06_slurm
    sees() { grep sees "$TMP/output" | sort; }
    in_tree() { (cd tree && until_so 20 none_completing && env -u PROGRAMS "$slurm" run sbatch --parsable \
        --output="$TMP/ddp-%j.log" "$@"); }
    job=$(in_tree --cpus-per-task=2 06_slurm/job.sbatch)
    expect 0 "done" done_with "$job"
    check "on CPUs" diff <(sees) <(printf 'cpu: rank %s sees GPU ; 2 cores, \n' 0 1 2 3)
    job=$(CONTAINER="env INSIDE=here" in_tree --gpus-per-node=2 --exclusive --ntasks-per-node=1 06_slurm/job.sbatch)
    expect 0 "done" done_with "$job"
    check "each rank sees all GPUs" diff <(sees) <(printf 'cuda: rank %s sees GPU 0,1; 2 cores, here\n' 0 1 2 3)
    job=$(STEP_OPTIONS="--export=ALL,INSIDE=here" LAYOUT=node in_tree --gpus-per-node=2 --exclusive 06_slurm/job.sbatch)
    expect 0 "done" done_with "$job"
    check "also with LAYOUT=node" diff <(sees) <(printf 'cuda: rank %s sees GPU 0,1; 4 cores, here\n' 00 01 12 13)
    job=$(in_tree --gpus-per-node=2 --ntasks-per-node=1 06_slurm/job.sbatch)
    expect 0 "1 cores on a node are too few for 2 ranks: add --exclusive or --cpus-per-task" done_with "$job"
    PROGRAMS=$TMP/bin/no submit "$script" >job
    expect 0 "status 2: not tried again" done_with "$(cat job)"
}

# USR1 may come while the job measures the network, before it trains.
network()
{
    local job
    job=$(PREPARE='echo "$SLURM_NNODES nodes, task $SLURM_PROCID"' PROGRAMS=$BUILD/06_slurm \
        submit "$script" "${twenty[@]}")
    expect 0 "done" done_with "$job"
    check "each node prepares" test "$(grep -c "^2 nodes, task [01]$" "$TMP/output")" = 2
    check "the network is measured" grep -qE "all-reduce of 4 MiB by all ranks: [0-9.]+ ms, [0-9.]+ GB/s" "$TMP/output"
    mkdir -p bin/slow/it
    printf '#!/bin/bash\n[ -n "$SLURM_RESTART_COUNT" ] || { echo measuring >&2; sleep 60; }\n' >bin/slow/comm_bench
    printf '#!/bin/bash\necho training\n' >bin/slow/it/train
    chmod +x bin/slow/comm_bench bin/slow/it/train
    job=$(PROGRAMS=$TMP/bin/slow/it submit "$script")
    check "it measures" until_so 30 says "$job" measuring
    on_head scancel --batch --signal=USR1 "$job"
    check "requeued" until_so 20 says "$job" "status .*: requeued"
    check "without training" not says "$job" training
    expect 0 "done" done_with "$job"
    check "it trains after the restart" grep -q training "$TMP/output"
}

# Failures before which nothing was saved, and failures that would come again although the ranks have saved.
starts()
{
    local job
    mkdir bin/starts
    cat >bin/starts/train <<'END'
#!/bin/bash
set -- "${@: -4}"
case $2 in
apart) [ "$SLURM_PROCID" != 0 ] || { echo "comm.c:9: the ranks have diverged"; touch "ddp-$SLURM_JOB_ID.st"; }
    until [ -e "ddp-$SLURM_JOB_ID.st" ]; do sleep 0.1; done
    [ "$SLURM_PROCID" != 1 ] || sleep 5         # Slurm kills it, and srun's status is 143
    exit 200 ;;
infinite) touch "ddp-$SLURM_JOB_ID.st"; exit 3 ;;
all) exit 1 ;;
esac
END
    chmod +x bin/starts/train
    job=$(PROGRAMS=$TMP/bin/starts submit "$script" try apart at all)
    expect 0 "status 200: the ranks' weights differ: not tried again" done_with "$job"
    check "it is started once" not grep -q "restart 1\|requeued" "$TMP/output"
    check "apart: builds" build_with apart 06_slurm train.c "gradients_check(job->ops, model->grad_count" \
        "if (job->world.rank == 1) model->grads[7] = 1; gradients_check(job->ops, model->grad_count"
    expect 200 "the ranks have diverged" step -N2 --ntasks-per-node=2 "$TMP/apart" "${twenty[@]}"
    job=$(PROGRAMS=$TMP/bin/starts submit --nodes=1 --ntasks-per-node=1 "$script" try infinite at all)
    expect 0 "status 3: not tried again" done_with "$job"
    job=$(PROGRAMS=$TMP/bin/starts submit "$script" try all at all)
    expect 0 "status 1, and nothing was saved: not tried again" done_with "$job"
}

traps()
{
    local job
    printf '#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2 -o ddp-%%j.log\n"$@"\necho "status $?"\n' >plain.sbatch
    job=$(submit plain.sbatch "$train" "${twenty[@]}")
    expect 0 "job $job has 4 tasks, and this process is not one of them" done_with "$job"
    check "the right command is shown" grep -qF "    srun --kill-on-bad-exit=1 $train ..." "$TMP/output"
    check "status 2" grep -qx "status 2" "$TMP/output"
    check "it ends before any work" not grep -q parameters "$TMP/output"
}

# Every 30 s the controller looks for jobs whose time is nearly over. This job records when, so that another job can
# start a few seconds before the next look.
watch_the_clock()
{
    cat >clock.sbatch <<'END'
#!/bin/bash
#SBATCH --time=1 --signal=B:USR1@55 --output=/dev/null
trap 'date +%s >clock; exit' USR1
sleep 100 &
wait
END
    submit -w "$(node_name 3)" clock.sbatch
}

time_is_over()
{
    local wanted job run=("${tiny[@]}" --amp off --epochs 16)
    expect 0 "weight hash: " timeout 100 "$PROGRAMS/launch" -n 4 -- "$train" "${run[@]}"
    wanted=$(hash_of)
    until_so 60 test -s clock
    sleep $(((25 - $(date +%s) + $(cat clock) + 600) % 30))
    job=$(submit --time=1 --signal=B:USR1@55 "$script" "${run[@]}")
    check "the job notices that its time is nearly over" until_so 60 says "$job" "nearly over: saving"
    check "requeued" until_so 20 says "$job" "requeued"
    check "saved" says "$job" "Training Interrupted"
    on_head scontrol update "jobid=$job" timelimit=10 2>/dev/null
    expect 0 "restart 1" done_with "$job"
    check "it resumes" grep -q "== resumed: ddp-$job.st, epoch" "$TMP/output"
    check "the weights of an undisturbed run" test "$(hash_of)" = "$wanted"
    check "it finishes" grep -q "done$" "$TMP/output"
    check "it is requeued once" test "$(grep -c requeued "$TMP/output")" = 1
    check "nothing is left" nothing_left

    job=$(submit "$script" "${run[@]}")
    check "it has saved" until_so 30 says "$job" "saved: .*st$"
    on_head scontrol update partitionname=main state=down       # else the job restarts before we change it
    on_head scancel --batch --signal=USR1 "$job"
    check "requeued" until_so 20 says "$job" "requeued"
    check "it waits" until_so 30 job_is "$job" PENDING
    # Start 3 s later: within a second of a job's end, a node mistakes the job's restart for the old job and refuses it.
    check "fewer nodes" on_head scontrol update "jobid=$job" numnodes=1 numtasks=2 starttime=now+3
    on_head scontrol update partitionname=main state=up
    expect 0 "0 of 2: Slurm" done_with "$job"
    check "it resumes" grep -q "== resumed: ddp-$job.st, epoch" "$TMP/output"
    check "it finishes" grep -q "done$" "$TMP/output"
}

# Submits a job whose program saves and fails. At the restart it is killed before it saves again.
submit_killed()
{
    mkdir bin/killed
    cat >bin/killed/train <<'END'
#!/bin/bash
[ -z "$SLURM_RESTART_COUNT" ] || kill -KILL $$
touch "$2"
exit 1
END
    chmod +x bin/killed/train
    PROGRAMS=$TMP/bin/killed submit --nodes=1 --ntasks-per-node=1 "$script"
}

deaths()
{
    local job wanted before killed run=("${tiny[@]}" --epochs 8)
    killed=$(submit_killed)
    job=$(submit "$script" "${endless[@]}" --max-steps 1000000 --train-samples 160000)
    check "it trains" until_so 30 says "$job" "== step:"
    before=${EPOCHREALTIME/./}
    on_node 2 bash -c 'kill -KILL $(pgrep -f "^$0" | tail -1)' "$train"
    check "the step ends" until_so 20 says "$job" "status 1.*nothing was saved"
    echo "after $(((${EPOCHREALTIME/./} - before) / 1000)) ms"
    check "within 5 s" test $((${EPOCHREALTIME/./} - before)) -lt 5000000
    expect 0 "srun: error: " done_with "$job"
    check "the killed task is named" grep -qE "srun: error: ${hosts:+node2: task [0-3]}.*: Killed" "$TMP/output"
    check "not requeued" job_is "$job" FAILED
    check "nothing is left" nothing_left

    job=$(submit "$script" "${endless[@]}")
    check "it trains" until_so 30 says "$job" "== step:"
    on_head scancel "$job"
    check "scancel ends it" until_so 10 over "$job"
    check "nothing is left" until_so 10 nothing_left

    expect 0 "weight hash: " timeout 100 "$PROGRAMS/launch" -n 4 -- "$train" "${run[@]}" --amp off
    wanted=$(hash_of)
    job=$(submit "$script" "${run[@]}" --amp off)
    check "it has saved" until_so 30 says "$job" "saved: .*st$"
    on_node 2 bash -c 'kill -KILL $(pgrep -f "^$0" | head -1)' "$train"
    check "requeued" until_so 20 says "$job" "status 1.*requeued"
    expect 0 "done" done_with "$job"
    check "it resumes" grep -q "== resumed: ddp-$job.st, epoch" "$TMP/output"
    check "the same bits" test "$(hash_of)" = "$wanted"

    expect 0 "status 137, and nothing was saved: not tried again" done_with "$killed"
    check "tried twice" test "$(grep -c "requeued" "$TMP/output")" = 1
}

disconnected()
{
    [ -n "$hosts" ] || return
    local job wanted run=("${tiny[@]}" --amp off --epochs 12 --timeout 3)
    expect 0 "weight hash: " timeout 100 "$PROGRAMS/launch" -n 4 -- "$train" "${run[@]}"
    wanted=$(hash_of)
    job=$(submit -w "$(node_name 1),$(node_name 2)" "$script" "${run[@]}")
    check "it has saved" until_so 30 says "$job" "saved: .*st$"
    "$slurm" disconnect 2
    check "the lost rank is reported" until_so 10 says "$job" "rank [23] of 4 ("
    check "requeued" until_so 40 says "$job" "requeued\|DUE TO"
    sleep 2
    "$slurm" reconnect 2
    expect 0 "done" done_with "$job" 90
    check "the same bits" test "$(hash_of)" = "$wanted"
    check "nothing is left" until_so 30 nothing_left
}

watch_the_clock >/dev/null
for part in ${PARTS:-same_bits layouts network starts traps time_is_over deaths disconnected}; do
    before=$SECONDS
    $part
    echo "$part: $((SECONDS - before)) s"
done
test_done
