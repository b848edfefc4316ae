// ring.c - every rank gets the numbers of all ranks, in turns around a ring.
//
//   3 ranks    rank 0     rank 1     rank 2
//   at first   a - -      - b -      - - c
//   turn 1     a - c      a b -      - b c       each sends its own numbers to the next rank
//   turn 2     a b c      a b c      a b c       and then what it has just received
#include <cuda_runtime.h>
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 4 };         // numbers of each rank

static int rank, size;

// Ends the run if the call of CUDA or NCCL returns an error (not 0).
#define MUST(call) \
    do { \
        int status = (int)(call); \
        if (status) { \
            fprintf(stderr, "rank %d: %s returns error %d\n", rank, #call, status); \
            MPI_Abort(MPI_COMM_WORLD, 1); \
        } \
    } while (0)

// all: (size, COUNT) on the GPU, of which this rank has filled in its own part.
static void pass_around(float *all, ncclComm_t comm, cudaStream_t stream)
{
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    for (int turn = 0; turn < size - 1; turn++) {
        int out = (rank - turn + size) % size, in = (out + size - 1) % size;
        MUST(ncclGroupStart());
        MUST(ncclSend(all + out * COUNT, COUNT, ncclFloat, next, comm, stream));
        MUST(ncclRecv(all + in * COUNT, COUNT, ncclFloat, before, comm, stream));
        MUST(ncclGroupEnd());
    }
}

int main(int argc, char **argv)
{
    float *all, *numbers;
    cudaStream_t stream;
    ncclUniqueId id;
    ncclComm_t comm;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    size_t bytes = (size_t)size * COUNT * sizeof(float);

    MUST(cudaSetDevice(rank));
    MUST(cudaStreamCreate(&stream));
    MUST(cudaMalloc((void **)&all, bytes));
    MUST(cudaMallocHost((void **)&numbers, bytes));
    if (rank == 0)
        MUST(ncclGetUniqueId(&id));
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    MUST(ncclCommInitRank(&comm, size, id, rank));

    for (int i = 0; i < size * COUNT; i++)
        numbers[i] = i / COUNT == rank ? (float)(100 * rank + i % COUNT) : -1;
    MUST(cudaMemcpyAsync(all, numbers, bytes, cudaMemcpyHostToDevice, stream));
    pass_around(all, comm, stream);
    MUST(cudaMemcpyAsync(numbers, all, bytes, cudaMemcpyDeviceToHost, stream));
    MUST(cudaStreamSynchronize(stream));

    char line[1000] = "";
    int length = snprintf(line, sizeof line, "rank %d:", rank);
    for (int i = 0; i < size * COUNT; i++)
        length += snprintf(line + length, sizeof line - (size_t)length, " %g", numbers[i]);
    puts(line);
    MUST(ncclCommDestroy(comm));
    MUST(cudaFree(all));
    MUST(cudaFreeHost(numbers));
    MUST(cudaStreamDestroy(stream));
    MPI_Finalize();
    return 0;
}
