// overlap.c - the gradients of one half of a model travel while backward computes the other half.
//
// A toy: backward is a function on the host (cudaLaunchHostFunc), which runs when the stream gets there, as a kernel
// would. The host enqueues a whole step, and waits only at its end.
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUCKETS = 2, COUNT = 1000, STEPS = 3 };      // COUNT: weights of a bucket

static int rank, size;
static ncclComm_t comm;
static cudaStream_t compute, communicate;
static cudaEvent_t final[BUCKETS], averaged[BUCKETS];

// A bucket's weights and gradients, in pinned memory of the host, and the gradients' copy on the GPU.
typedef struct Bucket {
    float *weights, *gradients, *on_gpu;
    int step;
} Bucket;
static Bucket buckets[BUCKETS];

// Ends the run if the call of CUDA or NCCL returns an error (not 0).
#define MUST(call) \
    do { \
        int status = (int)(call); \
        if (status) { \
            fprintf(stderr, "rank %d: %s returns error %d\n", rank, #call, status); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

// Each rank computes different gradients, as if it had samples of its own.
static void compute_gradients(void *arg)
{
    Bucket *b = arg;
    b->step++;
    for (int i = 0; i < COUNT; i++)
        b->gradients[i] = 0.1f * b->weights[i] + (float)((rank + 1) * b->step + i % 7);
}

static void update(void *arg)
{
    Bucket *b = arg;
    for (int i = 0; i < COUNT; i++)
        b->weights[i] -= 0.01f * b->gradients[i];
}

static void step(void)
{
    for (int k = BUCKETS - 1; k >= 0; k--) {        // backward: from the last layer to the first
        Bucket *b = &buckets[k];
        MUST(cudaLaunchHostFunc(compute, compute_gradients, b));
        MUST(cudaMemcpyAsync(b->on_gpu, b->gradients, COUNT * sizeof(float), cudaMemcpyHostToDevice, compute));
        MUST(cudaEventRecord(final[k], compute));
        MUST(cudaStreamWaitEvent(communicate, final[k], 0));
        MUST(ncclAllReduce(b->on_gpu, b->on_gpu, COUNT, ncclFloat, ncclAvg, comm, communicate));
        MUST(cudaEventRecord(averaged[k], communicate));
    }
    for (int k = BUCKETS - 1; k >= 0; k--) {        // the optimizer
        Bucket *b = &buckets[k];
        MUST(cudaStreamWaitEvent(compute, averaged[k], 0));
        MUST(cudaMemcpyAsync(b->gradients, b->on_gpu, COUNT * sizeof(float), cudaMemcpyDeviceToHost, compute));
        MUST(cudaLaunchHostFunc(compute, update, b));
    }
    MUST(cudaStreamSynchronize(compute));
}

int main(int argc, char **argv)
{
    ncclUniqueId id;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MUST(cudaSetDevice(rank));
    if (rank == 0)
        MUST(ncclGetUniqueId(&id));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    MUST(ncclCommInitRank(&comm, size, id, rank));
    MUST(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    MUST(cudaStreamCreateWithFlags(&communicate, cudaStreamNonBlocking));
    for (int k = 0; k < BUCKETS; k++) {
        MUST(cudaEventCreateWithFlags(&final[k], cudaEventDisableTiming));
        MUST(cudaEventCreateWithFlags(&averaged[k], cudaEventDisableTiming));
        MUST(cudaMallocHost((void **)&buckets[k].weights, COUNT * sizeof(float)));
        MUST(cudaMallocHost((void **)&buckets[k].gradients, COUNT * sizeof(float)));
        MUST(cudaMalloc((void **)&buckets[k].on_gpu, COUNT * sizeof(float)));
        for (int i = 0; i < COUNT; i++)
            buckets[k].weights[i] = 1;
    }

    for (int n = 0; n < STEPS; n++)
        step();

    for (int k = 0; k < BUCKETS; k++) {
        double sum = 0;
        for (int i = 0; i < COUNT; i++)
            sum += (i % 10 + 1) * (double)buckets[k].weights[i];
        printf("rank %d, bucket %d: %.3f\n", rank, k, sum);
        MUST(cudaEventDestroy(final[k]));
        MUST(cudaEventDestroy(averaged[k]));
        MUST(cudaFreeHost(buckets[k].weights));
        MUST(cudaFreeHost(buckets[k].gradients));
        MUST(cudaFree(buckets[k].on_gpu));
    }
    MUST(ncclCommDestroy(comm));
    MUST(cudaStreamDestroy(compute));
    MUST(cudaStreamDestroy(communicate));
    MPI_Finalize();
    return 0;
}
