# shellcheck shell=bash disable=SC2034,SC2154
# Trains with one thread per rank and with two, then checks what the forking process did before it forked.
# fails with: the process that forks
build --with check.c --wrap fork --wrap device_open
learner one 2 --threads 1 --max-steps 2
passed "two ranks train with one thread each"
rm -f calls
try_learner two 2 --threads 2 --max-steps 2 --timeout 4
if [ "$status" != 0 ]; then
    why="The ranks have not finished a single step. They fail where they first need their threads."
    wrong "two ranks train with two threads each" < <(
        awk '$1 == "fork" { n = $3 } END { print "threads of the process that forks: " n " (expected: 1)" }' calls
        last_lines two 5)
fi
passed "two ranks train with two threads each"

why="The children inherit the memory of those threads and the locks they hold, but not the threads themselves."
equal "the process that forks has one thread" 1 "$(awk '$1 == "fork" { print $3 }' calls | sort -nu | tail -1)"
why="The process has one thread, but it opens a device before it forks. With CUDA, no child could then use a GPU."
equal "the process that forks opens no device" "no device" "$(awk '
    $1 == "fork" { forks[$2] = 1 } $1 == "open" { opens[$2] = 1 }
    END { for (pid in forks) n += pid in opens; print n ? "a device" : "no device" }' calls)"
