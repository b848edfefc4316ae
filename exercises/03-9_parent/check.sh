# shellcheck shell=bash disable=SC2034,SC2154
# Trains with one thread per rank and with two, then checks what the forking process did before it forked, in both runs.
# fails with: the process that forks
build --with check.c --wrap fork --wrap device_open --wrap device_count
learner one 2 --threads 1 --max-steps 2
passed "two ranks train with one thread each"
try_learner two 2 --threads 2 --max-steps 2 --timeout 4
if [ "$status" != 0 ]; then
    why="The ranks have not finished a single step. They fail where they first need their threads."
    wrong "two ranks train with two threads each" < <(
        awk '$1 == "fork" { n = $3 } END { print "threads of the process that forks: " n " (expected: 1)" }' calls
        last_lines two 5)
fi
why="The ranks train, but each computes with fewer threads than --threads asks for."
equal "two ranks train with two threads each" "2 threads" "$(value two.0.jsonl end threads) threads"

why="The children inherit the memory of those threads and the locks they hold, but not the threads themselves."
equal "the process that forks has one thread" 1 "$(awk '$1 == "fork" { print $3 }' calls | sort -nu | tail -1)"
# by_parent CALL FOUND: prints FOUND if a process that forks makes this call, in any of the runs, and "no FOUND" if not.
by_parent()
{
    awk -v call="$1" -v found="$2" '$1 == "fork" { forks[$2] = 1 } $1 == call { calls[$2] = 1 }
        END { for (pid in forks) n += pid in calls; print n ? found : "no " found }' calls
}
why="The process has one thread, but it opens a device before it forks, if only with --threads 1. With CUDA, no child
could then use a GPU."
equal "the process that forks opens no device" "no device_open" "$(by_parent open device_open)"
why="device_count starts CUDA, in which no child could then use a GPU. See comm_gpus in common/comm.h."
equal "the process that forks counts no devices" "no device_count" "$(by_parent count device_count)"
