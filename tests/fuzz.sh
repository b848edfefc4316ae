#!/usr/bin/env bash
# fuzz.sh PROGRAM - lets libFuzzer search for 4 s from a copy of the corpus. Prints, in base64, the inputs that
# fail.
set -u
program=$1
if [ ! -x "$program" ]; then
    echo "skipped: $program is not built (needs clang)"
    exit 77
fi
name=${program##*/fuzz_}
cp -r "$SRC/tests/fuzz/corpus/$name" "$TMP/corpus" || exit 1
if "$program" -max_total_time=4 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$TMP/found-" "$TMP/corpus" >"$TMP/log" 2>&1; then
    grep -E '^(stat::number_of_executed_units|Done)|INITED|DONE' "$TMP/log"
    exit 0
fi
tail -60 "$TMP/log"
for file in "$TMP"/found-*; do
    echo "input: $(base64 -w0 <"$file")"
done
exit 1              # libFuzzer's own status is 77, which would say that the test was skipped
