#!/usr/bin/env bash
# bench.sh - measures ours against PyTorch, in turns, and writes docs/benchmarks.md (./ddp bench).
#
#   bench.sh [--rounds N] [--quick]     ours against PyTorch: step, epoch, start, memory, waiting
#            [--only step|first|epoch]  one part anew, the others as they were measured before
#   bench.sh parallel [--rounds N] [--quick]
#                                       two ranks, two devices, and what the ranks exchange
#   bench.sh launch [--rounds N] [--kills N] [--quick]
#                                       start, deaths and checkpoints of ranks that a launcher starts
#   bench.sh amp [--rounds N] [--quick] bf16 against PyTorch's autocast and against f32: steps, memory,
#                                       bytes between ranks
#   bench.sh amp-curve [--seeds N]      5 epochs on CIFAR-10 in f32 and in bf16, by turns
#   bench.sh slurm [--rounds N] [--quick]
#                                       nodes of the little Slurm cluster: all-reduce, start, weak scaling
#   bench.sh eval [--rounds N] [--quick]
#                                       evaluation against PyTorch's inference, in f32 and in bf16, and
#                                       of two ranks against one
#   bench.sh steps [--rounds N] [--quick]
#                                       the steps side by side, at the same job on the same cores
#   bench.sh faults                     every seeded fault of tests/faults/ is caught, and by which test
#   bench.sh curve [--seeds N]          the articles' recipe on CIFAR-10: 5 epochs, seeds 1 to N
#
# PyTorch is $DDP_PYTHON's, else build/venv's, which is made if need be. CIFAR-10 is looked for in
# $DDP_CIFAR10 (its folder), then under data/; without it both sides train on made-up images.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
. "$root/tools/shell.sh"
build=${BUILD:-$root/build/cpu}
train=$build/01_single_gpu/train
out=${DDP_BENCH_OUT:-$root/build/bench}
doc=${DDP_BENCH_DOC:-$root/docs/benchmarks.md}
table=$root/tools/bench_table.py
threads=$(nproc)
declare -A modes                # what of PyTorch's is measured -> the modes it is measured in

is_count() { [[ $1 =~ ^[1-9][0-9]?$ ]]; }
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

# --- what both need ------------------------------------------------------------------------------

find_cifar()
{
    local folder
    local given=${DDP_CIFAR10:-}
    for folder in "$given" "$given/cifar-10-batches-bin" "$root/data/cifar-10-batches-bin"; do
        [ ! -f "$folder/data_batch_1.bin" ] || { echo "$folder"; return; }
    done
}

need_programs()
{
    local program
    for program; do
        [ -x "$program" ] || die "there is no $program" "./ddp setup builds it"
    done
}

prepare()
{
    need_programs "$train"
    have python3 || die "the benchmark needs python3" "apt install python3-venv"
    mkdir -p "$out"
    cifar=$(find_cifar)
}

find_torch()
{
    python=${DDP_PYTHON:-$root/build/venv/bin/python}
    if [ -z "${DDP_PYTHON:-}" ] && [ ! -x "$python" ]; then
        run python3 -m venv "$root/build/venv" ||
            die "no virtual environment could be made" "apt install python3-venv"
        run "$python" -m pip install --quiet torch torchvision safetensors numpy || {
            rm -rf "$root/build/venv"
            die "PyTorch could not be installed" "set DDP_PYTHON to a python that has it"
        }
    fi
    "$python" -c 'import torch, torchvision, numpy' || die "$python has no PyTorch" "set DDP_PYTHON"
}

# take_seeds WHO [OPTION]...: how many, in seeds.
take_seeds()
{
    local who=$1
    seeds=3
    shift
    while [ $# -gt 0 ]; do
        case $1 in
        --seeds)
            [[ ${2:-} =~ ^[1-9]$ ]] || die_usage "$who: --seeds needs a number"
            seeds=$2
            shift
            ;;
        *) die_usage "$who: unknown option $1" "./ddp bench --help" ;;
        esac
        shift
    done
}

# --- ours against PyTorch ------------------------------------------------------------------------

# Runs quietly; what it said is shown if it fails.
quietly()
{
    local log=${log:-$out/log.txt}
    show "$@"
    "$@" >"$log" 2>&1 || { tail -20 "$log" >&2; return 1; }
}

ours() { quietly "$train" --threads "$threads" -b 256 --data "${cifar:-synthetic}" "$@"; }
torch()
{
    local command=("$python" "$root/tools/bench_torch.py" "$@" --threads "$threads"
        ${cifar:+--data "$cifar"})
    show "${command[@]}"
    "${command[@]}" 2>"$out/log.txt"
}

