#!/usr/bin/env bash
# The page of ./ddp run --watch over HTTP: who may see it, which events it gets, and that it pauses and kills ranks.
# ctest: LABELS deadlines
. "$SRC/tests/test.sh"
type -P python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
expect 0 "" python3 "$SRC/tests/page.py" "$BUILD"/04_ddp_launcher/{launch,train}
test_done
