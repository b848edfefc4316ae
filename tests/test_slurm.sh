#!/usr/bin/env bash
# Training under a real Slurm with three nodes on this machine (tools/slurm.sh).
#
# ctest: TIMEOUT 600 LABELS deadlines
# shellcheck disable=SC2317,SC2016  # functions are called by expect and check; what is in '' is for a node's shell
. "$SRC/tests/test.sh"
. "$SRC/tests/slurm/cluster.sh"
mkdir bin
ln -s "$BUILD"/06_slurm/{train,launch} bin/
train=$TMP/bin/train                    # pgrep finds our processes by this path
launch=$TMP/bin/launch
script=$SRC/06_slurm/job.sbatch
tiny=(--arch lenet --data synthetic --train-samples 1600 --test-samples 8 -b 8 --threads 1 --timeout 20)
twenty=("${tiny[@]}" --epochs 9 --max-steps 20 --amp off)
endless=("${tiny[@]}" --epochs 1000000)

cluster_up 3 --gpus 2 || exit 1
step() { until_so 20 none_completing; on_head timeout -k 5 60 srun --kill-on-bad-exit=1 "$@"; }
submit() { until_so 20 none_completing; on_head sbatch --parsable "$@"; }
# stand_in NAME: makes bin/NAME, a program in train's place, from the standard input.
stand_in()
{
    { echo '#!/bin/bash'; cat; } >"bin/$1"
    chmod +x "bin/$1"
}
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
    ! compgen -G "*note*" && ! compgen -G "*.st.*" | grep -vE "best|lock"
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
    sed -nE 's/^\[init\] == local rank: [0-9]*, (.*), pid [0-9]+$/\1/p' "$TMP/output" >found
    diff found wanted
}

four=(node1 node1 node2 node2)
same_bits()
{
    local wanted job
    expect 0 "weight hash: " timeout 100 "$launch" -n 4 -- "$train" "${twenty[@]}" --save net.st
    wanted=$(hash_of)
    expect 0 "weight hash: $wanted" step -N2 --ntasks-per-node=2 "$train" "${twenty[@]}"
    check "four ranks" each_says 4 Slurm "${four[@]}"
    expect 0 "weight hash: $wanted" step -N2 --ntasks-per-node=2 "$train" "${twenty[@]}" \
        --rendezvous "file:$TMP/note"
    check "the rendezvous file is removed" test ! -e note
    expect 0 "weight hash: " step -N2 --ntasks-per-node=2 -m cyclic "$train" "${twenty[@]}"
    check "cyclic ranks" each_says 4 Slurm node1 node2 node1 node2
    job=$(submit "$script" "$train" "${twenty[@]}")
    expect 0 "weight hash: $wanted" done_with "$job"
    check "job.sbatch" each_says 4 Slurm "${four[@]}"
    expect 0 "== test" "$BUILD/07_dist_eval/train" "${tiny[@]}" -e --init net.st --test-samples 501 --predictions one
    expect 0 "0 of 2: Slurm" step -N2 --ntasks-per-node=1 "$BUILD/07_dist_eval/train" "${tiny[@]}" -e --init net.st \
        --test-samples 501 --predictions many
    check "07: the same predictions" cmp one many
    rm -f net.st one many
    job=$(submit "$(adding "launch on each node")" "$train" "${twenty[@]}")
    expect 0 "weight hash: $wanted" done_with "$job"
    check "launch on each node" grep -qF "global rank: 3 of 4: environment" "$TMP/output"
}