# PyTorch in each of its modes; one that does not run here is left out from then on.
torch_round()
{
    local what=$1 round=$2 mode file
    shift 2
    for mode in ${modes[$what]}; do
        file=$out/torch-$what-$mode-$round.json
        torch "$what" --mode "$mode" --steps "$steps" "$@" >"$file" && continue
        rm -f "$file"
        mv "$out/log.txt" "$out/torch-failed-$mode.txt"
        say "$mode does not run here: $(tail -1 "$out/torch-failed-$mode.txt")"
        modes[$what]=${modes[$what]/$mode/}
    done
}

# (a) Steps alone: nothing is augmented, and PyTorch's batch lies ready.
step_round()
{
    ours --no-augment --max-steps "$steps" -p 5 --metrics "$out/ours-step-$1.jsonl"
    torch_round step "$1"
}

# (b), (d), (e) A whole epoch with its data, memory, and the share of the epoch spent waiting.
epoch_round()
{
    ours --epochs 1 --test-samples 256 -p 49 --metrics "$out/ours-epoch-$1.jsonl"
    torch epoch --mode "$best" --workers "$workers" >"$out/torch-epoch-$best-$1.json"
}

# Seconds from now until a line with TEXT comes out of the pipe that the command writes. The line is left
# in $out/line.
seconds_until()
{
    local text=$1 begin=$EPOCHREALTIME end='' line
    shift
    exec 7<>"$out/pipe"
    "$@" &
    while [ -z "$end" ] && IFS= read -r -t 300 -u 7 line; do
        [[ $line != *"$text"* ]] || end=$EPOCHREALTIME
    done
    wait $! || die "failed: $*"
    exec 7>&-
    [ -n "$end" ] || die "no line with $text: $*"
    printf '%s\n' "$line" >"$out/line"
    awk -v a="$begin" -v b="$end" 'BEGIN { printf "%.4f\n", b - a }'
}

# (c) From the start of the process to the end of its first step.
ours_first()
{
    exec "$train" --threads "$threads" -b 256 --data "${cifar:-synthetic}" --max-steps 1 -p 1 \
        --metrics "$out/pipe" >/dev/null
}
torch_first()
{
    exec "$python" "$root/tools/bench_torch.py" first --threads "$threads" --workers "$workers" \
        ${cifar:+--data "$cifar"} >"$out/pipe" 2>"$out/log.txt"
}
# Each starts once unmeasured: files are in the page cache then, and the machine's memory is at hand.
first_round()
{
    seconds_until '"event":"step"' ours_first >/dev/null
    seconds_until '"event":"step"' ours_first >"$out/ours-first-$1.s"
    seconds_until '"what": "first"' torch_first >/dev/null
    seconds_until '"what": "first"' torch_first >"$out/torch-first-$1.s"
    say "first step: ours $(cat "$out/ours-first-$1.s") s, PyTorch $(cat "$out/torch-first-$1.s") s"
}

compare()
{
    local rounds=5 steps=60 epochs=3 round part parts="step first epoch"
    modes[step]="default channels_last compile compile_channels_last"
    workers=$((threads < 4 ? threads : 4))
    while [ $# -gt 0 ]; do
        case $1 in
        --rounds)
            is_count "${2:-}" || die_usage "bench: --rounds needs a number"
            rounds=$2
            shift
            ;;
        --only)
            [[ ${2:-} =~ ^(step|first|epoch)$ ]] || die_usage "bench: --only step, first or epoch"
            parts=$2
            shift
            ;;
        --quick) rounds=1 steps=20 epochs=0 modes[step]="default channels_last" ;;
        *) die_usage "bench: unknown option $1" "./ddp bench --help" ;;
        esac
        shift
    done
    prepare
    find_torch
    for part in $parts; do
        rm -f "$out"/ours-$part-* "$out"/torch-$part-* "$out/pipe"
        mkfifo "$out/pipe"
        [ $part != epoch ] || best=$(python3 "$table" best "$out")
        for ((round = 1; round <= rounds; round++)); do
            [ $part = epoch ] && [ $round -gt $epochs ] || ${part}_round $round
        done
    done
    rm -f "$out/pipe"
    run python3 "$table" write "$out" "$doc"
}

# --- two ranks, two devices ----------------------------------------------------------------------

