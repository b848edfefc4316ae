#!/usr/bin/env bash
# The table in docs/gpu.md names only tests that exist, and reports fill it.
. "$SRC/tests/test.sh"
status=$SRC/tools/gpu_status.sh

mkdir "$TMP/docs" "$TMP/tools"
cp "$SRC/docs/gpu.md" "$TMP/docs"
cp "$status" "$TMP/tools"
cp -r "$SRC/docs/gpu-reports" "$TMP/docs" 2>/dev/null
"$TMP/tools/gpu_status.sh" --write
check "docs/gpu.md is as gpu_status.sh writes it" diff "$SRC/docs/gpu.md" "$TMP/docs/gpu.md"

# --- each test that is named exists ---------------------------------------------------------------------------------

has_backend() { grep -qE "ctest:.* BACKENDS.* $2\b" "$SRC/tests/$1.c"; }
exists()
{
    case $1 in
    - | \?) ;;
    *_fake) has_backend "${1%_fake}" fake ;;
    test_*_cuda) has_backend "${1%_cuda}" cuda || [ "$1" = test_fake_cuda ] ;;
    test_*) [ -f "$SRC/tests/$1.sh" ] ;;
    *check_*) grep -q "for tool in .*${1%%_*}" "$SRC/tools/gpu_bundle/run.sh" ;;
    *) grep -q "^check_$1()" "$SRC/tools/gpu_bundle/run.sh" ;;
    esac
}
rows=0
while IFS='|' read -r what tests; do
    rows=$((rows + 1))
    for name in ${tests//|/ }; do
        check "$what: the test $name exists" exists "$name"
    done
done < <("$status" --rows)
check "there are rows" test $rows -gt 20
check "a test that does not exist is noticed" not exists test_nonsense_fake
check "a test without the stand-in is noticed" not exists test_tcp_fake

# --- reports fill the table -------------------------------------------------------------------------------------------

printf '%s\n' "gpu: 2 H200, 580.1" "result: test_ops_cuda pass" "result: test_streams_cuda FAIL" \
    "result: twice_tf32 pass" "result: recorded_tf32 skipped" "result: nccl_2_ranks pass" >"$TMP/report"
"$status" "$TMP/report" >"$TMP/output"
check "a test that passed" grep -qF "| operations in f32 | yes | passes | passed: 2 H200, 580.1 |  |  |" "$TMP/output"
check "a test that failed" grep -qF "| **failed on 2 H200, 580.1**: test_streams_cuda |  |" "$TMP/output"
check "one test of two" grep -qF "| TF32 | yes |  | not yet |" "$TMP/output"
check "on two GPUs" grep -qF "| 03: NCCL | yes | passes | not yet | passed: 2 H200, 580.1 |  |" "$TMP/output"
test_done
