#!/usr/bin/env bash
# run - what a bundle of tools/gpu_bundle.sh can do; it stands in it as gpu-bundle/run.
set -uo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
. "$here/tools/shell.sh"
die_usage() { say "${red}ddp: $1$plain"; hint "${2:-./run help}"; exit 2; }

usage()
{
    cat <<'END'
./run - our CUDA programs on this machine

  doctor                what is here: driver, GPU, libraries and where they were found
  test [REGEX]          all gpu tests, or those whose name matches; a table, and a log of each
  ranks                 of them, those of several ranks: on one GPU by Gloo, and refused by NCCL
  train STEP [-n N] [--backend cuda|cuda-gloo] [-- OPTIONS]
                        a step's program: ./run train 05_ddp_amp -- --amp fp16 --max-steps 100
  sanitize [REGEX]      compute-sanitizer (memcheck, racecheck, initcheck) on training steps
  bench [OPTIONS]       our steps beside PyTorch's on the same GPU; ./run bench --help
  exec COMMAND...       any command with the libraries' path: ./run exec nsys profile build/cuda/01_single_gpu/train
  libraries             which file each library is
  help                  this page

Exit status: 0 all is well, 1 something failed, 2 wrong words, 77 nothing ran on a GPU.

  DDP_LIBRARIES=A:B     folders to look in for cuDNN, cuBLASLt and NCCL first; else pip's packages (as of DDP_PYTHON,
                        python3), LD_LIBRARY_PATH, CUDNN_ROOT, NCCL_ROOT, CUDA_HOME, /usr/local/cuda, the system's
  DDP_RESULTS=FOLDER    where logs and tables go (results/ here)
  DDP_CIFAR10=PATH      CIFAR-10, its folder or archive
  DDP_LIMIT=SECONDS     for each test, instead of its own limit
END
}

about() { sed -n "s/^$1: //p" "$here/about"; }
programs=("$here/build/cuda/07_dist_eval/train" "$here/build/cuda-gloo/07_dist_eval/train" \
    "$here/build/cuda/07_dist_eval/launch")      # together they need every library

# --- libraries ----------------------------------------------------------------------------------------------------

python=${DDP_PYTHON:-python3}
first_path=${LD_LIBRARY_PATH:-}         # for programs that are not ours

# Folders in which NVIDIA's libraries may be, in this order: pip's come first, for they are PyTorch's own.
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

