#!/usr/bin/env bash
# --usage writes samples of the process to the metrics; with CUDA also of its GPU, through NVML (here our stand-in).
# shellcheck disable=SC2317  # check calls the functions
. "$SRC/tests/test.sh"
cd "$TMP" || exit 1
small=(--arch lenet --data synthetic --train-samples 2048 --test-samples 64 -b 64 --epochs 1 --threads 1)

# sane FILE: there are several samples, their times rise, and no number is absurd.
sane()
{
    grep '"event":"usage"' "$1" | sed 's/[^0-9.,]//g' | awk -F, '
        $2 < last || $3 < 0 || $3 > 6400 || $4 < 0 || $4 > 100 || $5 < 5 || $5 > 4000 || $6 < 0 { wrong = 1 }
        { last = $2 } END { exit wrong || NR < 3 }'
}
check "it trains" "$BUILD/01_single_gpu/train" "${small[@]}" --metrics a.jsonl --usage 20
check "samples of one process" sane a.jsonl
check "its other events are there" test "$(grep -c '"event":"\(step\|epoch\|end\)"' a.jsonl)" -ge 3
check "two ranks" "$BUILD/03_ddp_fork/train" -n 2 "${small[@]}" --metrics 'b.%r.jsonl' --usage 20
for rank in 0 1; do check "samples of rank $rank" sane b.$rank.jsonl; done
check "it trains without the option" "$BUILD/01_single_gpu/train" "${small[@]}" --metrics c.jsonl
check "without the option there are no samples" not grep -q '"event":"usage"' c.jsonl

fake=${BUILD%/cpu}/fake/01_single_gpu/train
if [ -x "$fake" ]; then
    cat >nvml.c <<'END'
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { *device = (void *)1; return strncmp(uuid, "GPU-", 4); }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *u) { u[0] = 93; u[1] = 40; return d ? 0 : 1; }
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *m) { m[0] = 80000000000; m[1] = 1; m[2] = 5230000000;
    return d ? 0 : 1; }
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = 412000; return d ? 0 : 1; }
int nvmlDeviceGetClockInfo(void *d, int which, unsigned *mhz) { *mhz = 1755; return d && which == 1 ? 0 : 1; }
int nvmlDeviceGetTemperature(void *d, int which, unsigned *c) { (void)d, (void)which, (void)c; return 3; }
END
    check "a stand-in for NVML" cc -shared -fPIC -o libnvidia-ml.so.1 nvml.c
    check "it trains with it" env LD_LIBRARY_PATH="$TMP" "$fake" "${small[@]}" \
        --train-samples 128 --metrics d.jsonl --usage 50
    check "NVML's numbers are in the metrics" grep -q '"gpu":93,"gpu_mb":5230,"gpu_watt":412,"gpu_mhz":1755}' d.jsonl
fi
test_done
