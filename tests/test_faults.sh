#!/usr/bin/env bash
# ctest: PROCESSORS all TIMEOUT 600
# Five of the seeded faults in tests/faults/, chosen at random: each must turn a test red. `tests/faults.sh prove` does
# the same with all of them, and `tests/faults.sh prove NAME` with one that is named here.
. "$SRC/tests/test.sh"
cd "$TMP" || exit 1
FAULTS_WORK=$TMP/work "$SRC/tests/faults.sh" prove --random 5 | tee said
check "all five are caught" grep -qx "5 faults, 0 not caught" said
test_done
