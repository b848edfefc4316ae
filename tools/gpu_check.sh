# shellcheck shell=bash disable=SC2154  # colors and say: shell.sh; from the root of the tree
# gpu_check.sh - ./ddp trains on a GPU only if gpu_check.c gets the CPU's results there. The verdict is stored in
# build/gpu_check, in one file per combination of driver, GPUs and build, since several machines may share the folder.

gpu_check_limit=${DDP_GPU_LIMIT:-60}            # seconds

# A hash of everything that a verdict depends on.
gpu_check_key()
{
    {
        nvidia-smi --query-gpu=uuid,name,driver_version --format=csv,noheader
        echo "visible: ${CUDA_VISIBLE_DEVICES-all}"
        cat build/cuda/gpu_check build/cpu/gpu_check
        # shellcheck disable=SC2046  # no library's path has a space
        stat -L -c '%n %s %Y' $(ldd build/cuda/gpu_check | awk '/=> \// { print $3 }')
    } 2>/dev/null | sha256sum | cut -c -16
}

# Sets $verdict: "ok: WHAT", "failed: WHY", or "unchecked: WHY".
run_gpu_check()
{
    local said='' status begin=$SECONDS numbers=build/gpu_check/cpu.$$ log=build/gpu_check/log
    mkdir -p build/gpu_check
    if [ ! -x build/cpu/gpu_check ]; then
        verdict="unchecked: the CPU backend, which it compares with, is not built; ./ddp doctor shows why"
        return
    elif ! build/cpu/gpu_check write "$numbers" >"$log" 2>&1; then
        verdict="unchecked: the same check failed on the CPU: see build/gpu_check/log"
        return
    fi
    # timeout kills the program. If the driver holds on to it even then, read stops waiting.
    IFS= read -r -d '' -t $((gpu_check_limit + 10)) said < <(
        exec 2>&1
        timeout -k 5 "$gpu_check_limit" build/cuda/gpu_check compare "$numbers" || status=$?
        echo "status ${status:-0}"
    ) || true
    printf '%s' "$said" >"$log"
    rm -f "$numbers"
    status=$(sed -n '$s/^status //p' "$log")
    said=$(sed -E '/^(hint:|status )/d; s/^\[[^]]*\] //' "$log" | head -n 1)
    case ${status:-124} in
    0) verdict="ok: $said ($((SECONDS - begin)) s)" ;;
    4) verdict="failed: wrong numbers: $said" ;;
    77) verdict="failed: $said: driver too old, or hidden by CUDA_VISIBLE_DEVICES" ;;
    124) verdict="failed: no answer within $gpu_check_limit s" ;;
    137) verdict="failed: killed, or no answer within $gpu_check_limit s" ;;
    12[89] | 1[3-9]?) verdict="failed: it crashed (SIG$(kill -l $((status - 128))))" ;;
    *) verdict="failed: $said" ;;
    esac
    ! grep -qiE 'out of memory|ALLOC_FAILED' "$log" || verdict="failed: no memory: $said"
}

# Sets $verdict to the stored one, or to nothing.
read_gpu_verdict()
{
    verdict=
    [ ! -x build/cuda/gpu_check ] || verdict=$(cat "build/gpu_check/$(gpu_check_key)" 2>/dev/null) || true
}

# Stores the verdict, except for a lack of memory, which may be temporary.
check_gpu()
{
    run_gpu_check
    case $verdict in
    unchecked:* | "failed: no memory"*) ;;
    *) echo "$verdict" >"build/gpu_check/$(gpu_check_key)" ;;
    esac
}

# Prints a new verdict, or a stored failure. Returns whether a run may use the GPU.
trust_gpu()
{
    read_gpu_verdict
    if [ -z "$verdict" ]; then
        check_gpu
        say "GPU check ${verdict/#failed/${red}failed$plain}"
    elif [[ $verdict == failed:* ]]; then
        say "GPU check ${red}failed$plain:${verdict#failed:}"
    fi
    [[ $verdict == failed:* ]] || return 0
    hint "build/gpu_check/log has more; ./ddp doctor --gpu repeats the check; build/cuda/STEP/train runs without it"
    return 1
}
