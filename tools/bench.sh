#!/usr/bin/env bash
# bench.sh - measures ours against PyTorch, in turns, and writes docs/benchmarks.md (./ddp bench).
#
#   bench.sh [--rounds N] [--quick]     ours against PyTorch: step, epoch, start, memory, waiting
#            [--only step|first|epoch]  one part anew, the others as they were measured before
#   bench.sh curve [--seeds N]          the articles' recipe on CIFAR-10: 5 epochs, seeds 1 to N
#
# PyTorch is $DDP_PYTHON's, else build/venv's, which is made if need be. CIFAR-10 is looked for in
# $DDP_CIFAR10 (its folder), then under data/; without it both sides train on made-up images.
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
. "$root/tools/shell.sh"
train=${BUILD:-$root/build/cpu}/01_single_gpu/train
out=${DDP_BENCH_OUT:-$root/build/bench}
doc=${DDP_BENCH_DOC:-$root/docs/benchmarks.md}
table=$root/tools/bench_table.py
threads=$(nproc)

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

prepare()
{
    [ -x "$train" ] || die "there is no $train" "./ddp setup builds it"
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

# --- ours against PyTorch ------------------------------------------------------------------------

# Runs quietly; what it said is shown if it fails.
quietly()
{
    show "$@"
    "$@" >"$out/log.txt" 2>&1 || { tail -20 "$out/log.txt" >&2; return 1; }
}

ours() { quietly "$train" --threads "$threads" -b 256 --data "${cifar:-synthetic}" "$@"; }
torch()
{
    local command=("$python" "$root/tools/bench_torch.py" "$@" --threads "$threads"
        ${cifar:+--data "$cifar"})
    show "${command[@]}"
    "${command[@]}" 2>"$out/log.txt"
}

# (a) Steps alone: nothing is augmented, and PyTorch's batch lies ready.
step_round()
{
    local round=$1 mode file
    ours --no-augment --max-steps "$steps" -p 5 --metrics "$out/ours-step-$round.jsonl"
    for mode in $modes; do
        file=$out/torch-step-$mode-$round.json
        torch step --mode "$mode" --steps "$steps" >"$file" && continue
        rm -f "$file"
        mv "$out/log.txt" "$out/torch-failed-$mode.txt"
        say "$mode does not run here: $(tail -1 "$out/torch-failed-$mode.txt")"
        modes=${modes/$mode/}
    done
}

# (b), (d), (e) A whole epoch with its data, memory, and the share of the epoch spent waiting.
epoch_round()
{
    ours --epochs 1 --test-samples 256 -p 49 --metrics "$out/ours-epoch-$1.jsonl"
    torch epoch --mode "$best" --workers "$workers" >"$out/torch-epoch-$best-$1.json"
}

# Seconds from now until a line with TEXT comes out of the pipe that the command writes.
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
    [ -n "$end" ] || die "no first step: $*"
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
    modes="default channels_last compile compile_channels_last"
    workers=$((threads < 4 ? threads : 4))
    while [ $# -gt 0 ]; do
        case $1 in
        --rounds)
            [[ ${2:-} =~ ^[1-9][0-9]?$ ]] || die_usage "bench: --rounds needs a number"
            rounds=$2
            shift
            ;;
        --only)
            [[ ${2:-} =~ ^(step|first|epoch)$ ]] || die_usage "bench: --only step, first or epoch"
            parts=$2
            shift
            ;;
        --quick) rounds=1 steps=20 epochs=0 modes="default channels_last" ;;
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

# --- the articles' recipe ------------------------------------------------------------------------

curve()
{
    local seeds=3 seed
    while [ $# -gt 0 ]; do
        case $1 in
        --seeds)
            [[ ${2:-} =~ ^[1-9]$ ]] || die_usage "bench curve: --seeds needs a number"
            seeds=$2
            shift
            ;;
        *) die_usage "bench curve: unknown option $1" "./ddp bench --help" ;;
        esac
        shift
    done
    prepare
    [ -n "$cifar" ] || die "the articles' recipe needs CIFAR-10" "./ddp data cifar10"
    rm -f "$out"/curve-*
    for ((seed = 1; seed <= seeds; seed++)); do
        run "$train" --data "$cifar" --epochs 5 --seed $seed --threads "$threads" -p 1 \
            --metrics "$out/curve-$seed.jsonl"
    done
    run python3 "$table" curve "$out" "$doc"
}

case ${1:-} in
-h | --help | help) usage ;;
curve) shift; curve "$@" ;;
*) compare "$@" ;;
esac
