// Spies on my_ddp.c. LOSE=half: the broadcast loses half of its values. LOSE=bits: in the last step, the spy changes
// rank 1's gradient of the last weight a little, so this weight differs in its last bits. LOSE=order: in the last step,
// the spy sets the last two gradients so large that two weights of rank 0 are those of rank 1 in the other order.
//
// Prints what the program makes in its steps, what it frees after main has compared the hashes, and what it keeps.
#include "wrap.h"
#include <mpi.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WEIGHTS = 8, STEPS = 40 };
static int rank, reduces, late, left[3];        // left: communicators, streams, blocks of memory
static char freed[400];

static int lose(const char *what) { return getenv("LOSE") && strcmp(getenv("LOSE"), what) == 0; }

static void free_one(const char *name, int kind)
{
    size_t end = strlen(freed);
    left[kind]--;
    snprintf(freed + end, sizeof freed - end, " %s", name);
}

static void make_one(int kind) { left[kind]++; late += reduces > 0; }

WRAPPED(ncclCommInitRank);
ncclResult_t __wrap_ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int number)
{
    make_one(0);
    return __real_ncclCommInitRank(comm, ranks, id, rank = number);
}
WRAPPED(cudaStreamCreate);
cudaError_t __wrap_cudaStreamCreate(cudaStream_t *stream) { make_one(1); return __real_cudaStreamCreate(stream); }
WRAPPED(cudaStreamCreateWithFlags);
cudaError_t __wrap_cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    make_one(1);
    return __real_cudaStreamCreateWithFlags(stream, flags);
}
WRAPPED(cudaMalloc);
cudaError_t __wrap_cudaMalloc(void **memory, size_t bytes) { make_one(2); return __real_cudaMalloc(memory, bytes); }
WRAPPED(cudaMallocHost);
cudaError_t __wrap_cudaMallocHost(void **memory, size_t bytes)
{
    make_one(2);
    return __real_cudaMallocHost(memory, bytes);
}

WRAPPED(ncclCommDestroy);
ncclResult_t __wrap_ncclCommDestroy(ncclComm_t comm)
{
    free_one("ncclCommDestroy", 0);
    return __real_ncclCommDestroy(comm);
}
WRAPPED(cudaStreamDestroy);
cudaError_t __wrap_cudaStreamDestroy(cudaStream_t stream)
{
    free_one("cudaStreamDestroy", 1);
    return __real_cudaStreamDestroy(stream);
}
WRAPPED(cudaFree);
cudaError_t __wrap_cudaFree(void *memory)
{
    free_one("cudaFree", 2);
    return __real_cudaFree(memory);
}
WRAPPED(cudaFreeHost);
cudaError_t __wrap_cudaFreeHost(void *memory)
{
    free_one("cudaFreeHost", 2);
    return __real_cudaFreeHost(memory);
}

WRAPPED(ncclBroadcast);
ncclResult_t __wrap_ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream)
{
    return __real_ncclBroadcast(from, to, lose("half") ? count / 2 : count, type, root, comm, stream);
}

WRAPPED(ncclAllReduce);
ncclResult_t __wrap_ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream)
{
    ncclResult_t result = __real_ncclAllReduce(from, to, count, type, op, comm, stream);
    bool bits = rank == 1 && lose("bits"), order = rank < 2 && lose("order");
    if (++reduces == STEPS && (bits || order)) {
        float last[2], *at = (float *)to + WEIGHTS - 2;
        cudaStreamSynchronize(stream);
        cudaMemcpy(last, at, sizeof last, cudaMemcpyDeviceToHost);
        last[1] += 5e-6f;                       // times the rate, 0.2: two units in the weight's last place (7.5)
        if (order)
            last[rank] = 1e30f, last[1 - rank] = 3e30f;
        cudaMemcpy(at, last, sizeof last, cudaMemcpyHostToDevice);
    }
    return result;
}

WRAPPED(MPI_Allreduce);
int __wrap_MPI_Allreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    freed[0] = '\0';
    return __real_MPI_Allreduce(from, to, count, type, op, comm);
}

WRAPPED(MPI_Finalize);
int __wrap_MPI_Finalize(void)
{
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "spy: rank %d frees%s\n", rank, freed[0] ? freed : " nothing");
    fprintf(stderr, "spy: rank %d makes %d in its steps\n", rank, late);
    fprintf(stderr, "spy: rank %d keeps %d communicators, %d streams, %d blocks of memory\n", rank, left[0], left[1],
            left[2]);
    return __real_MPI_Finalize();
}
