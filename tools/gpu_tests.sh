#!/usr/bin/env bash
# gpu_tests.sh [REGEX] - runs the tests of the CUDA backend on this machine's GPUs; with REGEX, only those whose names
# match. Prints a line for each test, and writes the tests' output, and a description of the machine, to
# build/gpu-report.txt. ./ddp doctor --gpu runs it. It also runs on a machine without compilers, from a bundle
# (gpu_bundle.sh). There,
#
#   gpu_tests.sh run COMMAND...         runs a command with the bundle's libraries, e.g. tools/bench.py gpu
#
# Exit status: 0 all passed, 1 a test failed, 2 no test matches, 77 there is no GPU.
#
# DDP_LIBRARIES: folders with cuDNN, cuBLASLt and NCCL, with a colon between them. Without it, a bundle also looks at
# pip's packages of python3 (DDP_PYTHON).
set -uo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
root=${self%/tools/*}
. "$root/tools/shell.sh"
build=$root/build report=$root/build/gpu-report.txt

# Each test: its name, its limit in seconds, a function and its arguments. What no GPU has run yet comes first. The
# ranks of shared_* share the first GPU; those of nccl_* have a GPU each.
list_tests()
{
    local program name
    for name in shared nccl; do
        cat <<END
${name}_devices 60 ${name} twice cuda 2 02_data_parallel
${name}_2_ranks 60 ${name} alike cuda 2 03_ddp_fork
${name}_4_ranks 60 ${name} alike cuda 4 03_ddp_fork
${name}_2_launched 60 ${name} alike cuda 2 07_dist_eval --amp off
${name}_fp16 60 ${name} twice cuda 2 07_dist_eval --amp fp16 --compress fp16 --accumulate 2
${name}_sync_bn 60 ${name} twice cuda 2 07_dist_eval --amp off --sync-bn
${name}_killed 60 ${name} killed
END
    done | grep -v shared_devices
    echo "fused_gpt 120 fused_gpt --amp bf16"
    echo "fused_gpt_fp16 120 fused_gpt --amp fp16"
    for program in "$build"/tests/test_*_cuda; do
        echo "${program##*/} 240 compiled ${program##*/}"
    done
    cat <<'END'
steps_alike 240 steps_alike
twice_f32 120 twice cuda 1 01_single_gpu --no-tf32
twice_tf32 120 twice cuda 1 01_single_gpu --tf32
twice_fp16 120 twice cuda 1 05_ddp_amp --amp fp16
twice_bf16 120 twice cuda 1 05_ddp_amp --amp bf16
recorded_f32 120 recorded --amp off --no-tf32
recorded_tf32 120 recorded --amp off --tf32
recorded_fp16 120 recorded --amp fp16 --accumulate 2
recorded_gpt 120 recorded_gpt --amp off
recorded_gpt_fp16 120 recorded_gpt --amp fp16
gloo_2_ranks 120 alike cuda-gloo 2 03_ddp_fork
gloo_4_ranks 120 alike cuda-gloo 4 03_ddp_fork
gloo_2_launched 120 alike cuda-gloo 2 07_dist_eval --amp off
gloo_2_sync_bn 120 twice cuda-gloo 2 03_ddp_fork --sync-bn
END
    for name in memcheck initcheck synccheck; do
        echo "${name}_resnet18 240 sanitize $name cuda 1 01_single_gpu --train-samples 24 -b 8"
        echo "${name}_fp16 240 sanitize $name cuda 1 05_ddp_amp --amp fp16 --train-samples 24 -b 8"
    done
}

# --- checks of the steps ---------------------------------------------------------------------------------------------

small=(--data synthetic --train-samples 256 --test-samples 64 -b 32 -j 1 --epochs 1 -p 4 --deterministic)

# command_of BACKEND RANKS STEP OPTION...: sets `command` to the command that trains RANKS ranks of the step
command_of() { step_command "$build/$1/$3" "$2" "${@:4}"; }
hash_of() { "$@" >out 2>&1 || { cat out >&2; return 1; }; sed -n 's/^weight hash: //p' out; }
same() { echo "$1: $2 and $3"; [ -n "$2" ] && [ "$2" = "$3" ]; }
skip() { echo "skipped: $1"; exit 77; }

