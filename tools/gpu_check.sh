# shellcheck shell=bash disable=SC2154  # colors and say: shell.sh; from the root of the tree
# gpu_check.sh - ./ddp does not train on GPUs on which gpu_check.c fails. The verdicts are in build/gpu_check/KEY/GPU.
# KEY is a hash of driver, GPUs, libraries and build, because several machines may share build/. A run checks
# only its own GPUs: an unused GPU may have no free memory.

gpu_check_limit=${DDP_GPU_LIMIT:-60}            # seconds for a GPU

# A hash of what a verdict depends on.
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

# Writes the CPU's numbers to $numbers. If it cannot, sets $verdict to "unchecked: WHY".
compute_numbers()
{
    if [ ! -x build/cpu/gpu_check ]; then
        verdict="unchecked: the CPU backend, with which the GPU is compared, is not built; ./ddp doctor shows why"
    elif ! build/cpu/gpu_check write "$numbers" >build/gpu_check/log 2>&1; then
        verdict="unchecked: the same check failed on the CPU: see build/gpu_check/log"
    fi
}

# Sets $verdict on GPU $1: "ok: WHAT" or "failed: WHY".
check_one_gpu()
{
    local said='' status begin=$SECONDS log=build/gpu_check/log
    # timeout kills the program. If the driver keeps the program alive even then, read stops waiting.
    IFS= read -r -d '' -t $((gpu_check_limit + 10)) said < <(
        exec 2>&1
        timeout -k 5 "$gpu_check_limit" build/cuda/gpu_check compare "$numbers" "$1" || status=$?
        echo "status ${status:-0}"
    ) || true
    printf '%s' "$said" >"$log"
    status=$(sed -n '$s/^status //p' "$log")
    said=$(sed -E '/^(hint:|status )/d; s/^\[[^]]*\] //' "$log" | head -n 1)
    case ${status:-124} in
    0) verdict="ok: $said ($((SECONDS - begin)) s)" ;;
    4) verdict="failed: wrong numbers: $said" ;;
    77) verdict="failed: $said: CUDA_VISIBLE_DEVICES hides it, or there is no driver" ;;
    124) verdict="failed: no answer within $gpu_check_limit s" ;;
    137) verdict="failed: no answer within $gpu_check_limit s, or killed" ;;
    12[89] | 1[3-9]?) verdict="failed: the check crashed (SIG$(kill -l $((status - 128))))" ;;
    *) verdict="failed: $said" ;;
    esac
    # CUDA's, cuBLASLt's, cuDNN's words for a GPU that other programs use
    ! grep -qiE 'out of memory|allocation[ _]failed|busy or unavailable' "$log" || verdict="failed: no memory: $said"
}

# read_gpu_verdict [GPUS]: reads the stored verdicts on GPUs 0 to GPUS - 1 (default: on GPU 0). Sets $verdict to the
# first that is not "ok: ...", or else the last. A GPU without a stored verdict has an empty one.
read_gpu_verdict()
{
    local folder gpu
    verdict=
    [ -x build/cuda/gpu_check ] || return 0
    folder=build/gpu_check/$(gpu_check_key)
    for ((gpu = 0; gpu < ${1:-1}; gpu++)); do
        verdict=$(cat "$folder/$gpu" 2>/dev/null) || verdict=
        [[ $verdict == ok:* ]] || return 0
    done
}

# Prints the stored verdict on all GPUs or, if some are not checked yet, on the first.
stored_gpu_verdict()
{
    read_gpu_verdict "$(count_gpus)"
    [ -n "$verdict" ] || read_gpu_verdict
    echo "$verdict"
}

# check_gpu GPUS [again]: checks GPUs 0 to GPUS - 1, until one fails. Without "again", a stored verdict replaces the
# check. Sets $verdict to the last verdict. Stores each verdict, except a lack of memory or a missed time limit, which
# may be temporary.
check_gpu()
{
    local folder gpu numbers=build/gpu_check/cpu.$$
    verdict=
    mkdir -p build/gpu_check
    folder=build/gpu_check/$(gpu_check_key)
    compute_numbers
    for ((gpu = 0; gpu < $1; gpu++)); do
        [[ $verdict != unchecked:* ]] || break
        if [ "${2:-}" = again ] || ! verdict=$(cat "$folder/$gpu" 2>/dev/null); then
            check_one_gpu "$gpu"
        fi
        case $verdict in
        "failed: no memory"* | "failed: no answer"*) ;;
        *) mkdir -p "$folder" && echo "$verdict" >"$folder/$gpu" ;;
        esac
        [[ $verdict == ok:* ]] || break
    done
    rm -f "$numbers"
}

# trust_gpu GPUS: prints a new verdict, or a stored failure. Returns whether a run may use these GPUs.
trust_gpu()
{
    read_gpu_verdict "$1"
    if [ -z "$verdict" ]; then
        check_gpu "$1"
        say "GPU check ${verdict/#failed/${red}failed$plain}"
    elif [[ $verdict == failed:* ]]; then
        say "GPU check ${red}failed$plain:${verdict#failed:}"
    fi
    [[ $verdict == failed:* ]] || return 0
    hint "build/gpu_check/log has more; ./ddp doctor --gpu repeats the check; build/cuda/STEP/train trains without it"
    return 1
}
