# shellcheck shell=bash disable=SC2034,SC2154
# ctest: TIMEOUT 600
# Two ranks must have the finished program's losses and weights. The ranks of a run, two or three, must end with equal
# weights. The timeline (GPU_TRACE) shows the calls of NCCL, and a spy (check.c) what a rank frees. If the broadcast
# loses half of its values, one weight differs in its last bits, or two weights changed places, the program must report
# that the weights differ. NCCL is slow here, so a host that does not wait for it reads values that are not summed yet.
# fails with: the weights of two ranks are broadcast once
type -P mpirun >/dev/null || wrong "mpirun is installed (Open MPI: ./ddp setup)" </dev/null
build --with check.c --wrap ncclCommInitRank --wrap cudaStreamCreate --wrap cudaStreamCreateWithFlags \
    --wrap cudaMalloc --wrap cudaMallocHost --wrap ncclCommDestroy --wrap cudaStreamDestroy --wrap cudaFree \
    --wrap cudaFreeHost --wrap ncclBroadcast --wrap ncclAllReduce --wrap MPI_Allreduce \
    --wrap MPI_Finalize
export GPU_TIMEOUT=10
calls() { timeline "$1.json" "$2" | grep -c "^begin $3" || true; }
losses() { sed -n 's/^step .*loss //p' "$1.out"; }
weights() { sed -n 's/^weight .*: //p' "$1.out"; }
noise='^spy|^-*$|^mpirun|^prterun|^Primary job|^a non-zero|Exit code|Process name|^the job'

# run_ranks NAME N: N ranks must train to the end, where they may report that the weights differ.
run_ranks()
{
    try_learner "$1" "$2"
    if [ "$status" != 0 ] && ! grep -q "^the weights are" "$1.out"; then
        wrong "$2 ranks train to the end" < <(grep -vE "$noise" "$1.out")
    fi
}

finished right 2
GPU_SLOW=nccl:5 run_ranks two 2
why="In main, every rank starts with weights of its own. ncclBroadcast gives all ranks those of rank 0."
for rank in 0 1; do
    equal "the weights of two ranks are broadcast once (rank $rank)" "1 ncclBroadcast" \
        "$(calls two $rank ncclBroadcast) ncclBroadcast"
done
why="In a step, one ncclAllReduce adds up the gradients and losses of all ranks."
for rank in 0 1; do
    equal "each of 40 steps has one all-reduce (rank $rank)" "40 ncclAllReduce" \
        "$(calls two $rank ncclAllReduce) ncclAllReduce"
done
losses right >expected
losses two >found
why="add_gradient divides by the batch size of all ranks. So the sum over the ranks is the mean. If the operation is
right, note that NCCL is slow here: does anything read the result before the stream's work is done?"
beside "the losses are those of one model with the whole batch" 1e-5 line "expected" expected "two ranks" found
weights right >expected
weights two >found
beside "the weights are those of this model" 1e-3 line "expected" expected "two ranks" found
equal "the weights are equal at the end" "the weights are equal on all 2 ranks" "$(grep '^the weights' two.out)"
run_ranks three 3
equal "the weights are also equal on three ranks" "the weights are equal on all 3 ranks" \
    "$(grep '^the weights' three.out)"

why="Allocating GPU memory takes longer than adding up these numbers, and cudaFree waits for all streams. A program
that trains for weeks makes its memory, streams and communicators once."
for rank in 0 1; do
    equal "a step makes no memory, stream or communicator (rank $rank)" "0 in its steps" \
        "$(sed -n "s/^spy: rank $rank makes //p" two.out)"
done
why="As the task says, finish begins with ncclCommDestroy: what was made last goes first. Then finish
frees the rest of what start made, each with the call that belongs to it: cudaFree, cudaStreamDestroy."
for rank in 0 1; do
    equal "finish begins with the communicator (rank $rank)" ncclCommDestroy \
        "$(sed -nE "s/^spy: rank $rank frees ([A-Za-z]+).*/\1/p" two.out)"
    equal "finish frees everything that start made (rank $rank)" "0 communicators, 0 streams, 0 blocks of memory" \
        "$(sed -n "s/^spy: rank $rank keeps //p" two.out)"
done

LOSE=half run_ranks lost 2
why="Here ncclBroadcast lost half of the weights, so the ranks trained different models. The hash did not notice. It
must depend on every bit of every weight."
equal "the hash notices a broadcast that loses half of the weights" "the weights are NOT equal on all 2 ranks" \
    "$(grep '^the weights' lost.out)"
LOSE=bits run_ranks bits 2
why="Here the last weights of two ranks differ by 1e-6, as after a wrong order of additions. A hash of rounded weights
does not notice. Equal means equal bits: memcpy the bits of each weight to a uint32_t."
equal "the hash notices a weight that differs in its last bits" "the weights are NOT equal on all 2 ranks" \
    "$(grep '^the weights' bits.out)"
LOSE=order run_ranks order 2
why="Here rank 1 has two weights of rank 0 in the other order, as if buckets had been mixed up. A sum or an XOR of the
bits does not notice. Multiply after each weight, and its place counts too."
equal "the hash notices two weights that changed places" "the weights are NOT equal on all 2 ranks" \
    "$(grep '^the weights' order.out)"
