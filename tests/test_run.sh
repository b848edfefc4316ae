#!/usr/bin/env bash
# run.sh must report timeouts and processes left running.
# shellcheck disable=SC2016,SC2317  # words in single quotes are for the sh inside; run is called by expect
. "$SRC/tests/test.sh"
run() { "$SRC/tests/run.sh" "$@"; }

expect 0 "hello" run 5 echo hello
expect 77 "" run 5 sh -c 'exit 77'
expect 0 "/" run 5 sh -c 'touch "$TMP/file" && echo "$TMP"'
check "its scratch directory is gone" test ! -e "$(cat "$TMP/output")"
expect 124 "stopped after 1 s" run 1 sleep 20
expect 1 "left running:" run 5 sh -c 'setsid sleep 20 >/dev/null 2>&1 & echo started'
check "the process is stopped" test -z "$(pgrep -f '^sleep 20$')"

test_done
