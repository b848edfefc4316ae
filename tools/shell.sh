# shellcheck shell=bash disable=SC2034
# shell.sh - shared by ./ddp, the scripts in this folder and a GPU bundle: printing messages, running commands.

bold='' dim='' red='' green='' yellow='' plain=''
if [ -t 2 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
    bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' yellow=$'\e[33m' plain=$'\e[0m'
fi

say() { printf '%s\n' "$*" >&2; }
hint() { say "${dim}hint: $*$plain"; }
die() { say "${red}ddp: $1$plain"; [ $# = 1 ] || hint "$2"; exit 1; }
die_usage() { say "${red}ddp: $1$plain"; hint "${2:-./ddp help}"; exit 2; }

have() { command -v "$1" >/dev/null 2>&1; }

# Prints the words quoted, as you would type them.
quoted()
{
    local word line=
    for word; do
        if [[ $word =~ ^[A-Za-z0-9_./:=,@%+~-]+$ ]]; then
            line+=" $word"
        else
            line+=" '${word//\'/\'\\\'\'}'"
        fi
    done
    printf '%s' "${line# }"
}

# show prints a command; run prints and runs it.
show() { say "$dim\$$plain $bold$(quoted "$@")$plain"; }
run() { show "$@"; "$@"; }

# The number of GPUs in CUDA_VISIBLE_DEVICES or, if that is not set, of this machine.
count_gpus()
{
    case ${CUDA_VISIBLE_DEVICES-all} in
    '' | -*) echo 0 ;;
    all) nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true ;;
    *) tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c . || true ;;
    esac
}

# step_command FOLDER RANKS OPTION...: sets command, which starts the step in FOLDER with RANKS ranks or devices. If
# RANKS is empty, the program starts without a launcher and with its own default. 01 ignores RANKS.
step_command()
{
    local folder=$1 ranks=$2
    command=("$folder/train")
    case ${ranks:+${folder##*/}} in
    '' | 01_*) ;;
    02_*) command+=(--devices "$ranks") ;;
    03_*) command+=(-n "$ranks") ;;
    *) command=("$folder/launch" --nproc-per-node "$ranks" -- "${command[@]}") ;;
    esac
    command+=("${@:3}")
}