# One of our programs, started as ./ddp run starts it, with one thread for each rank or device.
ours_of()
{
    local name=$1 step=$2 log=$out/log-$1.txt
    shift 2
    quietly env GOMP_SPINCOUNT=2000 "$build/$step/train" --threads 1 --data "${cifar:-synthetic}" \
        --no-augment --max-steps "$steps" -p 5 --metrics "$out/ours-$name-$round.jsonl" "$@"
}

# The compute of two ranks: two programs at the same time that know nothing of each other.
ours_beside()
{
    local other
    ours_of beside_a 01_single_gpu -b 128 &
    other=$!
    ours_of beside_b 01_single_gpu -b 128 || { wait $other; return 1; }
    wait $other
}

# What ranks exchange with no computation beside it: one all-reduce as large as the gradients of
# ResNet-18, and many sizes; ours and the library's own in turn.
exchange()
{
    local what=$1
    shift
    local command=("$build/comm_bench" -n 2 --op all_reduce --compare "$@")
    show "${command[@]}"
    "${command[@]}" >"$out/exchange-$what-$round.txt"
}

# PyTorch's modes are tried in the first round; then the fastest stands for PyTorch.
keep_fastest()
{
    local what
    for what in ddp step; do
        modes[$what]=$(python3 "$table" best "$out" $what)
    done
}

parallel_round()
{
    local round=$1
    ours_of ddp 03_ddp_fork -n 2 -b 128
    threads=1 torch_round ddp "$round" --ranks 2 --batch 128
    ours_of alone 01_single_gpu -b 128
    ours_beside
    exchange gradients -b $gradients -e $gradients
    exchange sizes -b 8 -e $((64 << 20)) -f 8
    ours_of unhidden 03_ddp_fork -n 2 -b 128 --overlap 0
    ours_of naive 03_ddp_fork -n 2 -b 128 --bucket-mb 0
    ours_of devices 02_data_parallel --devices 2 -b 256
    threads=2 torch_round step "$round" --batch 256
    [ "$round" != 1 ] || keep_fastest
}

parallel()
{
    local rounds=5 steps=60 gradients=44726568 round
    modes=([ddp]="default channels_last"
        [step]="default channels_last compile compile_channels_last")
    while [ $# -gt 0 ]; do
        case $1 in
        --rounds)
            is_count "${2:-}" || die_usage "bench parallel: --rounds needs a number"
            rounds=$2
            shift
            ;;
        --quick) rounds=1 steps=20 modes[step]="default channels_last" ;;
        *) die_usage "bench parallel: unknown option $1" "./ddp bench --help" ;;
        esac
        shift
    done
    out=$out/parallel
    prepare
    need_programs "$build"/{02_data_parallel/train,03_ddp_fork/train,comm_bench}
    find_torch
    find "$out" -type f -delete
    for ((round = 1; round <= rounds; round++)); do
        say "round $round of $rounds"
        parallel_round $round
    done
    run python3 "$table" parallel "$out" "$doc"
}

# --- starting, dying, saving -----------------------------------------------------------------------

launch()
{
    prepare
    need_programs "$build"/04_ddp_launcher/{launch,train}
    find_torch
    run python3 "$root/tools/bench_launch.py" "$build" "$doc" --python "$python" --folder "$out" \
        ${cifar:+--data "$cifar"} "$@"
}

# --- mixed precision -------------------------------------------------------------------------------

amp_train() { log=$out/log-$1.txt quietly "$build/05_ddp_amp/train" --threads "$threads" "${@:2}"; }

# amp_step NAME MODE BATCH STEPS: its metrics in ours-NAME-ROUND.jsonl.
amp_step()
{
    amp_train "$1" --data "${cifar:-synthetic}" --no-augment --amp "$2" -b "$3" --max-steps "$4" -p 5 \
        --metrics "$out/ours-$1-$round.jsonl"
}

# amp_wire NAME OPTION...: what two ranks send each other in a few steps, and in ten more.
amp_wire()
{
    local name=$1 count
    shift
    "$root/tests/wire.sh" true >/dev/null || {
        say "bytes on the wire are not counted: that takes iproute2 and the right to make namespaces"
        return
    }
    for count in 3 13; do
        quietly "$root/tests/wire.sh" "$build/05_ddp_amp/launch" --nproc-per-node 2 -- \
            "$build/05_ddp_amp/train" --threads 1 --data synthetic --no-augment -b 8 --amp off \
            --max-steps $count "$@"
        sed -n 's/^bytes on the wire: //p' "$out/log.txt" >"$out/wire-$name-$count.txt"
    done
}

