// nccl_backend.c - comm.h on CUDA and NCCL, with one GPU for each process. Most functions are
// one call: a Stream * is a cudaStream_t, and an Event * is a cudaEvent_t.
#include "comm.h"
#include "check.h"

#include <cuda_runtime.h>
#include <nccl.h>
#include <string.h>

struct Device {
    Stream *compute;
};
struct Comm {
    ncclComm_t nccl;
    int rank, size;
};

#define MUST(call, text, hint)                                      \
    do {                                                            \
        int error_ = (int)(call);                                   \
        CHECK(error_ == 0, hint, "%s: %s", #call, text(error_));    \
    } while (0)
#define CUDA(call) MUST(call, cudaGetErrorString, "nvidia-smi shows the GPUs and their memory")
#define NCCL(call) MUST(call, ncclGetErrorString, "NCCL_DEBUG=INFO says more")
#define STREAM(stream) ((cudaStream_t)(stream))

// ---- CUDA ---------------------------------------------------------------------------------------

Stream *stream_new_beside(Device *device, const char *name)
{
    cudaStream_t stream;    // which does not wait for the default stream
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return (Stream *)stream;
}

Device *gpu_open(int gpu)
{
    Device *device = xmalloc(sizeof *device);
    CUDA(cudaSetDevice(gpu));       // for all that this thread does from now on
    device->compute = stream_new_beside(device, "compute");
    return device;
}

void gpu_close(Device *device)
{
    stream_free(device->compute);
    free(device);
}

void *device_alloc(Device *device, size_t bytes)
{
    void *memory;
    CUDA(cudaMalloc(&memory, bytes));
    return memory;
}

void device_free(Device *device, void *memory) { CUDA(cudaFree(memory)); }
Stream *device_stream(Device *device) { return device->compute; }
void stream_free(Stream *stream) { CUDA(cudaStreamDestroy(STREAM(stream))); }
void stream_sync(Stream *stream) { CUDA(cudaStreamSynchronize(STREAM(stream))); }

void copy_to_device(Stream *stream, void *to, const void *from, size_t bytes)
{
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, STREAM(stream)));
}

void copy_to_host(Stream *stream, void *to, const void *from, size_t bytes)
{
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, STREAM(stream)));
}

Event *event_new(Device *device)
{
    cudaEvent_t event;
    CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return (Event *)event;
}

void event_free(Event *event) { CUDA(cudaEventDestroy((cudaEvent_t)event)); }

void event_record(Event *event, Stream *stream)
{
    CUDA(cudaEventRecord((cudaEvent_t)event, STREAM(stream)));
}

void stream_wait(Stream *stream, Event *event)
{
    CUDA(cudaStreamWaitEvent(STREAM(stream), (cudaEvent_t)event, 0));
}

// ---- NCCL ---------------------------------------------------------------------------------------

static const ncclDataType_t types[] = { [COMM_I64] = ncclInt64, [COMM_F32] = ncclFloat32 };

void nccl_id(char id[NCCL_ID]) { NCCL(ncclGetUniqueId((ncclUniqueId *)id)); }

Comm *nccl_open(const char id[NCCL_ID], int rank, int size)
{
    Comm *comm = xmalloc(sizeof *comm);
    ncclUniqueId unique;
    memcpy(&unique, id, sizeof unique);
    *comm = (Comm){ .rank = rank, .size = size };
    NCCL(ncclCommInitRank(&comm->nccl, size, unique, rank));
    return comm;
}

void nccl_close(Comm *comm)
{
    NCCL(ncclCommDestroy(comm->nccl));
    free(comm);
}

int comm_rank(const Comm *comm) { return comm->rank; }
int comm_size(const Comm *comm) { return comm->size; }

void comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    NCCL(ncclAllReduce(values, values, count, types[type], ncclSum, comm->nccl, STREAM(stream)));
}

void comm_broadcast(Comm *comm, Stream *stream, void *values, size_t count, CommType type, int root)
{
    NCCL(ncclBroadcast(values, values, count, types[type], root, comm->nccl, STREAM(stream)));
}

void comm_all_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                     CommType type)
{
    NCCL(ncclAllGather(mine, all, count, types[type], comm->nccl, STREAM(stream)));
}
