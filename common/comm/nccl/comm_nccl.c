// comm_nccl.c - comm.h with NCCL. Only barriers, and making and freeing a communicator, wait for
// the device; NCCL's other calls can be recorded in a CUDA graph.
#include "progress.h"
#include "clock.h"
#include "comm/backend.h"
#include "cuda/cuda_internal.h"
#include "machine.h"
#include "trace.h"

#include <nccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const comm_backend = "nccl";
const bool comm_shares_devices = false;

struct Backend {
    ncclComm_t nccl;
    Stream *stream;         // for barriers
    float *summed;          // a number on the device, which barriers sum
    Call last;              // the call that was enqueued last, or recorded last
    Comm *next;
};
static Comm *comms;         // of this process, which has one device
static pthread_mutex_t comms_lock = PTHREAD_MUTEX_INITIALIZER; // loader threads read it as well

static const ncclDataType_t nccl_types[] = {
    [COMM_U8] = ncclUint8, [COMM_I64] = ncclInt64, [COMM_F32] = ncclFloat32,
    [COMM_F64] = ncclFloat64, [COMM_BF16] = ncclBfloat16, [COMM_F16] = ncclFloat16,
};

// --- errors --------------------------------------------------------------------------------------

// Ends the program if the call failed. ncclRemoteError: a connection broke, or a rank is gone.
static void check_result(const Comm *comm, const Call *doing, ncclResult_t result, const char *call,
                         int line)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return;
    const char *more = ncclGetLastError(comm->backend->nccl);
    if (result == ncclRemoteError)
        call_lost(comm, doing, more);
    fail_at(__FILE__, line, EXIT_FAILED,
            result == ncclUnhandledCudaError
                ? "is the GPU's memory full? fewer ranks on it (-n) or a smaller batch (-b) need "
                  "less; NCCL_DEBUG=INFO makes NCCL print more"
                : "NCCL_DEBUG=INFO makes NCCL print more",
            "%.*s (%s): %s: %s", (int)strcspn(call, "("), call, comm->name,
            ncclGetErrorString(result), more ? more : "");
}

#define NCCL(comm, doing, call) check_result(comm, doing, call, #call, __LINE__)

static void check_device(const Comm *comm, const Call *doing)
{
    ncclResult_t result = ncclSuccess;
    NCCL(comm, doing, ncclCommGetAsyncError(comm->backend->nccl, &result));
    check_result(comm, doing, result, "NCCL", __LINE__);
}

// Called now and then while the host waits for the device (device_cuda.c). If a rank on another
// machine is gone, one of the communicators reports an error. On the same machine NCCL reports
// nothing (NVIDIA/nccl#279), and the parent or launcher ends this process.
static void check_comms(void)
{
    pthread_mutex_lock(&comms_lock);
    for (const Comm *comm = comms; comm; comm = comm->backend->next)
        check_device(comm, &comm->backend->last);
    pthread_mutex_unlock(&comms_lock);
}

// --- new and free --------------------------------------------------------------------------------

static ncclUniqueId share_id(const Comm *comm, const World *world)
{
    char key[32];
    ncclUniqueId id;
    snprintf(key, sizeof key, "nccl/%s", comm->name);
    if (world->rank == 0) {
        NCCL(comm, NULL, ncclGetUniqueId(&id));
        store_put(world, key, &id, sizeof id);
    }
    store_get(world, key, &id, sizeof id);
    return id;
}

// Kernels of two communicators can deadlock unless all ranks launch them in the same order. The
// hosts' calls do have the same order. From 2.26 on, NCCL can launch in that order.
static void keep_host_order(const World *world)
{
    int version = 0;
    ncclGetVersion(&version);
    CHECK(!comms || world->size == 1 || version >= NCCL_VERSION(2, 26, 0),
          "install a newer NCCL, or use ./ddp run STEP --backend cuda-gloo",
          "NCCL %d.%d may hang with several communicators on a device: 2.26 or later is needed",
          version / 10000, version / 100 % 100);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

// NCCL refuses a second rank on a GPU, unless a variable allows it. Before 2.30 there is no such
// variable. So ranks with different places look like ranks of different machines, and use sockets.
// NVLink SHARP (NVLS) needs a GPU for each rank. What the user has set is kept. No GPU has run it.
static void share_gpus(const World *world)
{
    char host[2 * MACHINE_NAME + 16];
    Machine here = machine_here();
    int version = 0;
    ncclGetVersion(&version);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    if (version >= NCCL_VERSION(2, 30, 0)) {
        setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
        return;
    }
    snprintf(host, sizeof host, "%s/%s/%d", here.host, here.boot, world->gpu_place);
    setenv("NCCL_HOSTID", host, 0);
    setenv("NCCL_NET", "Socket", 0);
    setenv("NCCL_MNNVL_ENABLE", "0", 0);
    if (world->local_size == world->size)
        setenv("NCCL_SOCKET_IFNAME", "=lo", 0);
}

void backend_connect(Comm *comm, const World *world)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    struct Backend *backend = comm->backend = xcalloc(1, sizeof *backend);
    unsetenv("NCCL_COMM_ID");     // any process that knows it could join
    keep_host_order(world);
    if (world->gpus_shared)
        share_gpus(world);
    device_use(comm->device);
    PROGRESS_DOING("waiting for", "NCCL to connect the ranks");     // and for NCCL to be loaded
    ncclUniqueId id = share_id(comm, world);
    NCCL(comm, NULL, ncclCommInitRankConfig(&backend->nccl, comm->size, id, comm->rank, &config));
    backend->stream = stream_new(comm->device, "barrier");
    backend->summed = device_alloc(comm->device, sizeof *backend->summed);
    backend->last = (Call){ .kind = CALL_BARRIER };
    pthread_mutex_lock(&comms_lock);
    backend->next = comms;
    comms = comm;
    pthread_mutex_unlock(&comms_lock);
    comm->device->while_waiting = check_comms;
}

