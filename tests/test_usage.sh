#!/usr/bin/env bash
# ./ddp usage samples a command and the processes that it starts; with nvidia-smi (here a stand-in) also the GPUs.
# shellcheck disable=SC2317  # check calls the functions
. "$SRC/tests/test.sh"

# Times do not fall, and no number is absurd. The first sample may see a process that has hardly begun. So only the
# largest sample of memory must reach 5 MB.
sane()
{
    sed 's/[^0-9.,]//g' "$1" | awk -F, '
        $2 < last || $3 < 0 || $3 > 6400 || $4 < 0 || $4 > 100 || $5 < 0 || $5 > 4000 || $6 < 0 { wrong = 1 }
        { last = $2; if ($5 > most) most = $5 } END { exit wrong || most < 5 || NR < 3 }'
}
mkdir bin
cat >bin/nvidia-smi <<'END'
#!/bin/sh
query=utilization.gpu,memory.used,power.draw,clocks.sm,temperature.gpu
[ "$*" = "--query-gpu=$query --format=csv,noheader,nounits" ] &&
    printf '%s\n' "90, 5000, 400.5, 1755, [N/A]" "100, 300, 100.0, 1700, [N/A]"
END
chmod +x bin/nvidia-smi
check "it passes the command's output and status on" test \
    "$("$SRC/ddp" usage -o a.jsonl --every 0.1 "$BUILD/03_ddp_fork/train" -n 2 --arch convnet --data synthetic \
        --train-samples 4096 --test-samples 64 -b 64 --epochs 1 --threads 1 | grep -c "weight hash")" = 1
check "samples of two ranks" sane a.jsonl
expect 7 "" "$SRC/ddp" usage -o b.jsonl --every 0.1 env PATH="$PATH" sh -c 'sleep 1; exit 7'
check "no GPU" not grep -q gpu b.jsonl
expect 0 "" env PATH="$TMP/bin:$PATH" "$SRC/ddp" usage -o c.jsonl --every 0.1 sleep 1
check "nvidia-smi's numbers" grep -q '"gpu": 95.0, "gpu_mb": 5300.0, "gpu_watt": 500.5, "gpu_mhz": 1755.0}' c.jsonl
"$SRC/ddp" usage -o d.jsonl sleep 54321 &
check "the command has begun" until_so 9 pgrep -xf "sleep 54321"
kill $!
check "the command ends with it" until_so 9 not pgrep -xf "sleep 54321"
for every in inf nan 0; do expect 2 "--every is a number of seconds above 0" "$SRC/ddp" usage --every $every true; done
expect 2 "which command?" "$SRC/ddp" usage -o c.jsonl
echo '{"event":"config"}' >metrics.jsonl
expect 2 "metrics.jsonl would be overwritten" "$SRC/ddp" usage -o metrics.jsonl touch begun
check "it is kept, and the command has not begun" test -s metrics.jsonl -a ! -e begun
expect 0 "" "$SRC/ddp" usage -o c.jsonl true
expect 1 "no/such/file" "$SRC/ddp" usage -o no/such/file true
test_done
