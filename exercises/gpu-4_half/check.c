// If SPY is set, prints for this rank: how many weights it updates per step, the bytes allocated
// for their momentum, and the bytes that it sends per step if its calls of NCCL run as rings. Ends
// the run if the momentum is not in memory from cudaMallocHost, or an array is too short.
#include "sgd.h"
#include "wrap.h"
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 64, STEPS = 5 };
static struct { char *begin; size_t bytes; } blocks[MOST];
static int block_count, ranks;
static size_t updated, found, sent;

WRAPPED(cudaMallocHost);
cudaError_t __wrap_cudaMallocHost(void **memory, size_t bytes)
{
    cudaError_t error = __real_cudaMallocHost(memory, bytes);
    blocks[block_count % MOST].begin = *memory;
    blocks[block_count++ % MOST].bytes = bytes;
    return error;
}

// The bytes from `values` to the end of the block of pinned memory that contains it; 0: none does. Sets *block to the
// block's size.
static size_t room(const float *values, size_t *block)
{
    const char *at = (const char *)values;
    for (int i = 0; i < block_count && i < MOST; i++)
        if (at >= blocks[i].begin && at < blocks[i].begin + blocks[i].bytes) {
            *block = blocks[i].bytes;
            return blocks[i].bytes - (size_t)(at - blocks[i].begin);
        }
    return 0;
}

static void must_fit(const char *what, int count, size_t bytes)
{
    if (bytes >= (size_t)count * sizeof(float))
        return;
    fprintf(stderr, "sgd_update of %d weights: this %s has %zu values in memory from `pinned`\n", count, what,
            bytes / sizeof(float));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

WRAPPED(sgd_update);
void __wrap_sgd_update(int count, float *weights, const float *gradient, float *momentum)
{
    size_t other = 0, bytes = room(weights, &other);
    updated += (size_t)count;
    must_fit("momentum", count, room(momentum, &found));
    if (other)
        must_fit("array of weights", count, bytes);
    __real_sgd_update(count, weights, gradient, momentum);
}

static size_t ring(ncclComm_t comm, size_t bytes)       // what one rank sends; bytes: of the whole array
{
    ncclCommCount(comm, &ranks);
    return bytes / (size_t)ranks * (size_t)(ranks - 1);
}

WRAPPED(ncclAllReduce);
ncclResult_t __wrap_ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                                  ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    sent += 2 * ring(comm, count * sizeof(float));
    return __real_ncclAllReduce(from, to, count, type, op, comm, stream);
}

WRAPPED(ncclReduceScatter);
ncclResult_t __wrap_ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    ring(comm, 0);
    sent += ring(comm, count * sizeof(float) * (size_t)ranks);
    return __real_ncclReduceScatter(from, to, count, type, op, comm, stream);
}

WRAPPED(ncclAllGather);
ncclResult_t __wrap_ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                                  ncclComm_t comm, cudaStream_t stream)
{
    ring(comm, 0);
    sent += ring(comm, count * sizeof(float) * (size_t)ranks);
    return __real_ncclAllGather(from, to, count, type, comm, stream);
}

WRAPPED(ncclBroadcast);
ncclResult_t __wrap_ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type,
                                  int root, ncclComm_t comm, cudaStream_t stream)
{
    sent += count * sizeof(float);
    return __real_ncclBroadcast(from, to, count, type, root, comm, stream);
}

WRAPPED(ncclSend);
ncclResult_t __wrap_ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                             ncclComm_t comm, cudaStream_t stream)
{
    sent += count * sizeof(float);
    return __real_ncclSend(from, count, type, peer, comm, stream);
}

WRAPPED(MPI_Finalize);
int __wrap_MPI_Finalize(void)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (getenv("SPY"))
        fprintf(stderr, "spy: rank %d %zu %zu %zu\n", rank, updated / STEPS, found,
                sent / STEPS);
    return __real_MPI_Finalize();
}
