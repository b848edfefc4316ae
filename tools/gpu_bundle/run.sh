#!/usr/bin/env bash
# run - tests and benchmarks of a bundle that tools/gpu_bundle.sh packed. In the bundle it is gpu-bundle/run.
set -uo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
. "$here/tools/shell.sh"
die_usage() { say "${red}ddp: $1$plain"; hint "${2:-./run help}"; exit 2; }

usage()
{
    cat <<'END'
./run - tests and benchmarks of the CUDA programs on this machine

  report [-o FILE]      doctor, ranks, test and sanitize, and a description of this machine, in FILE (default
                        results/report.txt)
  doctor                show driver, GPU, libraries and where they were found
  ranks                 check several NCCL ranks that share the first GPU; takes at most four minutes
  test [REGEX]          run all GPU tests, or those whose name matches; prints a table, writes a log for each
  sanitize [REGEX]      run compute-sanitizer (memcheck, racecheck, initcheck, synccheck) on training steps
  bench [OPTIONS]       compare training steps with PyTorch's on this GPU; details: ./run bench --help
  exec COMMAND...       run a command that finds the libraries: ./run exec build/cuda/01_single_gpu/train --epochs 1
  help                  show this page

Exit status: 0 all passed, 1 something failed, 2 wrong arguments, 77 nothing ran on a GPU.

  DDP_LIBRARIES=A:B     folders searched first for cuDNN, cuBLASLt and NCCL; then pip's packages (of DDP_PYTHON or
                        python3), LD_LIBRARY_PATH, CUDNN_ROOT, NCCL_ROOT, CUDA_HOME, /usr/local/cuda, the system
  DDP_RESULTS=FOLDER    folder for logs and tables (default results/)
  DDP_CIFAR10=FOLDER    CIFAR-10, for the benchmark; otherwise data/cifar-10-batches-bin, otherwise made-up images
END
}

about() { sed -n "s/^$1: //p" "$here/about"; }
programs=("$here/build/cuda/07_dist_eval/train" "$here/build/cuda-gloo/07_dist_eval/train" \
    "$here/build/cuda/07_dist_eval/launch")      # together they need every library

# --- libraries ----------------------------------------------------------------------------------------------------

python=${DDP_PYTHON:-python3}
first_path=${LD_LIBRARY_PATH:-}         # kept for other programs

# Folders that may hold NVIDIA's libraries: first DDP_LIBRARIES, then pip's packages, which PyTorch uses, then others.
list_folders()
{
    tr : '\n' <<<"${DDP_LIBRARIES:-}"
    "$python" - <<'END' 2>/dev/null
import glob, importlib.util
spec = importlib.util.find_spec("nvidia")
for folder in (spec.submodule_search_locations or []) if spec else []:
    print(*sorted(glob.glob(folder + "/*/lib")), sep="\n")
END
    tr : '\n' <<<"$first_path"
    printf '%s\n' {"${CUDNN_ROOT:-}","${NCCL_ROOT:-}","${CUDA_HOME:-}"}/{lib,lib64}
    printf '%s\n' /usr/local/cuda{,-1[3-9]*}/{lib,lib64}
    printf '%s\n' /usr/local/nvidia/lib64 /usr/lib/wsl/lib      # drivers of containers
}

in_cache() { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | awk -v name="$1" '$1 == name { print $NF; exit }'; }

