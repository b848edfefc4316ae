#!/usr/bin/env bash
# ctest: PROCESSORS all TIMEOUT 600 LABELS slow
# Tries three of the seeded faults in tests/faults/: a test must fail for each. `tests/faults.sh prove` tries all.
. "$SRC/tests/test.sh"
FAULTS_WORK=$TMP/work "$SRC/tests/faults.sh" prove --sample 3 | tee said
check "all three are caught" grep -qx "3 faults, 0 not caught" said
test_done
