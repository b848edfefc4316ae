#!/usr/bin/env bash
# A checkpoint of unknown origin must not harm ./ddp say, which refuses it with a short message.
# tests/fuzz/fuzz_checkpoint.c changes the other parts of a checkpoint.
. "$SRC/tests/test.sh"
type -P python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }

# refused WHAT COMMAND...: status 1 or 2, and at most three lines, none of them of a crash.
refused()
{
    local what=$1 status=0
    shift
    "$@" >"$TMP/output" 2>&1 </dev/null || status=$?
    check "$what: refused (status $status)" test $status = 1 -o $status = 2
    check "$what: in a line and a hint" test "$(wc -l <"$TMP/output")" -le 3
    check "$what: no traceback" not grep -qE 'Traceback|ERROR: AddressSanitizer|runtime error' "$TMP/output"
}

for _ in {1..99}; do seq -s '' 0 9; done >digits.txt
expect 0 "weight hash" "$BUILD/01_single_gpu/train" -a gpt --data text:digits.txt --layers 1 --heads 2 --width 16 \
    --block 12 -b 16 --epochs 1 --threads 1 --save gpt.st
mkdir sizes
check "changed checkpoints" python3 "$SRC/tests/hostile.py" gpt.st sizes
for file in sizes/*.st; do refused "$file" "$BUILD/say" --count 1 --threads 1 "$file"; done
test_done
