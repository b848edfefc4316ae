// exchange_nccl.c - for one GPU per rank: NCCL adds up. MPI is needed once, to hand out NCCL's id.
#include "exchange.h"

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>

enum { CAPACITY = 1 << 20 };
static ncclComm_t comm;
static cudaStream_t stream;
static float *on_gpu;

#define MUST(call, ok, text) \
    do { \
        int status = (int)(call); \
        if (status != (ok)) { \
            fprintf(stderr, "%s: %s\n", #call, text(status)); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)
#define CUDA(call) MUST(call, cudaSuccess, cudaGetErrorString)
#define NCCL(call) MUST(call, ncclSuccess, ncclGetErrorString)

void exchange_begin(int argc, char **argv, int *rank, int *size)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, size);

    // Ranks of one machine choose different GPUs, before anything else touches one.
    MPI_Comm machine;
    int local_rank;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, *rank, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &local_rank);
    MPI_Comm_free(&machine);
    CUDA(cudaSetDevice(local_rank));
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMalloc((void **)&on_gpu, CAPACITY * sizeof *on_gpu));

    // Rank 0 makes the id, which contains its address. Every rank needs the same one.
    ncclUniqueId id;
    if (*rank == 0)
        NCCL(ncclGetUniqueId(&id));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    NCCL(ncclCommInitRank(&comm, *size, id, *rank));
}

// line.c computes on the CPU, to be short, so its numbers are copied to the GPU and back. They are not in pinned memory
// (cudaMallocHost), so the host may wait in both copies. For so few numbers that does not matter. In your program the
// gradients are on the GPU already: leave out both copies. An optimizer on the same stream needs no synchronization:
// only the host must wait, before it reads a number.
void exchange_sum(float *values, int count)
{
    size_t bytes = (size_t)count * sizeof *values;
    CUDA(cudaMemcpyAsync(on_gpu, values, bytes, cudaMemcpyHostToDevice, stream));
    NCCL(ncclAllReduce(on_gpu, on_gpu, (size_t)count, ncclFloat, ncclSum, comm, stream));
    CUDA(cudaMemcpyAsync(values, on_gpu, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
}

void exchange_broadcast(float *values, int count)
{
    size_t bytes = (size_t)count * sizeof *values;
    CUDA(cudaMemcpyAsync(on_gpu, values, bytes, cudaMemcpyHostToDevice, stream));
    NCCL(ncclBroadcast(on_gpu, on_gpu, (size_t)count, ncclFloat, 0, comm, stream));
    CUDA(cudaMemcpyAsync(values, on_gpu, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
}

void exchange_end(void)
{
    NCCL(ncclCommDestroy(comm));
    CUDA(cudaFree(on_gpu));
    CUDA(cudaStreamDestroy(stream));
    MPI_Finalize();
}