amp_round()
{
    local round=$1
    amp_step bf16 bf16 256 "$steps"
    torch_round amp "$round" --batch 256
    [ "$round" != 1 ] || modes[amp]=$(python3 "$table" best "$out" amp)
    amp_step f32 off 256 "$steps"
    amp_step large_bf16 bf16 2048 3
    amp_step large_f32 off 2048 3
}

amp()
{
    local rounds=5 steps=60 round
    modes=([amp]="default channels_last compile compile_channels_last")
    while [ $# -gt 0 ]; do
        case $1 in
        --rounds)
            is_count "${2:-}" || die_usage "bench amp: --rounds needs a number"
            rounds=$2
            shift
            ;;
        --quick) rounds=1 steps=20 modes[amp]="default channels_last" ;;
        *) die_usage "bench amp: unknown option $1" "./ddp bench --help" ;;
        esac
        shift
    done
    out=$out/amp
    prepare
    need_programs "$build"/05_ddp_amp/{launch,train}
    find_torch
    find "$out" -type f ! -name 'curve-*' -delete
    amp_wire f32
    amp_wire bf16 --compress bf16
    for ((round = 1; round <= rounds; round++)); do
        say "round $round of $rounds"
        amp_round $round
    done
    run python3 "$table" amp "$out" "$doc"
}

# In f32 and in bf16 the same seed means the same weights at first, and the same batches.
amp_curve()
{
    local seed mode
    take_seeds "bench amp-curve" "$@"
    out=$out/amp
    prepare
    need_programs "$build/05_ddp_amp/train"
    [ -n "$cifar" ] || die "accuracy needs CIFAR-10" "./ddp data cifar10"
    rm -f "$out"/curve-*
    for ((seed = 1; seed <= seeds; seed++)); do
        for mode in off bf16; do
            amp_train curve --data "$cifar" --epochs 5 --seed $seed --amp $mode \
                --metrics "$out/curve-$mode-$seed.jsonl"
        done
    done
    run python3 "$table" amp-curve "$out" "$doc"
}

# --- evaluating --------------------------------------------------------------------------------------

# eval_ranks RANKS THREADS NAME TYPE [OPTION]...: train of 07 as ./ddp run starts it.
eval_ranks()
{
    local ranks=$1 threads=$2 name=$3 amp=${4/f32/off} step=$build/07_dist_eval
    log=$out/log-$name.txt quietly env GOMP_SPINCOUNT=2000 "$step/launch" --nproc-per-node "$ranks" -- \
        "$step/train" --threads "$threads" --data "${cifar:-synthetic}" --amp "$amp" "${@:5}"
}

# Short epochs, for the evaluation behind each.
eval_steady()
{
    eval_ranks "$1" "$2" "$3" "$4" --no-augment --train-samples 256 --epochs 6 --metrics "$out/ours-$3-$round.jsonl" \
        --trace "$out/ours-$3-$round.json"
}

# From the start of the process to the result; PyTorch in a mode that has nothing to prepare.
eval_ours_whole()
{
    exec env GOMP_SPINCOUNT=2000 "$build/07_dist_eval/train" --threads "$threads" --data "${cifar:-synthetic}" \
        --amp "${type/f32/off}" -e --init "$out/weights" --metrics "$out/pipe" >/dev/null
}
eval_torch_whole()
{
    exec "$python" "$root/tools/bench_torch.py" "whole_$type" --mode channels_last --threads "$threads" \
        --init "$out/weights" ${cifar:+--data "$cifar"} >"$out/pipe" 2>"$out/log.txt"
}
eval_whole()
{
    seconds_until '"event":"eval"' eval_ours_whole >"$out/ours-whole_$type-$round.s"
    mv "$out/line" "$out/ours-whole_$type-$round.json"
    seconds_until '"what": "whole' eval_torch_whole >"$out/torch-whole_$type-$round.s"
    mv "$out/line" "$out/torch-whole_$type-$round.json"
}

eval_round()
{
    local round=$1 type
    for type in f32 bf16; do
        eval_steady 1 "$threads" "eval_$type" $type
        torch_round "eval_$type" "$round" --batch 256 --init "$out/weights"
        [ "$round" != 1 ] || modes[eval_$type]=$(python3 "$table" best "$out" "eval_$type")
        eval_steady 1 1 "one_$type" $type
        eval_steady 2 1 "two_$type" $type
        eval_whole
    done
}

