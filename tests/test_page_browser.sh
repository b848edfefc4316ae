#!/usr/bin/env bash
# ctest: LABELS deadlines
# The page of ./ddp run --watch in a headless Chromium. Its buttons pause, continue and kill ranks.
. "$SRC/tests/test.sh"
PYTHONPATH=$SRC/tests python3 -c 'import browser, sys; sys.exit(not browser.find())' 2>/dev/null || {
    echo "skipped: there is no Chromium: apt install chromium"
    exit 77
}
expect 0 "" python3 "$SRC/tests/page.py" "$BUILD"/04_ddp_launcher/{launch,train} browser
test_done
