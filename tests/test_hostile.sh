#!/usr/bin/env bash
# Files of unknown origin (checkpoints, timelines, metrics) must not harm the tools that read them. A tool refuses a bad
# file with a short message, or shows it as text. tests/fuzz/fuzz_checkpoint.c changes the other parts of a checkpoint.
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
"$BUILD/say" --count 9 --temperature 100 --threads 1 sizes/controls.st.good >said
check "it says something" test "$(wc -c <said)" -gt 9
check "no control characters reach a terminal" not grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' said

cat >good.jsonl <<'END'
{"event":"config","device":"CPU","cores":2,"options":{"threads":1,"bucket_mb":25}}
{"event":"step","epoch":1,"step":1,"steps":9,"loss":2.3,"acc":10,"running_loss":2.3,"running_acc":10}
END
python3 - <<'END' >good.json
print("[")
for step in range(12):
    for rank in range(2):
        for i, name in enumerate(("forward", "backward", "optimizer")):
            print(f'{{"ph":"X","pid":{rank},"tid":1,"ts":{1e4 * step + 3e3 * i},"dur":2900,"name":"{name}"}},')
        print(f'{{"ph":"X","pid":{rank},"tid":2,"ts":{1e4 * step + 4e3},"dur":2000,"name":"all_reduce 1.5 MB",'
              f'"args":{{"call":"gradients #{step}"}}}},')
END
for tool in "why.py" "plot.py -o page.html"; do
    # shellcheck disable=SC2086  # several words
    expect 0 "" "$SRC/tools/"$tool good.json good.jsonl
done
deep=$(printf '[%.0s' {1..100000})
escape='\u001b]0;hi\u0007'
huge=$(printf '9%.0s' {1..400})
while IFS='|' read -r name line; do
    for tool in "why.py" "plot.py -o page.html"; do
        if [[ $line == *event* ]]; then
            { echo "$line"; cat good.jsonl; } >bad.jsonl
            set -- good.json bad.jsonl
        else
            { cat good.json; echo "$line,"; } >bad.json
            set -- bad.json
        fi
        # shellcheck disable=SC2086
        refused "$tool, $name" "$SRC/tools/"$tool "$@"
        check "$tool, $name: no escape sequence" not grep -q $'\e' "$TMP/output"
    done
done <<END
options are a list|{"event":"config","options":[]}
a huge number|{"event":"config","cores":$huge}
no number|{"event":"step","epoch":1,"step":1,"steps":9,"loss":"<"}
deep|$deep
a text as pid|{"ph":"B","pid":"<img src=x>","tid":1,"ts":1,"name":"a"}
a huge time|{"ph":"B","pid":0,"tid":1,"ts":$huge,"name":"a"}
not a number|{"ph":"B","pid":0,"tid":1,"ts":NaN,"name":"a"}
an escape sequence|{"ph":"B","pid":0,"tid":1,"ts":1e99,"name":"a$escape","$escape":1e99}
END
echo '{"ph":"B","tid":1,"ts":1,"name":"a"},' >>good.json
expect 1 "an event has no 'pid'" "$SRC/tools/why.py" good.json
for content in "" "{" $'\xff\xfe' '[\n[]' "index,label"; do
    printf '%b' "$content" >odd
    for tool in why plot; do refused "$tool, $(printf %q "$content")" "$SRC/tools/$tool.py" odd; done
done

test_done
