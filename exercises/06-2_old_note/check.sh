# shellcheck shell=bash disable=SC2034,SC2154
# In a first run, rank 1 starts long after rank 0 has written its file. Then rank 0 is killed while its file exists. In
# the next run rank 1 starts first, so it finds that file; then rank 0 starts. The ranks must still connect, in a
# requeued job and in the next step of the same job.
# fails with: a job that was requeued: rank 1 connects to the port of rank 0
build --with check.c --wrap rendezvous_file_read --wrap rendezvous_file_write
port=$((10000 + $$ % 20000))    # below the ports that the system assigns, so that no other program gets an old port

# task NAME RANK VARIABLES...: starts the rank in the background. Its output is in NAME.RANK.out; $task is the pid of
# its parent, `timeout`.
task()
{
    local name=$1 rank=$2
    shift 2
    port=$((port + 1))
    env SLURM_CLUSTER_NAME=made-up SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 \
        SLURM_JOB_NUM_NODES=2 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST='node[1-2]' SLURM_LOCALID=0 \
        SLURMD_NODENAME=node$((rank + 1)) SLURM_NODEID="$rank" SLURM_GTIDS="$rank" SLURM_PROCID="$rank" "$@" \
        timeout --kill-after=2 "$limit" "$train" "${tiny[@]}" --max-steps 1 "${meet_limit[@]}" \
        --master-addr 127.0.0.1 --master-port $port --rendezvous "file:$PWD/note" >"$name.$rank.out" 2>&1 &
    task=$!
}
# until_printed FILE TEXT: waits until the text is in the file. After 20 s, the check fails.
until_printed()
{
    local i
    for ((i = 0; i < 400; i++)); do
        ! grep -q -- "$2" "$1" 2>/dev/null || return 0
        sleep 0.05
    done
    wrong "rank 0 writes its file, and rank 1 looks for it" <"$1"
}
found_in() { sed -n 's/^spy: port/port/p' "$1"; }

# meets WHAT NAME FIRST VARIABLES...: starts rank FIRST, then the other; claims that they connect.
meets()
{
    local what=$1 name=$2 begins=$3 first second ended
    shift 3
    task "$name" "$begins" "$@"
    first=$task
    until_printed "$name.$begins.out" "spy: $([ "$begins" = 0 ] && echo port || echo looks)"
    if [ "$begins" = 0 ]; then touch -d "1 minute ago" note; else sleep 0.2; fi
    task "$name" $((1 - begins)) "$@"
    second=$task
    wait "$first"
    ended=$?
    wait "$second"
    ended=$ended$?
    equal "$what: rank 1 connects to the port of rank 0" "$(found_in "$name.0.out")" "$(found_in "$name.1.out")"
    [ $ended = 00 ] || wrong "and both ranks succeed" < <(tail -3 "$name.0.out" "$name.1.out")
}
killed()
{
    rm -f killed.0.out              # the previous rank 0 printed the same text
    task killed 0 "$@"
    until_printed killed.0.out "spy: port"
    kill -KILL "$(pgrep -P "$task")"
    wait "$task"
    [ -e note ] || fail_check "rank 0 left no file"
} 2>/dev/null

why="Rank 1 starts a minute after rank 0 has written its file, and must still read it. It must not delete the file, its
age says nothing, and the name of the run must be the same on both ranks."
meets "a first run" first 0
killed
why="The port that rank 1 found is that of the rank 0 that was killed when the job first ran."
meets "a job that was requeued" again 1 SLURM_RESTART_COUNT=1
why="The job was requeued a second time. The rank 0 that was killed was in step 1 after one restart. This is step 0
after two. Does the name keep the two numbers apart?"
killed SLURM_RESTART_COUNT=1 SLURM_STEP_ID=1
meets "requeued twice" third 1 SLURM_RESTART_COUNT=2
killed
why="The port that rank 1 found is that of the previous step, which was killed."
meets "the next srun of a job" next 1 SLURM_STEP_ID=1
