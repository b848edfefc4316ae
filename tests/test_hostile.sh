#!/usr/bin/env bash
# Files that somebody else made - checkpoints, timelines, metrics, participants' folders - must not harm the tools that
# read them: each is refused in a line, or shown as text. (tests/fuzz/ tests the readers in common/.)
. "$SRC/tests/test.sh"
type -P python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }

# refused WHAT COMMAND...: it ends with status 1 or 2 and prints at most three lines, none of them of a crash.
refused()
{
    local what=$1 status=0
    shift
    "$@" >"$TMP/output" 2>&1 </dev/null || status=$?
    check "$what: refused (status $status)" test $status = 1 -o $status = 2
    check "$what: in a line and a hint" test "$(wc -l <"$TMP/output")" -le 3
    check "$what: no traceback" not grep -qE 'Traceback|ERROR: AddressSanitizer|runtime error' "$TMP/output"
}

# --- checkpoints: say ----------------------------------------------------------------------------------

for _ in {1..99}; do seq -s '' 0 9; done >digits.txt
expect 0 "weight hash" "$BUILD/01_single_gpu/train" -a gpt --data text:digits.txt --layers 1 --heads 2 --width 16 \
    --block 12 -b 16 --epochs 1 --threads 1 --save gpt.st
mkdir sizes
check "changed checkpoints" python3 "$SRC/tests/hostile.py" gpt.st sizes
for file in sizes/*.st; do refused "$file" "$BUILD/say" --count 1 --threads 1 "$file"; done
"$BUILD/say" --count 9 --temperature 100 --threads 1 sizes/controls.st.good >said
check "it says something" test "$(wc -c <said)" -gt 9
check "no control characters reach a terminal" not grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' said

test_done