# What the loader says about a program: "NAME => PATH", and what it lacks.
trace() { LD_LIBRARY_PATH=$path LD_TRACE_LOADED_OBJECTS=1 LD_WARN=1 LD_BIND_NOW=1 "$1" 2>&1; }
trace_all() { local program; for program in "${programs[@]}"; do trace "$program"; done | sort -u; }
lacking()       # libraries; only if all are there, functions that one of them has not
{
    local said names
    said=$(trace_all)
    names=$(sed -nE 's/^[[:space:]]*([^ ]+) => not found.*/\1/p; s,.*/([^/:]+): version .* not found.*,\1,p
        s/.*error while loading shared libraries: ([^:]+): .*/\1/p' <<<"$said")
    [ -n "$names" ] || names=$(sed -nE 's/^undefined symbol: ([^[:space:],]+).*/\1/p' <<<"$said")
    sort -u <<<"$names"
}

# path: where our programs find all libraries; missing: those that are nowhere.
set_path()
{
    local name folder spare=yes
    declare -gA found=([libcuda.so.1]=$(in_cache libcuda.so.1))
    path=$here/lib
    while IFS= read -r folder; do       # the first folder with a library stands before all others that have it
        for name in $(about needs) libnvrtc.so.13 libcuda.so.1; do
            [[ $folder == /* && -z ${found[$name]:-} && -e $folder/$name ]] || continue
            found[$name]=$folder/$name
            [[ :$path: == *:"$folder":* ]] || path+=:$folder
        done
    done < <(list_folders)
    path+=${first_path:+:$first_path}
    while [ $spare = yes ]; do          # one of them may need another one
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
        hint "DDP_LIBRARIES=A:B, or pip install nvidia-cublas nvidia-cudnn-cu13 nvidia-nccl-cu13; ./run doctor"
        exit 1
    }
    export LD_LIBRARY_PATH=$path SRC=$here BUILD=$here/build/cuda
}

# A program of ours decides: it ends with 77 where it has no GPU.
gpu_is_usable() { "$here/build/tests/test_streams_cuda" >/dev/null 2>&1; [ $? != 77 ]; }

# --- doctor -------------------------------------------------------------------------------------------------------

# row FOUND? WHAT TEXT
row()
{
    local color=$green mark='ok'
    case $1 in no) color=$red mark='--' bad=yes ;; maybe) color=$yellow mark='??' ;; esac
    printf '%s%s%s  %-18s %s\n' "$color" "$mark" "$plain" "$2" "$3"
}

may_have() { row "$([ -n "$2" ] && echo yes || echo maybe)" "$1" "${2:-$3}"; }

# Asks the library itself.
version_of()
{
    LD_LIBRARY_PATH=$path "$python" - "$1" <<'END' 2>/dev/null
import ctypes, sys
library, value = ctypes.CDLL(sys.argv[1]), ctypes.c_int()
def parts(v, major, minor):
    return f"{v // major}.{v % major // minor}.{v % minor}"
if "cudnn" in sys.argv[1]:
    library.cudnnGetVersion.restype = ctypes.c_size_t
    print(parts(library.cudnnGetVersion(), 10000, 100))
elif "cublasLt" in sys.argv[1]:
    library.cublasLtGetVersion.restype = ctypes.c_size_t
    print(parts(library.cublasLtGetVersion(), 10000, 100))
elif "nccl" in sys.argv[1]:
    library.ncclGetVersion(ctypes.byref(value))
    print(parts(value.value, 10000, 100))
END
}

cmd_doctor()
{
    local bad=no name file glibc gpus lacks flag spare
    set_path
    printf '%sthe bundle%s\n' "$bold" "$plain"
    row yes revision "$(about revision), made $(about made)"
    row yes "built with" "CUDA $(about CUDA), cuDNN $(about cuDNN), NCCL $(about NCCL), for $(about architectures)"
    printf '%sthe machine%s\n' "$bold" "$plain"
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/.* //')
    row "$(printf '%s\n' "$(about glibc)" "${glibc:-0}" | sort -CV && echo yes || echo no)" glibc \
        "${glibc:-not to be seen}; $(about glibc) or newer is needed"
    lacks=
    for flag in $(about cpu); do
        grep -qE "^flags.* $flag( |$)" /proc/cpuinfo || lacks+=" $flag"
    done
    name=$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)
    row "$([ -z "$lacks" ] && echo yes || echo maybe)" processor \
        "$name, $(nproc) cores${lacks:+, without$lacks: ranks by Gloo may die of SIGILL}"
    gpus=$(PATH=$PATH:/usr/local/nvidia/bin nvidia-smi --format=csv,noheader \
        --query-gpu=name,driver_version,memory.total 2>/dev/null)
    row "$([ -n "$gpus" ] && echo yes || echo no)" GPU "${gpus:-none: nvidia-smi shows none}"
    file=${found[libcuda.so.1]}
    row "$([ -n "$file" ] && echo yes || echo no)" "the driver's" "libcuda.so.1 ${file:-is not found}"
    printf '%slibraries%s\n' "$bold" "$plain"
    for name in $(about needs); do
        file=$(trace_all | sed -nE "s,^[[:space:]]*$name => ([^ ]+) \(.*,\1,p" | head -1)
        row "$([ -n "$file" ] && echo yes || echo no)" "$name" "${file:+$(version_of "$file") }${file:-is not found}"
    done
    spare=$(tr : '\n' <<<"$path" | sed -n "s,^$here/lib/spare/,,p" | paste -sd' ')
    row yes carried "$(find "$here/lib" -maxdepth 1 -type f | wc -l) libraries${spare:+; not or too old here: $spare}"
    [ -z "$missing" ] || row no "not all" "not found, too old or broken:$missing"
    row maybe MPI "is not in the bundle (its library is, mpirun is not): nothing is tested by mpirun here"
    printf '%sto compare and check with%s\n' "$bold" "$plain"
    file=$(LD_LIBRARY_PATH=$first_path "$python" 2>/dev/null \
        -c 'import torch; print(torch.__version__, "sees", torch.cuda.device_count(), "GPUs")')
    may_have PyTorch "$file" "not in $python: ./run bench times ours alone; DDP_PYTHON"
    may_have sanitizer "$(find_sanitizer)" "no compute-sanitizer: ./run sanitize cannot"
    may_have CIFAR-10 "$(find_cifar)" "not here: DDP_CIFAR10; made-up images are used"
    [ $bad = no ]
}

cmd_libraries()
{
    set_path
    trace_all | sed -nE 's/^[[:space:]]*([^ ]+) => (.*)/\1 \2/p; /not found \(required|undefined symbol/p' |
        sed 's/ (0x.*//' | sort -u
    [ -z "$missing" ] || die "not found, too old or broken:$missing" "./run doctor"
}

# --- data ---------------------------------------------------------------------------------------------------------

# CIFAR-10's folder. An archive is unpacked once.
find_cifar()
{
    local given=${DDP_CIFAR10:-} folder archive
    for folder in "$given" "$given/cifar-10-batches-bin" "$here/data/cifar-10-batches-bin"; do
        [ ! -f "$folder/data_batch_1.bin" ] || { readlink -f "$folder"; return; }
    done
    for archive in "$given" "$here"/data/*.tar.*; do
        [ -f "$archive" ] || continue
        mkdir -p "$here/data" && tar -C "$here/data" -xf "$archive" >&2 || return
        [ ! -f "$here/data/cifar-10-batches-bin/data_batch_1.bin" ] || echo "$here/data/cifar-10-batches-bin"
        return
    done
}

# --- train --------------------------------------------------------------------------------------------------------

find_step()
{
    local folder
    for folder in "$here"/build/cuda/[0-9][0-9]_*/; do
        folder=$(basename "$folder")
        [[ $folder != "$1" && ${folder%%_*} != "$1" ]] || { echo "$folder"; return; }
    done
    die_usage "there is no step '$1'" "there are: $(cd "$here/build/cuda" && echo [0-9][0-9]_*)"
}

# set_command BACKEND STEP RANKS OPTION...: command, as ./ddp run would start it
set_command()
{
    local program=$here/build/$1/$2 step=$2 ranks=$3
    shift 3
    command=("$program/train")
    case $step in
    01_*) ;;
    02_*) command+=(--devices "$ranks") ;;
    03_*) command+=(-n "$ranks") ;;
    *) command=("$program/launch" --nproc-per-node "$ranks" -- "${command[@]}") ;;
    esac
    command+=("$@")
}