evaluation()
{
    local rounds=5 steps=5 round
    modes=([eval_f32]="channels_last folded frozen folded_frozen compile autotune"
        [eval_bf16]="channels_last folded frozen compile autotune frozen_cast compile_cast autotune_cast")
    while [ $# -gt 0 ]; do
        case $1 in
        --rounds)
            is_count "${2:-}" || die_usage "bench eval: --rounds needs a number"
            rounds=$2
            shift
            ;;
        --quick) rounds=1 steps=3 modes=([eval_f32]="frozen folded_frozen" [eval_bf16]="channels_last frozen") ;;
        *) die_usage "bench eval: unknown option $1" "./ddp bench --help" ;;
        esac
        shift
    done
    out=$out/eval
    prepare
    need_programs "$build"/07_dist_eval/{launch,train}
    find_torch
    "$python" -c 'import safetensors' || die "$python has no safetensors" "pip install safetensors"
    find "$out" -type f -delete
    rm -f "$out/pipe"
    mkfifo "$out/pipe"
    eval_ranks 1 "$threads" weights f32 --train-samples 12800 --epochs 1 --save "$out/weights"
    for ((round = 1; round <= rounds; round++)); do
        say "round $round of $rounds"
        eval_round $round
    done
    rm -f "$out/pipe"
    run python3 "$table" eval "$out" "$doc"
}

# --- the steps side by side --------------------------------------------------------------------------

# The job that all of them have, on the same cores: with $share threads for each of two ranks or devices.
job_of()
{
    local launch=("$build/$2/launch" --nproc-per-node 2 --)
    case $1 in
    one) command=(--threads "$share" -b 256) ;;
    all) command=(--threads $((2 * share)) -b 256) ;;
    devices) command=(--devices 2 --threads "$share" -b 256) ;;
    fork) command=(-n 2 --threads "$share" -b 128) ;;
    *) command=(--threads "$share" -b 128) ;;
    esac
    command=("$build/$2/train" "${command[@]}" --data "${cifar:-synthetic}" --test-samples 256 --no-augment -p 5
        "${@:3}")
    case $1 in
    one | all | devices | fork) ;;
    slurm) command=("$root/tools/slurm.sh" run srun --kill-on-bad-exit=1 -N2 -n2 "${command[@]}") ;;
    *) command=("${launch[@]}" "${command[@]}") ;;
    esac
    command=(env GOMP_SPINCOUNT=2000 "${command[@]}")
}

# each_step DO: do it with a name, a step, and options.
each_step()
{
    $1 one 01_single_gpu
    $1 all 01_single_gpu
    $1 devices 02_data_parallel
    $1 fork 03_ddp_fork
    $1 launch 04_ddp_launcher
    $1 bf16 05_ddp_amp --amp bf16
    $1 compress 05_ddp_amp --amp bf16 --compress bf16
    [ -f "$out/slurm-skipped.txt" ] || $1 slurm 06_slurm --amp off
    $1 eval 07_dist_eval --amp off
}

time_step()
{
    job_of "$@" --max-steps "$steps" --metrics "$out/ours-$1-$round.jsonl"
    log=$out/log-$1.txt quietly "${command[@]}"
}