compiled() { "$build/tests/$1"; }
shared() { CUDA_VISIBLE_DEVICES=$(cut -d, -f1 <<<"${CUDA_VISIBLE_DEVICES:-0}") "$@"; }
nccl() { [ "$(count_gpus)" -ge 2 ] || skip "there is one GPU"; "$@"; }

# With one rank or device, all steps compute the same bits.
steps_alike()
{
    local folder hash first='' more
    for folder in "$build"/cuda/0*; do
        more=()
        [[ $folder != */0[567]_* ]] || more=(--amp off)
        command_of cuda 1 "${folder##*/}" "${small[@]}" "${more[@]}"
        hash=$(hash_of "${command[@]}")
        first=${first:-$hash}
        same "${folder##*/}" "$hash" "$first" || return 1
    done
}

# twice BACKEND RANKS STEP OPTION...: two runs give the same bits.
twice()
{
    command_of "${@:1:3}" "${small[@]}" "${@:4}"
    same "twice" "$(hash_of "${command[@]}")" "$(hash_of "${command[@]}")"
}

# A recorded step gives the same bits as one with --slow-network 1e6, which is not recorded. The last batch is short.
recorded()
{
    command_of cuda 1 07_dist_eval "${small[@]}" --epochs 2 --train-samples 250 "$@"
    same "recorded, and not" "$(hash_of "${command[@]}")" "$(hash_of "${command[@]}" --slow-network 1e6)"
}
recorded_gpt() { recorded -a gpt --data "text:$self" --dropout 0.1 --max-steps 40 "$@"; }

# A GPT learns the same with cuDNN's fused attention as without. The last line says whether cuDNN's was used.
fused_gpt()
{
    local which losses=()
    command_of cuda 1 07_dist_eval "${small[@]}" --no-deterministic -a gpt --data "text:$root/tools/bench.py" \
        --layers 2 --block 128 -b 4 --train-samples 16 --test-samples 4 "$@"
    for which in plain fused; do
        DDP_ATTENTION=$which "${command[@]}" >out 2>&1 || { cat out >&2; return 1; }
        losses+=("$(sed -n 's/.*== test: loss: \([0-9.]*\).*/\1/p' out)")
    done
    echo "loss ${losses[0]}; with DDP_ATTENTION=fused ${losses[1]}, $(sed -n 's/.*== attention: //p' out)"
    awk -v plain="${losses[0]}" -v fused="${losses[1]}" 'BEGIN { exit !(plain > 0 && (plain - fused)^2 < 1e-3) }'
}

# alike BACKEND RANKS STEP OPTION...: the losses and weights of one process, and the same bits twice.
alike()
{
    local backend=$1 ranks=$2 step=$3
    . "$root/tests/ranks.sh"
    lenet+=(--deterministic --no-tf32)               # whether an engine uses TF32 depends on the batch
    one || { cat one.out; return 1; }
    # shellcheck disable=SC2317  # same_as_one calls it
    start() { shift 2; command_of "$backend" "$ranks" "$step" "$@"; "${command[@]}"; }
    same_as_one start "$ranks" "${@:4}" || return 1
    command_of "$backend" "$ranks" "$step" "${lenet[@]}" -b $((batch / ranks)) "${@:4}"
    same "twice" "$(sed -n 's/^weight hash: //p' ranks.out)" "$(hash_of "${command[@]}")"
}

# A killed rank is named, and launch starts all again.
killed()
{
    command_of cuda 2 07_dist_eval "${small[@]}" -a lenet --amp off --epochs 1000 --save k.st --save-every 2 \
        --resume auto
    timeout 100 "${command[0]}" --max-restarts 1 "${command[@]:1}" >out 2>&1 &
    until grep -q '== saved' out || ! kill -0 $!; do sleep 0.1; done
    kill -KILL "$(sed -n 's/.* global rank: 1 of 2: .* pid //p' out)"
    until sed '1,/restart 1 of 1/d' out | grep -q '== step' || ! kill -0 $!; do sleep 0.1; done
    kill -TERM $!
    wait $!
    tail -3 out
    grep -q "rank 1 of 2 .* was killed by signal 9" out && sed '1,/restart 1 of 1/d' out | grep '== step' | head -1
}

