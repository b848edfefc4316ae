#!/usr/bin/env bash
# ctest: PROCESSORS all TIMEOUT 600
# Tries three of the seeded faults in tests/faults/: a test must fail for each. A checksum of the sources chooses them.
# `tests/faults.sh prove` tries all, `tests/faults.sh prove NAME` only one.
. "$SRC/tests/test.sh"
FAULTS_WORK=$TMP/work "$SRC/tests/faults.sh" prove --sample 3 | tee said
check "all three are caught" grep -qx "3 faults, 0 not caught" said
test_done
