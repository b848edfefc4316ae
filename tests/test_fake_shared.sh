#!/usr/bin/env bash
# ctest: PROCESSORS 2 TIMEOUT 400
# shellcheck disable=SC2317  # check calls functions
# Which simulated GPU each rank opens, and ranks of NCCL that share GPUs: NCCL 2.30 has a switch for this, and older
# versions need a workaround. The mock refuses what NCCL refuses (fake_cuda/nccl.c).
. "$SRC/tests/test.sh"
. "$SRC/tests/fake.sh"
unset "${!NCCL_@}"
export FAKE_DELAY=300

common=(--arch lenet --data synthetic --image-size 28 --train-samples 19 --test-samples 8 --seed 3 --epochs 2)
safe=(--slow-network 1e6)       # steps are not recorded
spawned=$tree/fake/03_ddp_fork/train
seven=("$tree/cuda/07_dist_eval/launch" -n 2 --)
trainer=$tree/fake/07_dist_eval/train
like() { trains "${@:2}" && is "$hash" "$1"; }
said_once() { [ "$(grep -c "ranks share" "$TMP/output")" = 1 ] && grep -qxF "[init] == $1 and take turns: \
for learning, not for speed" "$TMP/output"; }

for ranks in 2 4; do
    job=(-b $((4 / ranks)) "${common[@]}")
    FAKE_GPUS=$ranks check "$ranks ranks on $ranks GPUs, not recorded" \
        trains "$spawned" -n $ranks "${job[@]}" "${safe[@]}"
    check "none is shared" not grep "ranks share" "$TMP/output"
    own[ranks]=$hash
done
two=(-b 2 "${common[@]}") four=(-b 1 "${common[@]}")

for version in 22809 23007; do
    export FAKE_NCCL_VERSION=$version FAKE_GPUS=1
    check "$version: two ranks on one GPU" like "${own[2]}" "$spawned" -n 2 "${two[@]}"
    check "$version: one line" said_once "2 ranks share 1 GPU"
    FAKE_GPUS=2 check "$version: four on two" like "${own[4]}" "$spawned" -n 4 "${four[@]}"
    check "$version: one line for four" said_once "4 ranks share 2 GPUs"
done
check "launch" like "${own[2]}" "${seven[@]}" "$trainer" "${two[@]}" --amp off
check "launch: one line" said_once "2 ranks share 1 GPU"
if type -P mpirun >/dev/null; then
    check "mpirun" like "${own[2]}" mpirun -np 2 "$trainer" "${two[@]}" --amp off
    check "mpirun: one line" said_once "2 ranks share 1 GPU"
fi

# By default 03 starts a rank for each GPU. Under Slurm, each rank may see only its own.
CUDA_VISIBLE_DEVICES=0,1 FAKE_GPUS=2 check "one rank per GPU" like "${own[2]}" "$spawned" "${two[@]}"
CUDA_VISIBLE_DEVICES='' expect 1 "this process finds no GPU" "$spawned" "${two[@]}"
# shellcheck disable=SC2016  # launch sets it
only_own=("${seven[@]}" bash -c 'CUDA_VISIBLE_DEVICES=$LOCAL_RANK exec "$@"' -)
check "each sees only its own" like "${own[2]}" "${only_own[@]}" "$trainer" "${two[@]}" --amp off
check "and none is shared" not grep "ranks share" "$TMP/output"

# A variable that the user has set is not changed.
NCCL_MULTI_RANK_GPU_ENABLE=0 expect 1 "rank 1 has the same GPU as rank 0" "$spawned" -n 2 "${two[@]}"
test_done
