#!/usr/bin/env bash
# ctest: TIMEOUT 180
# shellcheck disable=SC2317  # check calls functions
# The CUDA programs, as they are compiled, on GPUs that are not there: fake_cuda/fake.h says what that shows, and what
# not. They compute what the CPU's programs compute; the same bits come out however the work of their streams and graphs
# happens to interleave. And mistakes, made in a copy of a source, must be noticed.
. "$SRC/tests/test.sh"
tree=${BUILD%/*}
if [ ! -f "$tree/libddp_cuda.a" ]; then
    echo "skipped: no cuda backend in this build"
    exit 77
fi
cd "$TMP" || exit 1
shopt -s nullglob
unset NCCL_COMM_ID
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# --- building ---------------------------------------------------------------------------------------------

# With the compiler and the headers of the build.
OMPI_CC=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$tree/CMakeCache.txt")
export OMPI_CC
command=$(grep '"command": .*common/cuda/device_cuda\.c' "$tree/compile_commands.json")
read -ra headers <<<"-I$SRC/common $(grep -oE -- '-isystem [^ ]+' <<<"$command" | tr '\n' ' ')"
flags=(-std=c11 -O1 -g -D_GNU_SOURCE -Wall -Wextra -Werror -Wno-missing-field-initializers "${headers[@]}")

fake=$tree/tests/CMakeFiles/fake_cuda.dir

# program STEP NAME [BACKEND]: NAME, from the objects of the build, but for those in changed/. An archive gives
# what is still missing: so it gives neither the real kernels nor what is changed.
program()
{
    local backend=${3:-cuda} objects=() libraries=() file
    for file in "$tree/$1/CMakeFiles/$1_$backend.dir"/*.o; do
        [ -f "changed/${file##*/}" ] || objects+=("$file")
    done
    [ "$backend" = cuda ] || libraries=(-lgloo)
    mpicc changed/*.o "${objects[@]}" "$fake"/fake_cuda/*.o "$fake"/simt/*.o "$tree/libddp_$backend.a" -o "$2" \
        -fopenmp "${libraries[@]}" -lstdc++ -lsodium -ljansson -lz -ljpeg -lpng -lm -lpthread
}

for step in 01_single_gpu 02_data_parallel 03_ddp_fork 07_dist_eval; do
    ln -s "$tree/fake/$step/train" "${step%%_*}"
done
check "03, with Gloo, is linked" program 03_ddp_fork 03-gloo cuda-gloo

# --- running ----------------------------------------------------------------------------------------------

# 5 batches, of which the last is short, and 2 epochs: a step is asked for, recorded, and replayed. Two ranks
# have half of each.
common=(--arch convnet --data synthetic --image-size 28 --train-samples 19 --test-samples 8 --seed 3 --epochs 2)
one=(-b 4 "${common[@]}")
two=(-b 2 "${common[@]}")
safe=(--bucket-mb 0 --overlap 0 --check-collectives)    # the host takes part in each message: nothing is beside

# hash_of COMMAND...: leaves the weights' hash in $hash, and what was said in $TMP/output.
hash_of()
{
    hash=
    timeout -k 5 60 "$@" >"$TMP/output" 2>&1 </dev/null || { cat "$TMP/output"; return 1; }
    hash=$(sed -n 's/.*weight hash: //p' "$TMP/output")
    [ -n "$hash" ]
}

# like HASH COMMAND...: it comes out with these weights, and tells the same, whatever the delays.
like()
{
    local wanted=$1 terms
    shift
    rm -f told.first
    for terms in "0 1 last" "300 2 first" "3000 3 last"; do
        read -r FAKE_DELAY FAKE_SEED FAKE_ORDER <<<"$terms"
        export FAKE_DELAY FAKE_SEED FAKE_ORDER
        hash_of "$@" || return 1
        [ "$hash" = "$wanted" ] || { echo "delay, seed and order $terms: $hash, not $wanted"; return 1; }
        grep -E '^ *== (step|test|ties):' "$TMP/output" >told
        [ -s told ] && { [ -f told.first ] || mv told told.first; }
        [ ! -f told ] || diff told.first told || { echo "delay, seed and order $terms tell another tale"; return 1; }
    done
}

# at_once COMMAND...: without delays.
at_once() { FAKE_DELAY=0 "$@"; }
seven=("$tree/cpu/07_dist_eval/launch" -n 2 -- ./07)

# --- one device -------------------------------------------------------------------------------------------

check "one device" at_once hash_of ./01 "${one[@]}"
alone=$hash
check "01" like "$alone" ./01 "${one[@]}"
check "01, the loader has no threads" like "$alone" ./01 "${one[@]}" -j 0
check "02, one device, nothing is recorded" like "$alone" ./02 --devices 1 "${one[@]}"
check "03, one rank" like "$alone" ./03 -n 1 "${one[@]}"
check "07, one rank, small buckets" like "$alone" ./07 --amp off --bucket-mb 0.02 "${one[@]}"
check "07, one rank, nothing is recorded" like "$alone" ./07 --amp off --check-collectives "${one[@]}"

# Three images of 1800 bytes would be a part behind which the next does not begin where cuDNN wants it.
odd=(-b 6 "${common[@]}" --image-size 30 --amp fp16 --accumulate 2)
check "parts of odd images" at_once hash_of ./07 "${odd[@]}" "${safe[@]}"
odd_hash=$hash
check "recorded, too" like "$odd_hash" ./07 "${odd[@]}"

# --- several ----------------------------------------------------------------------------------------------

export FAKE_GPUS=3
check "three devices" at_once hash_of ./02 --devices 3 "${one[@]}"
three=$hash
check "02, three devices" like "$three" ./02 --devices 3 "${one[@]}"
check "02, in another order" at_once hash_of ./02 --devices 2,0,1 "${one[@]}"
check "it is the same" test "$hash" = "$three"

export FAKE_GPUS=2
check "two ranks, one thing after the other" at_once hash_of ./03 -n 2 "${two[@]}" "${safe[@]}"
pair=$hash
check "two ranks are not one" test "$pair" != "$alone"
check "03, two ranks" like "$pair" ./03 -n 2 "${two[@]}"
check "03, two ranks, small buckets" like "$pair" ./03 -n 2 "${two[@]}" --bucket-mb 0.02
check "07, two ranks, small buckets" like "$pair" "${seven[@]}" "${two[@]}" --amp off --bucket-mb 0.02
FAKE_GPUS=1 check "03, two ranks on one GPU, with Gloo" like "$pair" ./03-gloo -n 2 "${two[@]}"

# All at once: fp16 whose loss scale adapts, a batch in parts, short messages, BatchNorm over both ranks; and
# gradients that overflow.

all=("${two[@]}" --amp fp16 --accumulate 2 --clip-norm 5 --compress fp16 --sync-bn --growth-interval 3)
check "fp16 and more, one thing after the other" at_once hash_of "${seven[@]}" "${all[@]}" "${safe[@]}"
check "steps were left out" grep -qE "step.*skipped: [1-9]" "$TMP/output"
check "fp16 and more" like "$hash" "${seven[@]}" "${all[@]}"


# --- evaluation -------------------------------------------------------------------------------------------

# evaluate N NAME: N ranks; what it says and writes is in NAME.out and NAME.csv.
evaluate()
{
    FAKE_GPUS=3 timeout -k 5 60 "$tree/cpu/07_dist_eval/launch" -n "$1" -- ./07 -e --init net.st "${two[@]}" --amp off \
        --test-samples 45 --per-class --predictions "$2.csv" >"$TMP/output" 2>&1 </dev/null || return 1
    grep -E '^   == (test:|ties:|[0-9]+ )' "$TMP/output" >"$2.out"
}
evaluated_alike() { evaluate "$1" many && diff one.out many.out && cmp one.csv many.csv; }
check "weights to evaluate" at_once hash_of ./01 "${one[@]}" --epochs 1 --save net.st
check "one rank evaluates" at_once evaluate 1 one
check "two ranks evaluate" evaluated_alike 2
check "three do" evaluated_alike 3

# --- what is refused, and what goes wrong -----------------------------------------------------------------

export FAKE_GPUS=1
expect 1 "2 ranks, but 1 GPU" ./03 -n 2 "${two[@]}"
expect 1 "each rank needs a GPU of its own" "${seven[@]}" "${two[@]}"
expect 1 "there is no GPU 1" ./02 --devices 0,1 "${one[@]}"
export FAKE_GPUS=2
expect 1 "NCCL 2.25 may hang with several communicators on a device" env FAKE_NCCL_VERSION=22500 \
    "${seven[@]}" "${two[@]}" --amp off
export FAKE_DELAY=20000

# signalled SIGNAL WHOM: two ranks have done an epoch of many when one of them, or their parent, gets it. Leaves
# the exit status in $status.
signalled()
{
    local pid to
    ./03 -n 2 "${two[@]}" --epochs 12 --save stopped.st >"$TMP/output" 2>&1 </dev/null &
    pid=$! to=$!
    for _ in {1..200}; do
        grep -q "test: loss" "$TMP/output" && break
        sleep 0.05
    done
    [ "$2" = parent ] || to=$(pgrep -P $pid | tail -1)
    kill -s "$1" "$to"
    wait $pid
    status=$?
}

signalled KILL rank
check "a rank is killed" test $status = 1
check "it is said" grep -qE "rank [01] of 2 .* was killed by SIGKILL" "$TMP/output"
signalled TERM parent
check "ranks agree to stop" test $status = 143
check "before the end" not grep -q "\[12/12\]" "$TMP/output"
check "twelve epochs" at_once hash_of ./03 -n 2 "${two[@]}" --epochs 12
twelve=$hash
check "what goes on" at_once hash_of ./03 -n 2 "${two[@]}" --epochs 12 --resume stopped.st
check "comes out the same" test "$hash" = "$twelve"

# A slow start is no hang.
unset FAKE_DELAY
FAKE_LOAD=2500 check "CUDA and cuDNN are loaded slowly" hash_of ./03 -n 2 "${two[@]}" --timeout 2
check "it trains as ever" test "$hash" = "$pair"

# --- mistakes ---------------------------------------------------------------------------------------------

# mistake WHAT TEXT STEP FILE FROM TO [FILE FROM TO]...: with texts replaced that stand once in their files,
# ./mistaken does not come out as $right says (a hash, and a command); what is said then matches TEXT.
mistake()
{
    check "$1: builds" mistaken "${@:3}"
    check "$1: is noticed" not like "${right[@]}"
    cp checked noticed
    check "$1: is noticed for the right reason" grep -qE -- "$2" noticed
    grep -E -- "$2" noticed | sed "s/^/    $1: /" | tail -1
}

mistaken()
{
    local step=$1 copy
    rm -rf changed
    mkdir changed
    shift
    while [ $# -gt 0 ]; do
        copy=changed/${1##*/}
        [ -f "$copy" ] || cp "$SRC/$1" "$copy"
        put_in "$copy" "$2" "$3" || return 1
        "$OMPI_CC" "${flags[@]}" -w -I"$SRC/$step" -c "$copy" -o "$copy.o" || return 1
        shift 3
    done
    program "$step" mistaken
}