cmd_train()
{
    local step='' ranks=1 backend=cuda
    while [ $# -gt 0 ]; do
        case $1 in
        -n)
            [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || die_usage "train: -n needs a number"
            ranks=$2
            shift
            ;;
        --backend)
            [[ ${2:-} =~ ^cuda(-gloo)?$ ]] || die_usage "train: --backend is cuda or cuda-gloo"
            backend=$2
            shift
            ;;
        --) shift; break ;;
        -*) die_usage "train: unknown option $1" "options of the program itself come behind --" ;;
        *) [ -z "$step" ] || die_usage "train: one step at a time, not '$1'"; step=$1 ;;
        esac
        shift
    done
    [ -n "$step" ] || die_usage "train: which step?" "there are: $(cd "$here/build/cuda" && echo [0-9][0-9]_*)"
    step=$(find_step "$step") || exit
    need_libraries
    set_command "$backend" "$step" "$ranks" "$@"
    run "${command[@]}"
}

# --- tests --------------------------------------------------------------------------------------------------------

new_results()
{
    results=${DDP_RESULTS:-$here/results}/gpu-$1
    [ ! -e "$results" ] || [ -d "$results/logs" ] || die "$results is somebody else's" "DDP_RESULTS=FOLDER"
    rm -rf "$results"
    mkdir -p "$results/logs" || die "$results cannot be made" "DDP_RESULTS=FOLDER"
    results=$(readlink -f "$results")
    passed=0 failed=0 skipped=0
}

