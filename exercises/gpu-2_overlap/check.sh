# shellcheck shell=bash disable=SC2034,SC2154
# ctest: TIMEOUT 600
# Two runs, one with a slow backward (GPU_SLOW=compute) and one with a slow NCCL, must have the finished program's
# weights. Their timelines show what overlapped. A spy (check.c) counts the host's waits.
# fails with: bucket 1 is sent before backward is over
type -P mpirun >/dev/null || wrong "mpirun is installed (Open MPI: ./ddp setup)" </dev/null
build --with check.c --wrap cudaLaunchHostFunc --wrap cudaMemcpyAsync --wrap ncclAllReduce --wrap cudaMemcpy \
    --wrap cudaEventSynchronize --wrap cudaStreamSynchronize --wrap cudaStreamQuery --wrap cudaDeviceSynchronize \
    --wrap MPI_Finalize
export GPU_TIMEOUT=10
finished right 2
sort right.out >expected
GPU_SLOW=compute:40 learner backward 2
GPU_SLOW=nccl:40 learner network 2
for run in backward network; do
    grep ^rank $run.out | sort >$run.found
done
late="NCCL was slow, and the optimizer did not wait for it: it used this rank's own gradients. averaged[k] is missing,
or recorded too early: record it on communicate after the all-reduce, and let compute wait for it."
why="Backward was slow, and an all-reduce did not wait for it: it sent what was in the buffer before. final[k] is
missing, or recorded too early: record it on compute after the copy to the GPU, and let communicate wait for it. (If
only bucket 0 is wrong, perhaps the host reads the weights too early: at its end, step waits for the stream that updates
them.)"
cmp -s expected network.found ||        # on a busy machine, a missing averaged[k] spoils both runs
    why+=$'\n'"With a slow NCCL the weights are wrong, too, perhaps only for this reason:"$'\n'$late
beside "backward is slow: the weights are right" same line expected expected "your program      " backward.found
why=$late
beside "NCCL is slow: the weights are right" same line expected expected "your program      " network.found
equal "3 steps have 6 all-reduces" 6 "$(timeline network.json 0 | grep -c '^begin ncclAllReduce')"

# before NAME FIRST I SECOND J: in at least one step, the I-th FIRST comes before the J-th SECOND. Both are lines of
# rank 0's timeline. Backward of buckets 1 and 0 are the first two of a step's host functions.
before()
{
    timeline "$1.json" 0 | awk -v first="$2" -v i="$3" -v second="$4" -v j="$5" '
        $0 == first { a[++na] = NR } $0 == second { b[++nb] = NR }
        END { for (n = 0; n < 3; n++) found += na && nb && a[n * na / 3 + i] < b[n * nb / 3 + j]; exit !found }'
}
show() { echo "the beginning of rank 0's first step:"; timeline "$1.json" 0 | head -14; }
why="The all-reduce of bucket 1 begins only after backward of bucket 0."
{ before backward "begin copy to device" 1 "end host function" 2 &&
    before backward "begin ncclAllReduce" 1 "begin copy to device" 2; } ||
    wrong "bucket 1 is sent before backward is over" < <(show backward)
passed "bucket 1 is sent before backward is over"
why="Backward of bucket 0 begins only after the all-reduce of bucket 1: the host waits for it, or compute does."
before network "begin host function" 2 "end ncclAllReduce" 1 ||
    wrong "backward continues while bucket 1 travels" < <(show network)
passed "backward continues while bucket 1 travels"
why="The host waited in a step and then enqueued more of it. While the host waits, it prepares nothing, and afterwards
the GPU waits for the host. Events let the streams wait for each other: the host enqueues the whole step, and waits
once."
equal "the host enqueues a step without waiting" "0 waits" \
    "$(sed -n 's/^spy: //p' network.out | sort -n | tail -1) waits"