right=("$alone" ./mistaken "${one[@]}")
apart=", not [0-9a-f]{16}|come apart|tell another tale|is not finite"
mistake "nobody waits for a batch" "$apart" 01_single_gpu common/data/loader.c "event_record(slot->ready, stream);" ""
mistake "a batch is overwritten" "$apart" 01_single_gpu common/data/loader.c \
    "event_record(loader->slots[loader->batch.slot].done, device_stream(loader->device));" ";"
right=("$three" ./mistaken --devices 3 "${one[@]}")
FAKE_GPUS=3 mistake "no wait between phases" "$apart" 02_data_parallel 02_data_parallel/replicas.c \
    "stream_sync(device_stream(replica->device));" ""
right=("$pair" ./mistaken -n 2 "${two[@]}" --bucket-mb 0.02)
ddp=03_ddp_fork/ddp.c train=03_ddp_fork/train.c
join="stream_wait(device_stream(ddp->model->device), ddp->averaged);" fork="stream_wait(ddp->stream, ddp->final);"
unrecorded=("$train" "replay_new(job->device, LOADER_SLOTS + 1)" "replay_new(job->device, 0)")
mistake "no join" "fake: .*nothing waits for its" 03_ddp_fork $ddp "$join" ""
mistake "no join, not recorded" "$apart" 03_ddp_fork $ddp "$join" "" "${unrecorded[@]}"
mistake "no fork" "fake: .*waits for what is not captured" 03_ddp_fork $ddp "$fork" ""
mistake "no fork, not recorded" "$apart" 03_ddp_fork $ddp "$fork" "" "${unrecorded[@]}"
mistake "a step that waits" "fake: cudaStreamQuery in a thread that captures" 03_ddp_fork $train \
    'trace_begin("optimizer");' "stream_sync(device_stream(job->device));"