# What the loader says of a program: its libraries, "NAME => PATH", and the missing libraries and functions.
trace() { LD_LIBRARY_PATH=$path LD_TRACE_LOADED_OBJECTS=1 LD_WARN=1 LD_BIND_NOW=1 "$1" 2>&1; }
trace_all() { local program; for program in "${programs[@]}"; do trace "$program"; done | sort -u; }
# Names of libraries that are missing or too old; if there are none, of missing functions.
lacking()
{
    local said names
    said=$(trace_all)
    names=$(sed -nE 's/^[[:space:]]*([^ ]+) => not found.*/\1/p; s,.*/([^/:]+): version .* not found.*,\1,p
        s/.*error while loading shared libraries: ([^:]+): .*/\1/p' <<<"$said")
    [ -n "$names" ] || names=$(sed -nE 's/^undefined symbol: ([^[:space:],]+).*/\1/p' <<<"$said")
    sort -u <<<"$names"
}

# Sets three variables. path: LD_LIBRARY_PATH for our programs. missing: the names from lacking for which there is no
# spare library. found: the paths of libcuda.so.1 and of NVIDIA's libraries in the folders of list_folders.
set_path()
{
    local name folder spare=yes
    declare -gA found=([libcuda.so.1]=$(in_cache libcuda.so.1))
    path=$here/lib
    while IFS= read -r folder; do       # if several folders have a library, the loader takes the first
        for name in $(about needs) libnvrtc.so.13 libcuda.so.1; do
            [[ $folder == /* && -z ${found[$name]:-} && -e $folder/$name ]] || continue
            found[$name]=$folder/$name
            [[ :$path: == *:"$folder":* ]] || path+=:$folder
        done
    done < <(list_folders)
    path+=${first_path:+:$first_path}
    while [ $spare = yes ]; do          # a spare library may need another one
        spare=no missing=
        for name in $(lacking); do
            folder=$here/lib/spare/$name
            if [ -d "$folder" ] && [[ :$path: != *:"$folder":* ]]; then
                path=$folder:$path spare=yes
            else
                missing+=" $name"
            fi
        done
    done
}

need_libraries()
{
    set_path
    [ -z "$missing" ] || {
        say "${red}ddp: not found, too old or broken:$missing$plain"
        hint "set DDP_LIBRARIES=FOLDER:FOLDER, or pip install nvidia-cublas nvidia-cudnn-cu13 nvidia-nccl-cu13"
        exit 1
    }
    export LD_LIBRARY_PATH=$path SRC=$here BUILD=$here/build/cuda
}

# Asks one of our programs, which exits with 77 if it finds no GPU.
gpu_is_usable() { "$here/build/tests/test_streams_cuda" >/dev/null 2>&1; [ $? != 77 ]; }

# --- doctor -------------------------------------------------------------------------------------------------------

# row must|may WHAT FOUND MISSING: prints a line with FOUND or, if FOUND is empty, MISSING. After `must`, an empty
# FOUND sets bad=yes.
row()
{
    local color=$green mark='ok'
    if [ -z "$3" ]; then
        color=$yellow mark='??'
        [ "$1" = may ] || color=$red mark='--' bad=yes
    fi
    printf '%s%s%s  %-18s %s\n' "$color" "$mark" "$plain" "$2" "${3:-$4}"
}

cmd_doctor()
{
    local bad=no name file glibc lacks='' flag
    set_path
    row must "the bundle" "$(about revision), made $(about made), for $(about architectures), with CUDA $(about CUDA), \
cuDNN $(about cuDNN), NCCL $(about NCCL)"
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/.* //')
    file=$([ "$(uname -m)" != "$(about machine)" ] || uname -m)
    row must machine "$file" "the bundle is for $(about machine), and this is $(uname -m)"
    file=$(printf '%s\n' "$(about glibc)" "${glibc:-0}" | sort -CV && echo "$glibc")
    row must glibc "${file:+$glibc; $(about glibc) or newer is needed}" "$glibc; $(about glibc) or newer is needed"
    for flag in $(about cpu); do
        grep -qE "^flags.* $flag( |$)" /proc/cpuinfo || lacks+=" $flag"
    done
    name=$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)
    row must processor "$name, $(nproc) cores${lacks:+, without$lacks: programs of cuda-gloo may die of SIGILL}"
    row must GPU "$(PATH=$PATH:/usr/local/nvidia/bin nvidia-smi --format=csv,noheader \
        --query-gpu=name,driver_version,memory.total 2>/dev/null)" "none: nvidia-smi shows none"
    row must libcuda.so.1 "${found[libcuda.so.1]}" "not found: it comes with the driver"
    for name in $(about needs); do
        file=$(trace_all | sed -nE "s,^[[:space:]]*$name => ([^ ]+) \(.*,\1,p" | head -1)
        row must "$name" "${file:+$(readlink -f "$file")}" "not found"         # the file's name often has the version
    done
    [ -z "$missing" ] || row must libraries "" "not found, too old or broken:$missing"
    file=$(LD_LIBRARY_PATH=$first_path "$python" 2>/dev/null \
        -c 'import torch; print(torch.__version__, "sees", torch.cuda.device_count(), "GPUs")')
    row may PyTorch "$file" "not in $python: ./run bench measures only our programs; DDP_PYTHON names another Python"
    row may sanitizer "$(find_tool compute-sanitizer)" "not found, but ./run sanitize needs compute-sanitizer"
    [ $bad = no ]
}

# --- tests --------------------------------------------------------------------------------------------------------

new_results()
{
    results=${DDP_RESULTS:-$here/results}/gpu-$1
    [ ! -e "$results" ] || [ -d "$results/logs" ] || die "$results exists and holds no results of a bundle" \
        "DDP_RESULTS=FOLDER chooses a different one"
    rm -rf "$results"
    mkdir -p "$results/logs" || die "$results cannot be made" "DDP_RESULTS=FOLDER chooses a different one"
    results=$(readlink -f "$results")
    passed=0 failed=0 skipped=0
}

# try NAME SECONDS COMMAND...: runs a test and adds a line to the table. tests/run.sh enforces the limit and finds
# processes that are left.
try()
{
    local name=$1 limit=$2 status verdict begin=$EPOCHREALTIME
    shift 2
    "$here/tests/run.sh" "$limit" "$@" >"$results/logs/$name.log" 2>&1 </dev/null
    status=$?
    case $status in
    0) verdict=pass passed=$((passed + 1)) ;;
    77) verdict=skipped skipped=$((skipped + 1)) ;;
    *) verdict=FAIL failed=$((failed + 1)) ;;
    esac
    awk -v a="$begin" -v b="$EPOCHREALTIME" -v n="$name" -v v=$verdict -v note="$(tail -1 "$results/logs/$name.log")" \
        'BEGIN { printf "%-28s %-8s %6.1f s  %s\n", n, v, b - a, substr(note, 1, 110) }' | tee -a "$results/table.txt"
    [ $verdict != FAIL ] || tail -12 "$results/logs/$name.log" | sed 's/^/    | /'
}

# Prints the totals, and exits with the status for all tests.
finish()
{
    [ $((passed + failed + skipped)) -gt 0 ] || die_usage "no test has a name that matches"
    echo "$passed passed, $failed failed, $skipped skipped${no_gpu:+; $no_gpu}" | tee -a "$results/table.txt"
    say "logs and table: $results"
    [ "$failed" = 0 ] || exit 1
    [[ -z $no_gpu && $passed != 0 ]] || exit 77
    exit 0
}

find_no_gpu()
{
    no_gpu=
    gpu_is_usable || no_gpu='NO GPU HERE: NOTHING RAN ON ONE'
    [ -z "$no_gpu" ] || say "$red$no_gpu$plain"
    export DDP_NO_GPU=$no_gpu
}

# Checks of the steps. Each runs as ./run check NAME, in a temporary directory.
steps=(01_single_gpu 02_data_parallel 03_ddp_fork 04_ddp_launcher 05_ddp_amp 06_slurm 07_dist_eval)
checks=(first_start steps_alike twice_f32 twice_tf32 twice_fp16 twice_bf16 recorded_f32 recorded_tf32 recorded_fp16
    recorded_gpt_tf32 recorded_gpt_fp16 gloo_2_ranks gloo_4_ranks gloo_2_launched gloo_4_launched gloo_2_sync_bn
    devices_2 nccl_2_ranks nccl_2_launched nccl_2_fp16 nccl_2_sync_bn)
profiles=(kernels_of_a_step statistics_kernel)      # not checks, so they run only if a regular expression matches
small=(--data synthetic --train-samples 256 --test-samples 64 -b 32 -j 1 --epochs 1 -p 4 --deterministic)

hash_of() { "$@" >out 2>&1 || { cat out >&2; return 1; }; sed -n 's/^weight hash: //p' out; }
same() { echo "$1: $2 and $3"; [ -n "$2" ] && [ "$2" = "$3" ]; }

# same_twice WHAT [OPTION...]: the program in `command` gives the same bits with and without these options.
same_twice()
{
    local a b
    a=$(hash_of "${command[@]}") && b=$(hash_of "${command[@]}" "${@:2}") && same "$1" "$a" "$b"
}

# All steps compute the same bits with one rank or device.
check_steps_alike()
{
    local step hash first='' bad=0 more
    for step in "${steps[@]}"; do
        more=(--amp off)
        [ "${step%%_*}" -ge 5 ] || more=()
        step_command "$here/build/cuda/$step" 1 "${small[@]}" "${more[@]}"
        hash=$(hash_of "${command[@]}") || bad=1
        first=${first:-$hash}
        same "$step" "$hash" "$first" || bad=1
    done
    return $bad
}

# twice STEP OPTION...: two runs with --deterministic give the same bits.
twice()
{
    step_command "$here/build/cuda/$1" 1 "${small[@]}" "${@:2}"
    same_twice "$*"
}
check_twice_f32() { twice 01_single_gpu --no-tf32; }
check_twice_tf32() { twice 01_single_gpu --tf32; }
check_twice_fp16() { twice 05_ddp_amp --amp fp16; }
check_twice_bf16() { twice 05_ddp_amp --amp bf16; }

# Time of a start and one step, twice: the second start finds the libraries in the page cache.
check_first_start()
{
    local begin
    for _ in 1 2; do
        begin=$EPOCHREALTIME
        step_command "$here/build/cuda/01_single_gpu" 1 "${small[@]}" --max-steps 1
        hash_of "${command[@]}" >/dev/null || return 1
        awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "start and one step: %.1f s  ", b - a }'
    done
    echo
}

# Two epochs with a short last batch. CUDA graphs must give the same bits as --slow-network, which uses none.
recorded()
{
    step_command "$here/build/cuda/07_dist_eval" 1 "${small[@]}" --epochs 2 --train-samples 250 "$@"
    same_twice "recorded $*" --slow-network 1e6
}
check_recorded_f32() { recorded --amp off --no-tf32; }
check_recorded_tf32() { recorded --amp off --tf32; }
check_recorded_fp16() { recorded --amp fp16 --accumulate 2; }

# Learns the text of this script: the bundle has no data set.
gpt()
{
    step_command "$here/build/cuda/07_dist_eval" 1 -a gpt --data "text:$here/run" --dropout 0.1 -b 32 -j 1 --epochs 1 \
        --max-steps 40 -p 10 --deterministic "$@"
    same_twice "a gpt, recorded $*" --slow-network 1e6
}
check_recorded_gpt_tf32() { gpt --amp off; }
check_recorded_gpt_fp16() { gpt --amp fp16; }

# ranks_alike BACKEND RANKS STEP OPTION...: losses and weights match those of one process over two epochs, and two
# runs give the same bits. (The program itself compares the hashes of its ranks.)
ranks_alike()
{
    local backend=$1 ranks=$2 step=$3
    shift 3
    . "$here/tests/ranks.sh"
    lenet+=(--deterministic --no-tf32)   # whether an engine uses TF32 depends on the batch
    one || { cat one.out; return 1; }
    # shellcheck disable=SC2317  # same_as_one calls it
    ranks_train() { shift 2; step_command "$here/build/$backend/$step" "$ranks" "$@"; "${command[@]}"; }
    same_as_one ranks_train "$ranks" "$@" || return 1
    step_command "$here/build/$backend/$step" "$ranks" "${lenet[@]}" -b $((batch / ranks)) "$@"
    same "one process $(sed -n 's/^weight hash: //p' one.out); $ranks ranks, twice" \
        "$(sed -n 's/^weight hash: //p' ranks.out)" "$(hash_of "${command[@]}")"
}
# ranks_twice BACKEND RANKS STEP OPTION...: two runs give the same bits. This check does not compare with one process.
ranks_twice()
{
    step_command "$here/build/$1/$3" "$2" "${small[@]}" "${@:4}"
    same_twice "$2 ranks, twice"
}
check_gloo_2_ranks() { ranks_alike cuda-gloo 2 03_ddp_fork; }
check_gloo_4_ranks() { ranks_alike cuda-gloo 4 03_ddp_fork; }
check_gloo_2_launched() { ranks_alike cuda-gloo 2 07_dist_eval --amp off; }
check_gloo_4_launched() { ranks_alike cuda-gloo 4 07_dist_eval --amp off; }
check_gloo_2_sync_bn() { ranks_twice cuda-gloo 2 03_ddp_fork --sync-bn; }

# Checks with two ranks (02: devices), each with its own GPU.
two_gpus() { [ "$(count_gpus)" -ge 2 ] || { echo "skipped: this check needs two GPUs"; exit 77; }; }
check_devices_2() { two_gpus; ranks_twice cuda 2 02_data_parallel; }
check_nccl_2_ranks() { two_gpus; ranks_alike cuda 2 03_ddp_fork; }
check_nccl_2_launched() { two_gpus; ranks_alike cuda 2 07_dist_eval --amp off; }
check_nccl_2_fp16() { two_gpus; ranks_twice cuda 2 07_dist_eval --amp fp16 --compress fp16 --accumulate 2; }
check_nccl_2_sync_bn() { two_gpus; ranks_twice cuda 2 07_dist_eval --amp off --sync-bn; }

# --- ranks that share a GPU -----------------------------------------------------------------------------------------
# For NCCL only; gloo_* above are the same for Gloo. If the first check fails, the others would fail as well. The limits
# are a GPU's; the mock may need DDP_LIMITS times as long on a busy machine.

shared=("connects 30" "2_ranks 40" "4_ranks 40" "recorded 20" "fp16 25" "sync_bn 25" "mpirun 15" "killed 25" "speed 20")
few=(--data synthetic --train-samples 120 --test-samples 32 -b 12 -j 1 --epochs 2 -p 5 --deterministic --no-tf32)

# How NCCL connects the ranks: P2P if it knows that they share a GPU, sockets if it takes them for two machines.
check_shared_connects()
{
    local status=0
    export NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%p
    step_command "$here/build/cuda/03_ddp_fork" 2 -a lenet "${few[@]}" --max-steps 3
    hash_of "${command[@]}" || status=1
    cat out
    grep -hE 'WARN|NCCL version|nNodes|via|error' nccl.* 2>/dev/null | sort -u | head -60
    echo "two ranks: $(grep -hoE 'NCCL version [0-9.]+' nccl.* 2>/dev/null | head -1)" \
        "$(grep -hoE 'via [A-Z0-9]+(/[A-Za-z]+)?' nccl.* 2>/dev/null | sort -u | paste -sd,)"
    return $status
}
check_shared_2_ranks() { ranks_alike cuda 2 03_ddp_fork; }
check_shared_4_ranks() { ranks_alike cuda 4 03_ddp_fork; }
check_shared_recorded()
{
    step_command "$here/build/cuda/03_ddp_fork" 2 -a lenet "${few[@]}"
    same_twice "recorded, and not" --slow-network 1e6
}
# launched_twice OPTION...
launched_twice()
{
    step_command "$here/build/cuda/07_dist_eval" 2 "${few[@]}" "$@"
    same_twice "$*, twice"
}
check_shared_fp16() { launched_twice -a convnet --amp fp16 --compress fp16 --accumulate 2; }
check_shared_sync_bn() { launched_twice -a convnet --amp off --sync-bn; }     # two communicators, and recorded
check_shared_mpirun()
{
    local hash
    have mpirun || { echo "skipped: mpirun is not installed"; exit 77; }
    export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    step_command "$here/build/cuda/07_dist_eval" 2 -a lenet "${few[@]}" --amp off
    hash=$(hash_of "${command[@]}") || return 1
    same "launch and mpirun" "$hash" "$(hash_of mpirun -np 2 "${command[@]:4}")"
}

# A rank is killed after step 10, and launch starts both again from the checkpoint. TERM ends the run some steps later:
# it has the bits of an undisturbed run of as many steps.
check_shared_killed()
{
    local steps launched
    step_command "$here/build/cuda/07_dist_eval" 2 -a lenet "${few[@]}" --amp off --train-samples 600 --epochs 1000
    "${command[0]}" --max-restarts 1 "${command[@]:1}" --save net.st --save-every 5 --resume auto >killed.out 2>&1 &
    launched=$!
    until grep -q 'step: \[ *10/' killed.out || ! kill -0 $launched; do sleep 0.05; done
    kill -KILL "$(sed -n 's/.* global rank: 1 of 2: .* pid //p' killed.out)"
    until sed '1,/restart 1 of 1/d' killed.out | grep -q 'step: ' || ! kill -0 $launched; do sleep 0.05; done
    kill -TERM $launched
    wait $launched
    cat killed.out
    steps=$(sed -nE 's,.*step: \[ *([0-9]+)/25\] \[([0-9]+)/.*,25 * (\2 - 1) + \1,p' killed.out | tail -1)
    grep -q "was killed by signal 9" killed.out && same "killed and restarted; undisturbed" \
        "$(sed -n 's/^weight hash: //p' killed.out)" "$(hash_of "${command[@]}" --max-steps $((steps)))"
}

check_shared_speed()
{
    local ranks batch=128 network=resnet18 count=32 seconds=()
    for ranks in 1 2; do
        step_command "$here/build/cuda/03_ddp_fork" $ranks -a $network --data synthetic -b $batch -j 2 --epochs 2 \
            --train-samples $((count * batch * ranks)) --test-samples 64 --metrics $ranks.jsonl
        hash_of "${command[@]}" >/dev/null || return 1
        seconds+=("$(sed -n 's/.*"event":"epoch","epoch":2.*"seconds":\([0-9.]*\).*/\1/p' $ranks.jsonl)")
    done
    awk -v what="$network, $batch per rank" -v n=$count -v a="${seconds[0]}" -v b="${seconds[1]}" \
        'BEGIN { printf "%s: a step takes %.2f ms, with two ranks %.2f ms\n", what, a / n * 1e3, b / n * 1e3 }'
}

cmd_ranks()
{
    local row
    need_libraries
    new_results ranks
    find_no_gpu
    for row in "${shared[@]}"; do
        try "shared_${row% *}" $((${row#* } * ${DDP_LIMITS:-1})) "$here/run" check "shared_${row% *}"
        [ "$failed" = 0 ] || [ "$row" != "${shared[0]}" ] || break
    done
    finish
}

# --- profiles -----------------------------------------------------------------------------------------------------

# profile OPTION... COMMAND...: runs COMMAND under ncu, with these OPTIONs of ncu. Skipped without ncu, or if only root
# may read the counters.
profile()
{
    local ncu
    ncu=$(find_tool ncu)
    [ -n "$ncu" ] || { echo "skipped: ncu is not installed"; exit 77; }
    "$ncu" "$@" >ncu.out 2>&1 && return
    tail -5 ncu.out
    ! grep -q ERR_NVGPUCTRPERM ncu.out || { echo "skipped: ncu has no right to read this GPU's counters"; exit 77; }
    return 1
}

# Counts the kernels of one step: those of six steps minus those of five.
check_kernels_of_a_step()
{
    local job words steps kernels
    for job in "01_single_gpu --tf32" "05_ddp_amp --amp fp16"; do
        read -ra words <<<"$job"
        kernels=()
        for steps in 5 6; do
            step_command "$here/build/cuda/${words[0]}" 1 "${small[@]}" "${words[@]:1}" --max-steps $steps
            profile --graph-profiling node --csv --metrics gpu__time_duration.sum "${command[@]}" || return 1
            kernels+=("$(grep -c gpu__time_duration ncu.out)")
        done
        echo "${words[*]}: $((kernels[1] - kernels[0])) kernels a step"
    done
}

check_statistics_kernel()
{
    step_command "$here/build/cuda/05_ddp_amp" 1 "${small[@]}" -a resnet50 --amp fp16 --max-steps 1
    profile --kernel-name regex:statistics --launch-count 3 --section SpeedOfLight --section WarpStateStats \
        "${command[@]}" && cat ncu.out
}

cmd_check()
{
    [ -z "${DDP_NO_GPU:-}" ] || { echo "skipped: no GPU"; exit 77; }
    cd "$TMP" || exit 1
    if [[ $1 == shared_* ]]; then
        CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
        export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}
    fi
    "check_$1"
}

# The test programs come first: their messages are more precise.
cmd_test()
{
    local regex=${1:-.} name limit
    [ $# -le 1 ] || die_usage "test takes one regular expression, or none"
    need_libraries
    new_results "${2:-test}"
    find_no_gpu
    while read -r name limit; do
        [[ ! $name =~ $regex ]] || try "$name" "$limit" "$here/build/tests/$name"
    done <"$here/tests/list"
    [ $# = 0 ] || checks+=("${profiles[@]}")
    for name in "${checks[@]}"; do
        [[ ! $name =~ $regex ]] || try "$name" 180 "$here/run" check "$name"
    done
    finish
}

# --- sanitizers ---------------------------------------------------------------------------------------------------

# find_tool NAME: prints the path of one of CUDA's tools.
find_tool()
{
    local file
    for file in "$(command -v "$1")" "${CUDA_HOME:-}/bin/$1" /usr/local/cuda*/{bin,"$1"}/"$1" /opt/nvidia/*/*/"$1"; do
        [ ! -x "$file" ] || { echo "$file"; return; }
    done
}

cmd_sanitize()
{
    local regex=${1:-.} sanitizer tool job name step words only api plans
    [ $# -le 1 ] || die_usage "sanitize takes one regular expression, or none"
    sanitizer=$(find_tool compute-sanitizer)
    [ -n "$sanitizer" ] || die "compute-sanitizer is not installed" "the CUDA toolkit has it: add its folder to PATH"
    need_libraries
    new_results sanitize
    find_no_gpu
    [ -z "$no_gpu" ] || exit 77
    for tool in memcheck initcheck racecheck synccheck; do
        # The last two are slow, and also report NVIDIA's own kernels. So they check only our kernels (*s_loop*).
        # racecheck does not survive some of the cuDNN engines that are tried without --deterministic.
        only=()
        api=()
        plans=--no-deterministic
        case $tool in
        memcheck) api=(--report-api-errors no) ;;       # NCCL looks for functions that the driver may lack
        racecheck) only=(--kernel-name kernel_substring=s_loop --racecheck-detect-level error) plans=--deterministic ;;
        synccheck) only=(--kernel-name kernel_substring=s_loop) ;;
        esac
        for job in "lenet 01_single_gpu -a lenet" "resnet18 01_single_gpu -a resnet18" \
            "resnet18_fp16 05_ddp_amp -a resnet18 --amp fp16"; do
            read -ra words <<<"$job"
            name=${words[0]} step=${words[1]}
            name=${tool}_$name
            [[ -z "${only[*]}" || $name != *_resnet18 ]] || continue     # resnet18_fp16 has the same kernels, and more
            [[ ! $name =~ $regex ]] || try "$name" 240 "$sanitizer" --tool $tool "${only[@]}" "${api[@]}" \
                --error-exitcode 99 "$here/build/cuda/$step/train" "${words[@]:2}" $plans --data synthetic \
                --train-samples 24 --test-samples 8 -b 8 -j 0 --epochs 1 -p 1
        done
    done
    finish
}

# --- report ---------------------------------------------------------------------------------------------------------

print_machine()
{
    date -u +'%FT%TZ'
    cat "$here/about"
    echo "machine: $(uname -srm), $(sed -n 's/^PRETTY_NAME=//p' /etc/os-release), $(nproc) cores"
    env | grep -E '^(CUDA|NCCL|DDP|OMP)_' | grep -v TOKEN | sort
    nvidia-smi
    nvidia-smi --format=csv --query-gpu=index,name,driver_version,memory.total,memory.used,compute_cap,ecc.mode.current
    nvidia-smi topo -m
    df -h /dev/shm
}

cmd_report()
{
    local report=${2:-$here/results/report.txt} what status=0
    [[ $# = 0 || $1 = -o && $# = 2 ]] || die_usage "report: takes -o FILE, or nothing"
    need_libraries
    find_no_gpu
    [ -z "$no_gpu" ] || exit 77
    mkdir -p "$(dirname "$report")" && : >"$report" || die "$report cannot be written" "report -o FILE"
    for what in print_machine cmd_doctor cmd_ranks cmd_test cmd_sanitize; do
        ($what) 2>&1 | tee -a "$report"
        [ "${PIPESTATUS[0]}" = 0 ] || status=1
    done
    say "report: $report"
    return $status
}

# --- the rest -----------------------------------------------------------------------------------------------------

cmd_bench()
{
    local results=''
    have "$python" || die "the benchmark needs python3"
    need_libraries
    if [[ " $* " != *" --help "* ]]; then
        find_no_gpu
        [ -z "$no_gpu" ] || exit 77
        new_results bench
    fi
    export DDP_PYTHON=$python DDP_BENCH_OUT=$here/results
    LD_LIBRARY_PATH=$first_path DDP_LIBRARY_PATH=$path exec "$python" "$here/tools/bench.py" gpu \
        --build "$here/build/cuda" ${results:+--out "$results"} "$@"
}

cmd_exec() { [ $# -gt 0 ] || die_usage "exec: name a command"; need_libraries; exec "$@"; }

what=${1:-help}
[ $# = 0 ] || shift
case $what in
report | doctor | ranks | test | sanitize | bench | exec | check) "cmd_$what" "$@" ;;
help | -h | --help) usage ;;
*) die_usage "there is no command '$what'" ;;
esac