# adding HEADING: makes a copy of job.sbatch with the lines below this heading of docs/slurm.md, and prints its name.
# The numbers of ranks and cores in these lines are changed to fit this cluster.
adding()
{
    local file=${1// /_}.sbatch
    awk -v head="### $1" '$0 == head { on = 1; next }
        on && /^```$/ { exit }
        on && code
        on && /^```bash/ { code = 1 }' "$SRC/docs/slurm.md" >lines
    sed -i -e "s,build/cuda/,${BUILD}/," -e 's/\(-per-node[ =]\)8/\12/' \
        -e 's/--cpus-per-task=[0-9]*/--cpus-per-task=2/' -e 's/67108864/4194304/g' lines
    awk 'FNR == NR { if (/^#SBATCH/) options = options $0 "\n"; else rest = rest $0 "\n"; next }
        /^date / && !found { printf "%s", options; found++ }
        { print }
        /^# Here go the lines/ { printf "%s", rest; found++ }
        END { exit found != 2 }' lines "$script" >"$file" && echo "$file"
}

# Tries the lines that docs/slurm.md adds to job.sbatch for some clusters. The program `sees` prints which GPUs and how
# many cores a rank has.
additions()
{
    local job name
    stand_in sees <<'END'
echo "rank $SLURM_PROCID$RANK sees GPU $CUDA_VISIBLE_DEVICES; $SLURM_CPUS_PER_TASK cores"
[ ${#DDP_TOKEN} = 32 ]
END
    sees() { grep sees "$TMP/output" | sort; }
    each() { printf "rank %s sees GPU $1\n" 0 1 2 3; }
    job=$(submit --cpus-per-task=2 "$script" "$TMP/bin/sees")
    expect 0 "status 0" done_with "$job"
    check "on CPUs" diff <(sees) <(each "; 2 cores")
    job=$(submit "$(adding GPUs)" "$TMP/bin/sees")
    expect 0 "status 0" done_with "$job"
    check "each rank sees all GPUs of its node" diff <(sees) <(each "0,1; 2 cores")

    job=$(submit "$(adding "The network's speed")" "$train" "${twenty[@]}")
    expect 0 "status 0" done_with "$job"
    check "the network is measured" grep -qE "^ +4194304 +1048576 +f32 +sum +[0-9.]+ +[0-9.]+ +[0-9.]+$" "$TMP/output"
    check "then it trains" grep -q "weight hash: " "$TMP/output"

    mkdir pets && tar cf pets.tar pets
    name=$(adding "A command on each node")
    sed -i "s,/tmp/data,$TMP/data-\$SLURM_PROCID,g" "$name"
    job=$(submit "$name" "$TMP/bin/sees")
    expect 0 "status 0" done_with "$job"
    check "each node has unpacked" test -d data-0/pets -a -d data-1/pets

    job=$(submit "$script")
    expect 0 "name a program" done_with "$job"
    job=$(submit "$script" "$TMP/bin/no")
    expect 0 "status 2" done_with "$job"
}

# A run that ends with status 1 or 3 must not be started again.
starts()
{
    local job
    stand_in fails <<'END'
touch "$2"
exit "${@: -1}"
END
    for status in 3 1; do
        job=$(submit --nodes=1 --ntasks-per-node=1 "$script" "$TMP/bin/fails" "$status")
        expect 0 "status $status" done_with "$job"
        check "status $status: it is started once" not grep -q "restart 1\|requeued" "$TMP/output"
    done
}

time_is_over()
{
    local wanted job run=("${tiny[@]}" --amp off --epochs 16)
    expect 0 "weight hash: " timeout 100 "$launch" -n 4 -- "$train" "${run[@]}"
    wanted=$(hash_of)
    job=$(submit "$script" "$train" "${run[@]}")
    check "it trains" until_so 30 says "$job" "== step:"
    on_head scancel --batch --signal=USR1 "$job"        # as Slurm does before a job's time is over
    check "requeued" until_so 20 says "$job" "requeued"
    check "saved" says "$job" "Training Interrupted"
    expect 0 "restart 1" done_with "$job"
    check "it resumes" grep -q "== resumed: ddp-$job.st, epoch" "$TMP/output"
    check "the weights of an undisturbed run" test "$(hash_of)" = "$wanted"
    check "it finishes" grep -q "status 0$" "$TMP/output"
    check "it is requeued once" test "$(grep -c requeued "$TMP/output")" = 1
    check "nothing is left" until_so 10 nothing_left
}

deaths()
{
    local job before
    job=$(submit "$script" "$train" "${endless[@]}" --max-steps 1000000 --train-samples 160000)
    check "it trains" until_so 30 says "$job" "== step:"
    before=${EPOCHREALTIME/[.,]/}
    on_node 2 bash -c 'kill -KILL $(pgrep -f "^$0" | tail -1)' "$train"
    check "the step ends" until_so 20 says "$job" "job $job: status 1"
    echo "after $(((${EPOCHREALTIME/[.,]/} - before) / 1000)) ms"
    check "within 5 s" test $((${EPOCHREALTIME/[.,]/} - before)) -lt 5000000
    expect 0 "srun: error: " done_with "$job"
    check "the killed task is named" grep -qE "srun: error: node2: task [0-3].*: Killed" "$TMP/output"
    check "not requeued" job_is "$job" FAILED
    check "nothing is left" until_so 10 nothing_left

    job=$(submit "$script" "$train" "${endless[@]}")
    check "it trains" until_so 30 says "$job" "== step:"
    on_head scancel "$job"
    check "scancel ends it" until_so 10 over "$job"
    check "nothing is left" until_so 10 nothing_left
}

is_idle() { [ "$(on_head sinfo -h -n "node$1" -o %T)" = idle ]; }

disconnected()
{
    local job wanted run=("${tiny[@]}" --amp off --epochs 12 --timeout 3)
    expect 0 "weight hash: " timeout 100 "$launch" -n 4 -- "$train" "${run[@]}"
    wanted=$(hash_of)
    job=$(submit -w node1,node2 "$script" "$train" "${run[@]}")
    check "it has saved" until_so 30 says "$job" "saved: .*st$"
    "$slurm" disconnect 2
    check "the lost rank is reported" until_so 10 says "$job" "rank [23] of 4 ("
    check "requeued" until_so 40 says "$job" "DUE TO\|Node failure"
    # When the node is back, Slurm ends what the job left there. A restart at the same moment would be ended, too.
    on_head scontrol hold "$job"
    "$slurm" reconnect 2
    check "the node is back" until_so 60 is_idle 2
    check "nothing is left of the job there" until_so 60 on_node 2 bash -c '! pgrep slurmstepd'
    sleep 4
    on_head scontrol release "$job"
    expect 0 "status 0" done_with "$job" 90
    check "the same bits" test "$(hash_of)" = "$wanted"
    check "nothing is left" until_so 30 nothing_left
}

for part in ${PARTS:-same_bits additions starts time_is_over deaths disconnected}; do
    before=$SECONDS
    $part
    echo "$part: $((SECONDS - before)) s"
done
test_done