mistake "a graph outlives its communicator" "fake: ncclCommDestroy: .* graphs hold its work" 03_ddp_fork $train \
    "replay_free(job->replay);" "" $train "ddp_free(job->ddp);" "ddp_free(job->ddp); replay_free(job->replay);"
hang='if (comm_rank(ddp->comm) == 1) { alive_wait_begin(); for (;;) sigsuspend(&(sigset_t){ 0 }); }'
right+=(--timeout 2)
mistake "a rank waits for what never comes" "all wait for each other" 03_ddp_fork $ddp \
    'trace_begin("wait for gradients");' "$hang"
mistake "a rank hangs" "rank 1 of 2 .* has given no sign of life" 03_ddp_fork $ddp \
    'trace_begin("wait for gradients");' "${hang/alive_wait_begin();/}"
mistake "CUDA before a fork" "fake: .*CUDA was used before the fork" 03_ddp_fork 03_ddp_fork/spawn.c \
    "int gpus = count_gpus();" "int gpus = device_count();"
right=("$odd_hash" ./mistaken "${odd[@]}")
mistake "a part begins anywhere" "must be aligned to 16 bytes" 07_dist_eval 07_dist_eval/amp.c \
    "rows * rest % 8 != 0" "false"
right=("$pair" "${seven[@]:0:4}" ./mistaken "${two[@]}" --amp off)
mistake "an error that is none is left behind" "kernel_[a-z_]*: cudaError" 07_dist_eval common/cuda/device_cuda.c \
    "(void)cudaGetLastError();   // that it is not ready" "// that it is not ready"
mistake "kernels of two communicators, in no order" "fake: two communicators on a device" 07_dist_eval \
    common/comm/nccl/comm_nccl.c "keep_host_order(links == NULL);" "(void)keep_host_order;"
test_done
