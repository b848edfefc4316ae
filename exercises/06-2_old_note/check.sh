# shellcheck shell=bash disable=SC2034,SC2154
# In a first run, rank 1 starts long after rank 0 has written its file. Then rank 0 is killed while its file exists. In
# the next run rank 1 starts first, so it finds that file, which it must not delete. When it has tried to connect twice
# (check.c notes each attempt), rank 0 starts. The ranks must meet both times.
# fails with: started again: both ranks train
build --with check.c --wrap tcp_connect
# task NAME RANK: starts the rank in the background. Its output is in NAME.RANK.out; $task is the pid of its parent,
# `timeout`.
task()
{
    RANK=$2 WORLD_SIZE=2 LOCAL_RANK=0 timeout --kill-after=2 "$limit" "$train" "${tiny[@]}" --max-steps 1 --timeout 6 \
        --iface lo --rendezvous "file:$PWD/note" >"$1.$2.out" 2>&1 &
    task=$!
}
# soon COMMAND...: waits until the command succeeds, for at most 20 s.
soon()
{
    local i
    for ((i = 0; i < 400; i++)); do
        ! "$@" || return 0
        sleep 0.05
    done
    return 1
}
written() { soon [ -e note ] || wrong "rank 0 writes its file" <"$1.0.out"; }
has_tried() { [ "$(wc -l <attempts.1)" -ge 2 ] || [ ! -e note ] || ! kill -0 "$first"; } 2>/dev/null

# meets WHAT NAME FIRST: starts rank FIRST, then the other; claims that they train.
meets()
{
    local first
    rm -f attempts.1
    task "$2" "$3"
    first=$task
    if [ "$3" = 0 ]; then
        written "$2"
        touch -d "1 minute ago" note
    else
        soon has_tried
        [ -e note ] || why="The old file is gone: rank 1 deleted it. A moment later it might have been the new one of
rank 0, and no rank would ever find that again." wrong "rank 1 leaves the file alone" </dev/null
    fi
    task "$2" $((1 - $3))
    wait "$task"
    status=$?
    wait "$first" && [ $status = 0 ] || wrong "$1: both ranks train" < <(tail -3 "$2.0.out" "$2.1.out")
    passed "$1: both ranks train"
}

why="Rank 1 starts a minute after rank 0 has written its file, and must still read it. It must not delete the file, and
its age says nothing."
meets "a first run" first 0
{
    task killed 0
    written killed
    kill -KILL "$(pgrep -P "$task")"
    wait "$task"
} 2>/dev/null
[ -e note ] || fail_check "rank 0 left no file"
why="Rank 1 has found the file of the rank 0 that was killed. Does it look again when no process listens there?"
meets "started again" again 1
