// Counts how often the host waits in a step and then enqueues more work of this step. (A step begins with the first of
// its 4 host functions.)
#include "wrap.h"
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>

static int functions, waited, early;

static void enqueue(int begins_a_step)
{
    early += waited && !begins_a_step;
    waited = 0;
}

WRAPPED(cudaLaunchHostFunc);
cudaError_t __wrap_cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *arg)
{
    enqueue(functions++ % 4 == 0);
    return __real_cudaLaunchHostFunc(stream, function, arg);
}
WRAPPED(cudaMemcpyAsync);
cudaError_t __wrap_cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                   cudaStream_t stream)
{
    enqueue(0);
    return __real_cudaMemcpyAsync(to, from, bytes, kind, stream);
}
WRAPPED(ncclAllReduce);
ncclResult_t __wrap_ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream)
{
    enqueue(0);
    return __real_ncclAllReduce(from, to, count, type, op, comm, stream);
}

WRAPPED(cudaMemcpy);
cudaError_t __wrap_cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    enqueue(0);
    waited = 1;
    return __real_cudaMemcpy(to, from, bytes, kind);
}
WRAPPED(cudaEventSynchronize);
cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event) { waited = 1; return __real_cudaEventSynchronize(event); }
WRAPPED(cudaStreamSynchronize);
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream)
{
    waited = 1;
    return __real_cudaStreamSynchronize(stream);
}
WRAPPED(cudaStreamQuery);
cudaError_t __wrap_cudaStreamQuery(cudaStream_t stream) { waited = 1; return __real_cudaStreamQuery(stream); }
WRAPPED(cudaDeviceSynchronize);
cudaError_t __wrap_cudaDeviceSynchronize(void) { waited = 1; return __real_cudaDeviceSynchronize(); }

WRAPPED(MPI_Finalize);
int __wrap_MPI_Finalize(void)
{
    fprintf(stderr, "spy: %d\n", early);
    return __real_MPI_Finalize();
}