# What our programs that peak_of has started have of the memory, in KB: pages that several share are counted once.
occupied()
{
    local pid
    { grep -lzxF "DDP_BENCH_RUN=$$" /proc/[0-9]*/environ || true; } | while IFS=/ read -r _ _ pid _; do
        [[ $(readlink "/proc/$pid/exe") != "$build"/* ]] || cat "/proc/$pid/smaps_rollup" || true
    done | awk '$1 == "Pss:" { kb += $2 } END { print kb + 0 }'
} 2>/dev/null

# peak_of FILE COMMAND...: the most that it occupied, of about ten looks a second.
peak_of()
{
    local file=$1 most=0 now
    shift
    DDP_BENCH_RUN=$$ quietly "$@" &
    while kill -0 $! 2>/dev/null; do
        now=$(occupied)
        [ "$now" -le "$most" ] || most=$now
        sleep 0.1
    done
    wait $! || return 1
    echo "$most" >"$file"
}

# Bytes that have left the nodes of the cluster.
sent_by_nodes()
{
    local node
    for node in 1 2; do "$root/tools/slurm.sh" node $node cat /proc/net/dev; done |
        awk '$1 == "eth0:" { sent += $10 } END { printf "%d\n", sent }'
}

# Memory, and the bytes that ranks send each other: those of ten steps more are those of ten steps.
count_step()
{
    local count before wire=()
    case $1 in
    one | all | devices | slurm) ;;
    *) [ -z "$counts_wire" ] || wire=("$root/tests/wire.sh") ;;
    esac
    for count in 3 13; do
        job_of "$@" --max-steps $count
        [ "$1" != slurm ] || before=$(sent_by_nodes)
        log=$out/log-$1.txt peak_of "$out/peak-$1.kb" "${wire[@]}" "${command[@]}"
        if [ "$1" = slurm ]; then
            echo $(($(sent_by_nodes) - before)) >"$out/wire-$1-$count.txt"
        elif [ ${#wire[@]} -gt 0 ]; then
            sed -n 's/^bytes on the wire: //p' "$out/log-$1.txt" >"$out/wire-$1-$count.txt"
        fi
    done
}

# A cluster of two nodes until this script ends; where there can be none, its row says so.
start_cluster()
{
    export DDP_SLURM_DIR=$out/cluster
    local said=$out/slurm.txt
    if "$root/tools/slurm.sh" up 2 --cpus "$threads" >"$said" 2>&1; then
        trap '"$root/tools/slurm.sh" down' EXIT
        grep -q "no namespaces here" "$said" || return 0
        "$root/tools/slurm.sh" down
        trap - EXIT
    fi
    head -1 "$said" >"$out/slurm-skipped.txt"
    say "06 is skipped: $(cat "$out/slurm-skipped.txt")"
}

steps()
{
    local rounds=5 steps=40 round share=$((threads / 2 > 0 ? threads / 2 : 1)) counts_wire=yes command
    while [ $# -gt 0 ]; do
        case $1 in
        --rounds)
            is_count "${2:-}" || die_usage "bench steps: --rounds needs a number"
            rounds=$2
            shift
            ;;
        --quick) rounds=1 steps=20 ;;
        *) die_usage "bench steps: unknown option $1" "./ddp bench --help" ;;
        esac
        shift
    done
    out=$out/steps build=$(readlink -f "$build")
    prepare
    need_programs "$build"/{01_single_gpu,02_data_parallel,03_ddp_fork}/train \
        "$build"/{04_ddp_launcher,05_ddp_amp,07_dist_eval}/{launch,train} "$build/06_slurm/train"
    find "$out" -maxdepth 1 -type f -delete
    "$root/tests/wire.sh" true >/dev/null || {
        counts_wire=
        say "bytes on the wire are not counted: that takes iproute2 and the right to make namespaces"
    }
    "$root/tools/check_series.sh" >"$out/series.txt" || say "tools/check_series.sh complains: lines may be miscounted"
    start_cluster
    each_step count_step
    for ((round = 1; round <= rounds; round++)); do
        say "round $round of $rounds"
        each_step time_step
    done
    run python3 "$table" steps "$out" "$doc"
}

# --- the articles' recipe ------------------------------------------------------------------------

curve()
{
    local seed
    take_seeds "bench curve" "$@"
    prepare
    [ -n "$cifar" ] || die "the articles' recipe needs CIFAR-10" "./ddp data cifar10"
    rm -f "$out"/curve-*
    for ((seed = 1; seed <= seeds; seed++)); do
        run "$train" --data "$cifar" --epochs 5 --seed $seed --threads "$threads" -p 1 \
            --metrics "$out/curve-$seed.jsonl"
    done
    run python3 "$table" curve "$out" "$doc"
}

# --- on the little Slurm cluster -------------------------------------------------------------------

slurm()
{
    case "$*" in
    '' | --quick | "--rounds "[1-9] | "--rounds "[1-9][0-9]) ;;
    *) die_usage "bench slurm: not '$*': --rounds N or --quick" "./ddp bench --help" ;;
    esac
    need_programs "$build"/{06_slurm/train,comm_bench}
    have python3 || die "the benchmark needs python3" "apt install python3"
    mkdir -p "$out/slurm"
    run python3 "$root/tools/bench_slurm.py" "$build" "$doc" --folder "$out/slurm" "$@"
}

case ${1:-} in
-h | --help | help) usage ;;
slurm) shift; slurm "$@" ;;
parallel) shift; parallel "$@" ;;
launch) shift; launch "$@" ;;
amp) shift; amp "$@" ;;
amp-curve) shift; amp_curve "$@" ;;
eval) shift; evaluation "$@" ;;
steps) shift; steps "$@" ;;
faults) exec "$root/tests/faults.sh" prove ;;
curve) shift; curve "$@" ;;
*) compare "$@" ;;
esac