# try NAME SECONDS COMMAND...: a line of the table; tests/run.sh keeps the time, and looks what was left behind.
try()
{
    local name=$1 limit=${DDP_LIMIT:-$2} status verdict begin=$EPOCHREALTIME
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

# The end of a table: sums, and the exit status.
finish()
{
    [ $((passed + failed + skipped)) -gt 0 ] || die_usage "no name matches"
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

# Our own checks: each is a process of its own, ./run check NAME, in a directory that goes away.
steps=(01_single_gpu 02_data_parallel 03_ddp_fork 04_ddp_launcher 05_ddp_amp 06_slurm 07_dist_eval)
checks=(steps_alike twice_f32 twice_tf32 twice_fp16 twice_bf16 nccl_refuses_two nccl_refuses_launched
    gloo_2_ranks gloo_4_ranks gloo_2_launched gloo_4_launched)
small=(--data synthetic --train-samples 256 --test-samples 64 -b 32 -j 1 --epochs 1 -p 4 --deterministic)

hash_of() { "$@" >out 2>&1 || { cat out >&2; return 1; }; sed -n 's/^weight hash: //p' out; }
same() { echo "$1: $2 and $3"; [ -n "$2" ] && [ "$2" = "$3" ]; }

# Every step with one rank over NCCL: one job, the same bits.
check_steps_alike()
{
    local step hash first='' bad=0 more
    for step in "${steps[@]}"; do
        more=(--amp off)
        [ "${step%%_*}" -ge 5 ] || more=()
        set_command cuda "$step" 1 "${small[@]}" "${more[@]}"
        hash=$(hash_of "${command[@]}") || bad=1
        first=${first:-$hash}
        same "$step" "$hash" "$first" || bad=1
    done
    return $bad
}

# twice STEP OPTION...: --deterministic gives the same bits again
twice()
{
    local step=$1 a b
    shift
    set_command cuda "$step" 1 "${small[@]}" "$@"
    a=$(hash_of "${command[@]}") && b=$(hash_of "${command[@]}") && same "$*" "$a" "$b"
}
check_twice_f32() { twice 01_single_gpu --tf32 0; }
check_twice_tf32() { twice 01_single_gpu --tf32 1; }
check_twice_fp16() { twice 05_ddp_amp --amp fp16; }
check_twice_bf16() { twice 05_ddp_amp --amp bf16; }

# refused STEP TEXT: two ranks and one GPU
refused()
{
    export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
    CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}
    set_command cuda "$1" 2 "${small[@]}"
    "${command[@]}" >out 2>&1
    local status=$?
    cat out
    echo "exit status $status"
    [ $status != 0 ] && grep -F -- "$2" out
}
check_nccl_refuses_two() { refused 03_ddp_fork "2 ranks, but 1 GPU"; }
check_nccl_refuses_launched() { refused 04_ddp_launcher "a GPU of its own"; }

# gloo RANKS STEP OPTION...: ranks that share a GPU. All have the same hash (the programs compare them at the end), the
# same bits come twice, and losses and weights are one process's over two epochs, as on the CPU.
gloo()
{
    local ranks=$1 step=$2 a b
    shift 2
    . "$here/tests/ranks.sh"
    lenet+=(--deterministic)
    one || { cat one.out; return 1; }
    # shellcheck disable=SC2317  # same_as_one calls it
    ranks_train() { shift 2; set_command cuda-gloo "$step" "$ranks" "$@"; "${command[@]}"; }
    same_as_one ranks_train "$ranks" "$@" || return 1
    a=$(sed -n 's/^weight hash: //p' ranks.out)
    set_command cuda-gloo "$step" "$ranks" "${lenet[@]}" -b $((batch / ranks)) "$@"
    b=$(hash_of "${command[@]}") &&
        same "one process $(sed -n 's/^weight hash: //p' one.out); $ranks ranks, twice" "$a" "$b"
}
check_gloo_2_ranks() { gloo 2 03_ddp_fork; }
check_gloo_4_ranks() { gloo 4 03_ddp_fork; }
check_gloo_2_launched() { gloo 2 07_dist_eval --amp off; }
check_gloo_4_launched() { gloo 4 07_dist_eval --amp off; }

cmd_check()
{
    [ -z "${DDP_NO_GPU:-}" ] || { echo "skipped: no GPU"; exit 77; }
    cd "$TMP" || exit 1
    "check_$1"
}

# The test programs first: they say more precisely what is wrong.
cmd_test()
{
    local regex=${1:-.} name limit
    [ $# -le 1 ] || die_usage "test: one regular expression, or none"
    need_libraries
    new_results "${2:-test}"
    find_no_gpu
    while read -r name limit; do
        [[ ! $name =~ $regex ]] || try "$name" "$limit" "$here/build/tests/$name"
    done <"$here/tests/list"
    for name in "${checks[@]}"; do
        [[ ! $name =~ $regex ]] || try "$name" 180 "$here/run" check "$name"
    done
    finish
}

cmd_ranks() { [ $# = 0 ] || die_usage "ranks: takes no arguments"; cmd_test '^(gloo|nccl)_'; }

# --- sanitizers ---------------------------------------------------------------------------------------------------

find_sanitizer()
{
    local file
    for file in "$(command -v compute-sanitizer)" "${CUDA_HOME:-}"/bin/compute-sanitizer \
        /usr/local/cuda*/{bin,compute-sanitizer}/compute-sanitizer /opt/nvidia/*/*/compute-sanitizer; do
        [ ! -x "$file" ] || { echo "$file"; return; }
    done
}

cmd_sanitize()
{
    local regex=${1:-.} sanitizer tool job name step words
    [ $# -le 1 ] || die_usage "sanitize: one regular expression, or none"
    sanitizer=$(find_sanitizer)
    [ -n "$sanitizer" ] || die "there is no compute-sanitizer" "it comes with CUDA; put it in PATH"
    need_libraries
    new_results sanitize
    find_no_gpu
    [ -z "$no_gpu" ] || exit 77
    for tool in memcheck racecheck initcheck; do
        for job in "lenet 01_single_gpu -a lenet" "resnet18 01_single_gpu -a resnet18" \
            "resnet18_fp16 05_ddp_amp -a resnet18 --amp fp16"; do
            read -ra words <<<"$job"
            name=${words[0]} step=${words[1]}
            name=${tool}_$name
            [[ ! $name =~ $regex ]] || try "$name" 240 "$sanitizer" --tool $tool --error-exitcode 99 \
                "$here/build/cuda/$step/train" "${words[@]:2}" --data synthetic --train-samples 24 \
                --test-samples 8 -b 8 -j 0 --epochs 1 -p 1
        done
    done
    finish
}

# --- the rest -----------------------------------------------------------------------------------------------------

cmd_bench()
{
    local cifar='' results=''
    have "$python" || die "the benchmark needs python3"
    need_libraries
    if [[ " $* " != *" --help "* ]]; then
        find_no_gpu
        [ -z "$no_gpu" ] || exit 77
        new_results bench
        cifar=$(find_cifar)
    fi
    LD_LIBRARY_PATH=$first_path DDP_LIBRARY_PATH=$path exec "$python" "$here/tools/bench_torch_gpu.py" \
        --build "$here/build/cuda" ${results:+--out "$results"} ${cifar:+--data "$cifar"} "$@"
}

cmd_exec() { [ $# -gt 0 ] || die_usage "exec: what?"; need_libraries; exec "$@"; }

what=${1:-help}
[ $# = 0 ] || shift
case $what in
doctor | test | ranks | train | sanitize | bench | exec | libraries | check) "cmd_$what" "$@" ;;
help | -h | --help) usage ;;
*) die_usage "there is no command '$what'" ;;
esac