# sanitize TOOL BACKEND RANKS STEP OPTION...
sanitize()
{
    local tool=$1 sanitizer
    sanitizer=$(PATH=$PATH:/usr/local/cuda/bin type -P compute-sanitizer) || skip "there is no compute-sanitizer"
    command_of "${@:2:3}" "${small[@]}" "${@:5}"
    case $tool in
    memcheck) set -- --report-api-errors no ;;      # NCCL looks for functions that the driver may lack
    synccheck) set -- --kernel-name kernel_substring=s_loop ;;     # slow: only our kernels
    *) set -- ;;
    esac
    "$sanitizer" --tool "$tool" "$@" --error-exitcode 99 "${command[@]}" && echo "$tool: no error"
}

# --- the table -------------------------------------------------------------------------------------------------------

# In a bundle: the libraries that it carries, then those of this machine.
set_libraries()
{
    local folders
    [ -f "$root/about" ] || return 0
    folders=$("${DDP_PYTHON:-python3}" -c 'import glob, nvidia; print(*(f for p in nvidia.__path__ for f in
        sorted(glob.glob(p + "/*/lib"))), sep=":")' 2>/dev/null)
    export LD_LIBRARY_PATH=$root/lib:${DDP_LIBRARIES:-}:${LD_LIBRARY_PATH:-}:$folders:/usr/local/cuda/lib64
}

print_machine()
{
    cat "$root/about" 2>/dev/null || git -C "$root" describe --always --dirty
    echo "$(uname -srm), $(sed -n 's/^PRETTY_NAME=//p' /etc/os-release), $(nproc) cores"
    env | grep -E '^(CUDA|NCCL|DDP|OMP)_' | grep -v TOKEN | sort
    nvidia-smi
    nvidia-smi topo -m
}

if [ "${1:-}" = --one ]; then           # inside tests/run.sh
    cd "$TMP" && "${@:2}"
    exit
fi
set_libraries
if [ "${1:-}" = run ]; then
    DDP_PYTHON=${DDP_PYTHON:-$(type -P python3)} exec "${@:2}"
fi
"$build/tests/test_streams_cuda" >"$report" 2>&1
[ $? != 77 ] || { say "there is no GPU, or no driver: $(tail -1 "$report")"; exit 77; }
print_machine >"$report" 2>&1
passed=0 failed=0 skipped=0
export BUILD=$build/cuda SRC=$root
while read -r name limit words; do
    [[ $name =~ ${1:-.} ]] || continue
    began=$SECONDS
    # shellcheck disable=SC2086  # several words
    "$root/tests/run.sh" $((limit * ${DDP_LIMITS:-1})) "$self" --one $words >"$build/gpu-test.log" 2>&1 </dev/null
    case $? in
    0) verdict=passed passed=$((passed + 1)) ;;
    77) verdict=skipped skipped=$((skipped + 1)) ;;
    *) verdict=FAILED failed=$((failed + 1)) ;;
    esac
    printf '%-28s %-8s %4d s  %.90s\n' "$name" $verdict $((SECONDS - began)) "$(tail -1 "$build/gpu-test.log")" |
        tee -a "$report"
    sed 's/^/    | /' "$build/gpu-test.log" >>"$report"
    [ $verdict != FAILED ] || tail -12 "$build/gpu-test.log" | sed 's/^/    | /'
done < <(list_tests)
[ $((passed + failed + skipped)) -gt 0 ] || die_usage "no test's name matches ${1:-.}" "tools/gpu_tests.sh"
echo "$passed passed, $failed failed, $skipped skipped" | tee -a "$report"
say "report: $report"
[ $failed = 0 ]
