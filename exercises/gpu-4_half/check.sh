# shellcheck shell=bash disable=SC2034,SC2154
# ctest: TIMEOUT 600
# With 2 ranks and with 3, the weights must be those of the finished program. A spy (check.c) counts the weights that a
# rank updates, the memory of their momentum, and the bytes that rings would send. 3 does not divide the number of
# weights, so the arrays need padding. NCCL is slow here, so a host that does not wait for it reads wrong values.
# fails with: 2 ranks: each updates its share of the 1000 weights
type -P mpirun >/dev/null || wrong "mpirun is installed (Open MPI: ./ddp setup)" </dev/null
build --with check.c --wrap cudaMallocHost --wrap sgd_update --wrap ncclAllReduce --wrap ncclReduceScatter \
    --wrap ncclAllGather --wrap ncclBroadcast --wrap ncclSend --wrap MPI_Finalize
export SPY=1 GPU_TIMEOUT=10
noise='^-*$|^mpirun|^prterun|^Primary job|^a non-zero|Exit code|Process name|^the job|^spy'
for n in 2 3; do
    finished right$n $n
    GPU_SLOW=nccl:10 try_learner yours$n $n
    [ "$status" = 0 ] || wrong "$n ranks train to the end" < <(grep -vE "$noise" yours$n.out | head -12)
    share=$(((1000 + n - 1) / n))
    sed -n 's/^spy: //p' yours$n.out | sort >spied
    awk -v share=$share '{ print $1 " " $2 ": " ($3 <= share ? "at most " share : $3) }' spied >found
    awk -v share=$share '{ print $1 " " $2 ": at most " share }' spied >expected
    why="A rank updates 1/$n of the weights, and the other ranks the rest."
    beside "$n ranks: each updates its share of the 1000 weights" same "" "weights in a step  " expected yours found
    awk -v most=$((4 * share + 64)) '{ print $1 " " $2 ": " ($4 <= most ? "a share" : $4 " bytes") }' spied >found
    awk '{ print $1 " " $2 ": a share" }' spied >expected
    why="A rank needs the optimizer's state of 1/$n of the weights, $((4 * share)) bytes."
    beside "$n ranks: each has the momentum of its share" same "" "momentum           " expected yours found
    grep '^rank .*quarter' right$n.out | sort >expected
    grep '^rank .*quarter' yours$n.out | sort >found
    why="Every weight is updated by one rank, with the mean of all ranks' gradients, and then sent to all. Compare the
quarters: is one wrong on all ranks, or are all but a rank's own wrong? Or does the host read a gradient or a weight
before the stream has copied it? (NCCL is slow here.)"
    beside "$n ranks: the weights are right on all ranks" same line expected expected \
        "your program                      " found
    awk -v n=$n -v share=$share '{ print $1 " " $2 ": " 2 * (n - 1) * 4 * share }' spied >expected
    awk '{ print $1 " " $2 ": " $5 }' spied >found
    why="An all-reduce is a reduce-scatter and an all-gather. One of each in a step sends as many bytes."
    beside "$n ranks: a step sends the bytes of one all-reduce" same "" "bytes            " expected yours found
done