void backend_free(Comm *comm)
{
    pthread_mutex_lock(&comms_lock);
    Comm **at = &comms;
    while (*at != comm)
        at = &(*at)->backend->next;
    *at = comm->backend->next;
    pthread_mutex_unlock(&comms_lock);
    device_use(comm->device);
    PROGRESS_DOING("waiting for", "NCCL to disconnect the ranks");
    (void)ncclCommDestroy(comm->backend->nccl);
    stream_free(comm->backend->stream);
    device_free(comm->device, comm->backend->summed);
    free(comm->backend);
}

// An all-reduce of one number ends on no rank before it has begun on all.
const char *backend_barrier(Comm *comm)
{
    struct Backend *b = comm->backend;
    b->last = (Call){ .kind = CALL_BARRIER, .number = comm->calls };
    device_use(comm->device);
    NCCL(comm, &b->last, ncclAllReduce(b->summed, b->summed, 1, ncclFloat32, ncclSum, b->nccl,
                                       b->stream->handle));
    stream_sync(b->stream);
    return NULL;
}

// --- the collectives -----------------------------------------------------------------------------

// The timeline shows when the host made the call; a profiler shows when the GPU ran it.
static bool begin(Comm *comm, Stream *stream, Call *call)
{
    if (!call_begin(comm, stream, call))
        return false;
    device_use(comm->device);
    call_work_begin(comm, call);
    comm->backend->last = *call;
    return true;
}

static void end(Comm *comm, Stream *stream, const Call *call, ncclResult_t result)
{
    char text[CALL_TEXT];
    trace_end();
    check_result(comm, call, result, call_describe(call, text), __LINE__);
    check_device(comm, call);
    call_end(comm, stream, call);
}

void comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    Call call = { CALL_ALL_REDUCE, type, count };
    if (begin(comm, stream, &call))
        end(comm, stream, &call, ncclAllReduce(values, values, count, nccl_types[type], ncclSum,
                                               comm->backend->nccl, stream->handle));
}

void comm_broadcast(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                    int root)
{
    Call call = { CALL_BROADCAST, type, count, root };
    if (begin(comm, stream, &call))
        end(comm, stream, &call, ncclBroadcast(values, values, count, nccl_types[type], root,
                                               comm->backend->nccl, stream->handle));
}

void comm_all_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                     CommType type)
{
    Call call = { CALL_ALL_GATHER, type, count };
    if (begin(comm, stream, &call))
        end(comm, stream, &call, ncclAllGather(mine, all, count, nccl_types[type],
                                               comm->backend->nccl, stream->handle));
}

void comm_send(Comm *comm, Stream *stream, const void *values, size_t count, CommType type, int to)
{
    Call call = { CALL_SEND, type, count, to };
    if (begin(comm, stream, &call))
        end(comm, stream, &call, ncclSend(values, count, nccl_types[type], to,
                                          comm->backend->nccl, stream->handle));
}

void comm_receive(Comm *comm, Stream *stream, void *values, size_t count, CommType type, int from)
{
    Call call = { CALL_RECEIVE, type, count, from };
    if (begin(comm, stream, &call))
        end(comm, stream, &call, ncclRecv(values, count, nccl_types[type], from,
                                          comm->backend->nccl, stream->handle));
}

// Older versions of NCCL have no gather. The root also sends to itself.
void comm_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                 CommType type, int root)
{
    Call call = { CALL_GATHER, type, count, root };
    ncclComm_t nccl = comm->backend->nccl;
    if (!begin(comm, stream, &call))
        return;
    NCCL(comm, &call, ncclGroupStart());
    NCCL(comm, &call, ncclSend(mine, count, nccl_types[type], root, nccl, stream->handle));
    for (int i = 0; comm->rank == root && i < comm->size; i++)
        NCCL(comm, &call, ncclRecv((char *)all + (size_t)i * count * comm_width(type), count,
                                   nccl_types[type], i, nccl, stream->handle));
    end(comm, stream, &call, ncclGroupEnd());
}
