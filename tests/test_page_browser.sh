#!/usr/bin/env bash
# ctest: LABELS deadlines
# The file of a run (./ddp plot RUN.json) in a headless Chromium, and what another program may have written into it.
. "$SRC/tests/test.sh"
PYTHONPATH=$SRC/tests python3 -c 'import browser, sys; sys.exit(not browser.find())' 2>/dev/null || {
    echo "skipped: there is no Chromium: apt install chromium"
    exit 77
}
expect 0 "" python3 "$SRC/tests/page.py" "$BUILD"/04_ddp_launcher/{launch,train} browser
test_done
