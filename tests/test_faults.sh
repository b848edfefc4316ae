#!/usr/bin/env bash
# ctest: PROCESSORS all TIMEOUT 600
# Three of the seeded faults in tests/faults/: each must turn a test red. The sources' own sum chooses them, so a commit
# always tries the same ones. `tests/faults.sh prove` tries them all, and `tests/faults.sh prove NAME` one that is named here.
. "$SRC/tests/test.sh"
cd "$TMP" || exit 1
FAULTS_WORK=$TMP/work "$SRC/tests/faults.sh" prove --sample 3 | tee said
check "all three are caught" grep -qx "3 faults, 0 not caught" said
test_done
