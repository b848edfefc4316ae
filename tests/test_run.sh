#!/usr/bin/env bash
# run.sh must report timeouts, processes left running and files left in /dev/shm.
# shellcheck disable=SC2016,SC2317  # words in single quotes are for the sh inside; run is called by expect
. "$SRC/tests/test.sh"
export SHM_OF_OTHERS=
run() { "$SRC/tests/run.sh" "$@"; }

expect 0 "hello" run 5 echo hello
expect 3 "" run 5 sh -c 'exit 3'
expect 77 "" run 5 sh -c 'exit 77'
expect 0 "/" run 5 sh -c 'touch "$TMP/file" && echo "$TMP"'
check "its scratch directory is gone" test ! -e "$(cat "$TMP/output")"
expect 124 "stopped after 1 s" run 1 sleep 600
expect 124 "left running:" run 1 sh -c 'sleep 20; true'
expect 1 "left running:" run 5 sh -c "setsid sleep 20.$$ >/dev/null 2>&1 & echo started"
check "the process is stopped" until_so 10 not pgrep -f "^sleep 20[.]$$\$"

shm=/dev/shm/ddp-test-run-$$
if [ -w /dev/shm ]; then
    expect 1 "not deleted: $shm" run 5 touch "$shm"
    rm -f "$shm"
    # A file that a process has open belongs to a different test.
    { until [ -e begun ]; do sleep 0.1; done; exec sleep 60 3>"$shm"; } &
    expect 0 "" run 30 sh -c 'touch begun; until [ -e "$1" ]; do sleep 0.1; done' - "$shm"
    kill $!
    wait 2>/dev/null
    rm -f "$shm"
fi
test_done
