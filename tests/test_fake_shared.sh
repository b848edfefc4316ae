#!/usr/bin/env bash
# ctest: PROCESSORS 2 TIMEOUT 400
# shellcheck disable=SC2317  # check calls functions
# Ranks of NCCL that share simulated GPUs, by the switch of NCCL 2.30 and by the way around it in older versions. The
# mock refuses what NCCL refuses (fake_cuda/nccl.c).
. "$SRC/tests/test.sh"
. "$SRC/tests/fake.sh"
unset "${!NCCL_@}"
export FAKE_DELAY=300

common=(--arch lenet --data synthetic --image-size 28 --train-samples 19 --test-samples 8 --seed 3 --epochs 2)
safe=(--slow-network 1e6)       # steps are not recorded
step() { echo "$tree/fake/$1/train"; }
like() { trains "${@:2}" && is "$hash" "$1"; }
# launched STEP RANKS OPTION...: as `like`, of ranks that STEP's launcher starts
launched() { like "${own[$2]}" "$tree/cuda/$1/launch" -n "$2" -- "$(step "$1")" "${@:3}"; }
said_once() { [ "$(grep -c "ranks share" "$TMP/output")" = 1 ] && grep -qxF "[init] == $1 and take turns: \
for learning, not for speed" "$TMP/output"; }

for ranks in 2 4; do
    job=(-b $((4 / ranks)) "${common[@]}")
    FAKE_GPUS=$ranks check "$ranks ranks on $ranks GPUs, not recorded" \
        trains "$(step 03_ddp_fork)" -n $ranks "${job[@]}" "${safe[@]}"
    check "none is shared" not grep "ranks share" "$TMP/output"
    own[ranks]=$hash
done
two=(-b 2 "${common[@]}") four=(-b 1 "${common[@]}")

for version in 22809 23007; do
    export FAKE_NCCL_VERSION=$version FAKE_GPUS=1
    check "$version: two ranks on one GPU" like "${own[2]}" "$(step 03_ddp_fork)" -n 2 "${two[@]}"
    check "$version: one line" said_once "2 ranks share 1 GPU"
    check "$version: four on one" like "${own[4]}" "$(step 03_ddp_fork)" -n 4 "${four[@]}"
    FAKE_GPUS=2 check "$version: four on two" like "${own[4]}" "$(step 03_ddp_fork)" -n 4 "${four[@]}"
    check "$version: one line for four" said_once "4 ranks share 2 GPUs"
done
export FAKE_GPUS=1
CUDA_VISIBLE_DEVICES=0 check "by default, one rank per GPU" trains "$(step 03_ddp_fork)" "${two[@]}"
check "and none is shared" not grep "ranks share" "$TMP/output"
for name in 04_ddp_launcher 05_ddp_amp 06_slurm 07_dist_eval; do
    off=(--amp off)
    [ $name != 04_ddp_launcher ] || off=()
    check "$name: two ranks on one GPU" launched $name 2 "${two[@]}" "${off[@]}"
    check "$name: one line" said_once "2 ranks share 1 GPU"
    FAKE_GPUS=2 check "$name: four on two" launched $name 4 "${four[@]}" "${off[@]}"
done
check "mpirun" like "${own[2]}" mpirun -np 2 "$(step 07_dist_eval)" "${two[@]}" --amp off
check "mpirun: one line" said_once "2 ranks share 1 GPU"
# Slurm's variables, as srun sets them for two tasks on one node
tasks()
{
    local rank
    for rank in 1 0; do
        env SLURM_CLUSTER_NAME=ddp SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_PROCID="$rank" SLURM_STEP_NUM_TASKS=2 \
            SLURM_LOCALID="$rank" SLURM_GTIDS=0,1 SLURM_NODEID=0 SLURM_STEP_NUM_NODES=1 SLURM_NTASKS=2 \
            SLURM_JOB_NUM_NODES=1 SLURM_STEP_NODELIST=localhost SLURMD_NODENAME=localhost \
            timeout -k 5 60 "$(step 06_slurm)" "${two[@]}" --amp off --master-addr 127.0.0.1 &
    done >"$TMP/output" 2>&1
    wait -n && wait -n
}
check "Slurm's tasks" tasks
check "with the same weights" is "$(hash_of "$TMP/output")" "${own[2]}"
check "Slurm: one line" said_once "2 ranks share 1 GPU"

# Two communicators on a shared GPU, with everything else.
all=("${two[@]}" --arch convnet --amp fp16 --accumulate 2 --clip-norm 5 --compress fp16 --sync-bn --growth-interval 3)
seven=("$tree/cuda/07_dist_eval/launch" -n 2 -- "$(step 07_dist_eval)")
check "fp16 and more, not recorded" trains "${seven[@]}" "${all[@]}" "${safe[@]}"
check "fp16 and more" like "$hash" "${seven[@]}" "${all[@]}"

# The user's variables win.
ranks() { "$(step 03_ddp_fork)" -n 2 "${two[@]}" "$@"; }
FAKE_NCCL_VERSION=23007 NCCL_MULTI_RANK_GPU_ENABLE=0 expect 1 "rank 1 has the same GPU as rank 0" ranks
FAKE_NCCL_VERSION=22809 NCCL_HOSTID=one expect 1 "rank 1 has the same GPU as rank 0" ranks
FAKE_NCCL_VERSION=22809 NCCL_NET=IB expect 99 "NCCL would connect them by InfiniBand" ranks
NCCL_NVLS_ENABLE=1 expect 99 "NCCL may use NVLink SHARP" ranks

FAKE_FAIL="cudaSetDevice 2" expect 1 "fewer ranks on this GPU (-n), need less memory" ranks
FAKE_FAIL="ncclCommInitRank 1" expect 1 "hint: is the GPU's memory full?" ranks

# Where ranks take turns, cuDNN's engines are not timed, as with --deterministic.
convolutions() { FAKE_GPUS=$1 FAKE_PRINT=1 ranks --max-steps 1 "${@:2}" 2>&1 | grep -c convolution; }
fixed=$(convolutions 1 --deterministic)
check "no engine is timed" is "$(convolutions 1)" "$fixed"
check "they are timed on GPUs of their own" test "$(convolutions 2)" -gt "$fixed"
test_done
