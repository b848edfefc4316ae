#!/usr/bin/env bash
# run.sh SECONDS COMMAND... - runs one test, and ends with its exit status. The test gets its own scratch
# directory, $TMP, which is deleted afterwards. A test that takes longer than SECONDS is ended, and fails. A
# status of 0 becomes 1 if the test leaves a process, or a file in /dev/shm. If a file of $NEEDS (a list with colons) is
# not there, the test is skipped.
set -u
[ -n "${FOLLOWS:-}" ] || FOLLOWS=yes exec setpriv --pdeathsig TERM "$0" "$@"     # ends with ctest
unset FOLLOWS
limit=$1
shift

IFS=: read -ra needs <<<"${NEEDS:-}"
for file in "${needs[@]}"; do
    [ -e "$file" ] || { echo "skipped: $file is not built"; exit 77; }
done
unset NEEDS

TMP=$(mktemp -d "${TMPDIR:-/tmp}/ddp-test.XXXXXX") || exit 1
export TMP TMPDIR=$TMP
export GOMP_SPINCOUNT=1000          # several tests run at the same time: see cmd_run in ddp
export MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4000000000  # keeps freed memory: page faults are slow in VMs
export UCX_VFS_ENABLE=n             # UCX, which Debian 13's libgloo loads, would start a thread before main
mark=DDP_TEST_RUN=${TMP##*.}-$$     # every process that the test starts has it in its environment

trap 'chmod -R u+rwX "$TMP" 2>/dev/null; rm -rf "$TMP"' EXIT
trap 'stop_left; exit 143' TERM
trap 'stop_left; exit 130' INT

left_processes()
{
    grep -lzxF "$mark" /proc/[0-9]*/environ 2>/dev/null | tr -dc '0-9\n'
}

stop_left()
{
    local pid
    trap '' PIPE                    # ctest, which reads this output, may be gone
    for pid in $(left_processes); do
        echo "run.sh: left running: $(ps -o pid=,args= -p "$pid")"
        kill -KILL "$pid"
    done
}

# Lists the files in /dev/shm, without those that test_run.sh leaves on purpose. Killed processes leave files of LLVM's
# OpenMP; these are left out, too.
list_shm()
{
    find /dev/shm -mindepth 1 -maxdepth 1 -uid "$EUID" ! -name "${SHM_OF_OTHERS-ddp-test-run-*}" \
        ! -name '__KMP_REGISTERED_LIB_*' -printf '%f\n' 2>/dev/null | sort
}
# New files that no process has open or mapped. The files of other tests are open or mapped.
left_shm()
{
    local file
    comm -13 <(echo "$shm_before") <(list_shm) | while read -r file; do
        grep -qsF "/dev/shm/$file" /proc/[0-9]*/maps ||
            find /proc/[0-9]*/fd -lname "/dev/shm/$file" 2>/dev/null | grep -q . || echo "/dev/shm/$file"
    done
}

shm_before=$(list_shm)

# --foreground: Ctrl-C also reaches the test. timeout then does not end the test's children; stop_left does.
env --default-signal=INT,QUIT "$mark" timeout --foreground --kill-after=10 "$limit" "$@" &
wait $!                             # a signal interrupts it
status=$?
[ $status = 124 ] && echo "run.sh: stopped after $limit s"

for _ in 1 2 3 4 5 6 7 8 9 10; do
    shm=$(left_shm)
    [ -z "$(left_processes)$shm" ] && exit $status
    sleep 0.2
done
stop_left
for file in $shm; do
    echo "run.sh: not deleted: $file"
done
[ $status = 0 ] && status=1
exit $status
