// half.c - the first half of an all-reduce, the optimizer, then the other half.
//
// A toy: gradients are computed on the host, go to the GPU, and come back.
#include "sgd.h"
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1000, STEPS = 5 };               // COUNT: weights

static int rank, size, share;                   // share: weights of one rank, rounded up
static ncclComm_t comm;
static cudaStream_t stream;
static float *weights, *gradient, *momentum;    // pinned memory of the host
static float *on_gpu;

// Ends the run if the call of CUDA or NCCL returns an error (not 0).
#define MUST(call) \
    do { \
        int status = (int)(call); \
        if (status) { \
            fprintf(stderr, "rank %d: %s returns error %d\n", rank, #call, status); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

static float *pinned(size_t count)
{
    float *memory;
    MUST(cudaMallocHost((void **)&memory, count * sizeof(float)));
    memset(memory, 0, count * sizeof(float));
    return memory;
}

static void start(void)
{
    share = (COUNT + size - 1) / size;
    size_t padded = (size_t)share * (size_t)size;
    weights = pinned(padded);
    gradient = pinned(padded);
    momentum = pinned((size_t)share);
    MUST(cudaMalloc((void **)&on_gpu, padded * sizeof(float)));
}

// Each rank computes different gradients, as if it had samples of its own.
static void compute_gradient(int n)
{
    for (int i = 0; i < COUNT; i++)
        gradient[i] = 0.1f * weights[i] + (float)((rank + 1) * n + i % 7);
}

static void step(int n)
{
    size_t count = (size_t)share, padded = count * (size_t)size, mine = count * (size_t)rank;
    compute_gradient(n);
    MUST(cudaMemcpyAsync(on_gpu, gradient, padded * sizeof(float), cudaMemcpyHostToDevice, stream));
    MUST(ncclReduceScatter(on_gpu, on_gpu + mine, count, ncclFloat, ncclAvg, comm, stream));
    MUST(cudaMemcpyAsync(gradient, on_gpu + mine, count * sizeof(float), cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
    sgd_update(share, weights + mine, gradient, momentum);
    MUST(cudaMemcpyAsync(on_gpu + mine, weights + mine, count * sizeof(float), cudaMemcpyHostToDevice, stream));
    MUST(ncclAllGather(on_gpu + mine, on_gpu, count, ncclFloat, comm, stream));
    MUST(cudaMemcpyAsync(weights, on_gpu, padded * sizeof(float), cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));
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
    MUST(cudaStreamCreate(&stream));
    start();
    for (int n = 1; n <= STEPS; n++)
        step(n);
    for (int part = 0; part < 4; part++) {
        double sum = 0;
        for (int i = part * COUNT / 4; i < (part + 1) * COUNT / 4; i++)
            sum += (i % 10 + 1) * (double)weights[i];
        printf("rank %d, quarter %d of the weights: %.3f\n", rank, part, sum);
    }
    MUST(cudaFreeHost(weights));
    MUST(cudaFreeHost(gradient));
    MUST(cudaFreeHost(momentum));
    MUST(cudaFree(on_gpu));
    MUST(ncclCommDestroy(comm));
    MUST(cudaStreamDestroy(stream));
    MPI_Finalize();
    return 0;
}
