#!/usr/bin/env bash
# ctest: PROCESSORS 2 TIMEOUT 400
# A change that is not meant to change numbers must not change one bit of the weights. tests/reference/hashes.txt has
# the weights' hashes after three steps of small jobs, for each machine on which it was written: rounding depends on
# the processor, oneDNN and the compiler. On other machines, the steps are only compared with each other: 01 and one
# rank of 03 to 07 end with the same bits, and so do two ranks of each of these. To write this machine's hashes again:
#
#   HASHES=write ./ddp test -R test_hashes
. "$SRC/tests/test.sh"
file=$SRC/tests/reference/hashes.txt

seq 1 2000 >numbers.txt
mkdir cifar
perl -e 'sub byte { $x = ($x * 1103515245 + 12345) % 2**31; $x >> 16 }
    for (1 .. 100) { $records .= chr(byte() % 10); $records .= chr(byte() & 255) for 1 .. 3072 }
    print $records x 100' >cifar/data_batch_1.bin
for name in data_batch_{2..5} test_batch; do
    ln -s data_batch_1.bin cifar/$name.bin
done

# job STEP BATCH ARCH [OPTIONS]: sets `job` to the command that trains with this step.
job()
{
    local step=$1 batch=$2 arch=$3 data=(--data cifar10:cifar)
    [ "$arch" = gpt ] && data=(--data text:numbers.txt --layers 2 --heads 2 --width 64 --block 32 --dropout 0.1)
    shift 3
    job=("$BUILD/$step/train" -a "$arch" "${data[@]}" -b "$batch" --max-steps 3 --threads 1 -j 1 --seed 3 "$@")
}

one() { job 01_single_gpu 8 "$1" && "${job[@]}"; }

replicas() { job 02_data_parallel 8 "$1" --devices 2 && "${job[@]}"; }

ranks() # ranks STEP N ARCH [OPTIONS]
{
    local step=$1 n=$2
    shift 2
    job "$step" $((8 / n)) "$@"
    if [ "$step" = 03_ddp_fork ]; then
        "${job[@]}" -n "$n"
    else
        "$BUILD/$step/launch" -n "$n" -- "${job[@]}"
    fi
}

# same KEY COMMAND...: the command must print the same hash as the command before it with this key.
declare -A hash_for=()
keys=()
same()
{
    local key=$1 hash
    shift
    expect 0 "weight hash: " "$@"
    hash=$(hash_of)
    if [ -z "${hash_for[$key]:-}" ]; then
        keys+=("$key")
        hash_for[$key]=$hash
    else
        check "$key: $* has the weights of the steps before" is "$hash" "${hash_for[$key]}"
    fi
}

# Prints what the bits depend on: the processor, oneDNN and the instructions it may use, the compiler and its options.
machine_of()
{
    DNNL_VERBOSE=1 one lenet >verbose 2>&1
    sed -n '/^$/q; s/^\(model name\|cpu family\|model\|CPU implementer\|CPU part\)\t*: */\1 /p' /proc/cpuinfo
    sed -n 's/.*_verbose.*info,cpu,isa:/oneDNN for /p; s/.*_verbose.*info,\(oneDNN [^ ]*\).*/\1/p' verbose
    "$(cached CMAKE_C_COMPILER)" --version | head -1
    cached CMAKE_BUILD_TYPE
    cached DDP_MARCH
}

# Compares the hashes with the paragraph of hashes.txt that begins with the description of this machine.
compared=0
compare()
{
    local machine key
    machine=$(machine_of | paste -sd, | sed 's/,/, /g')
    { echo "$machine"; for key in "${keys[@]}"; do echo "${hash_for[$key]}  $key"; done; } >now
    if [ "${HASHES:-}" = write ]; then
        { MACHINE=$machine awk 'BEGIN { RS = ""; ORS = "\n\n" } index($0, ENVIRON["MACHINE"] "\n") != 1' "$file"
          cat now; } >written && cp written "$file"
    fi
    MACHINE=$machine awk 'BEGIN { RS = "" } index($0, ENVIRON["MACHINE"] "\n") == 1' "$file" >before
    if [ -s before ]; then
        check "the hashes are those of tests/reference/hashes.txt" diff before now
        cat checked
        compared=$((compared + 1))
    else
        echo "NOT COMPARED: tests/reference/hashes.txt has no hashes of this machine: $machine." \
            "Write them before your change, as test_hashes.sh says, and compare after it."
    fi
    keys=() hash_for=()
}

for arch in lenet convnet resnet18 gpt; do
    same "$arch, one process, f32" one $arch
done
for arch in resnet18 gpt; do
    same "$arch, two replicas, f32" replicas $arch
    for n in 1 2; do
        key="$arch, two ranks"
        [ $n = 1 ] && key="$arch, one process"
        same "$key, f32" ranks 03_ddp_fork $n $arch
        same "$key, f32" ranks 04_ddp_launcher $n $arch
        for step in 05_ddp_amp 06_slurm 07_dist_eval; do
            same "$key, f32" ranks $step $n $arch --amp off
            same "$key, bf16" ranks $step $n $arch --amp bf16
        done
    done
done
compare

whole=$(machine_of)
export DNNL_MAX_CPU_ISA=AVX2        # oneDNN and the loops use only the instructions that older processors have, too
if [ "$(machine_of)" != "$whole" ]; then
    for arch in convnet resnet18 gpt; do
        same "$arch, one process, f32" one $arch
    done
    same "resnet18, two ranks, f32" ranks 03_ddp_fork 2 resnet18
    compare
fi

[ $failed != 0 ] || [ $compared != 0 ] || exit 77
test_done
