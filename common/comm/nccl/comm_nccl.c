// comm_nccl.c - comm_run on NCCL. NCCL enqueues a call on the stream, so a CUDA graph can record
// the call. Making and freeing a communicator wait for the device.
#include "check.h"
#include "comm/backend.h"
#include "cuda/cuda_internal.h"
#include "machine.h"
#include "progress.h"
#include "trace.h"

#include <nccl.h>
#include <pthread.h>
#include <stdlib.h>

const char *const comm_backend = "nccl";

struct Backend {
    ncclComm_t nccl;
    Call last;              // the latest call that was enqueued or recorded
    Comm *next;
};
static Comm *comms;         // list of this process's communicators, all on one device
static pthread_mutex_t comms_lock = PTHREAD_MUTEX_INITIALIZER; // loader threads read `comms`, too

static const ncclDataType_t nccl_types[] = {
    [COMM_U8] = ncclUint8, [COMM_I64] = ncclInt64, [COMM_F32] = ncclFloat32,
    [COMM_F64] = ncclFloat64, [COMM_BF16] = ncclBfloat16, [COMM_F16] = ncclFloat16,
};

// --- errors --------------------------------------------------------------------------------------

// Ends the program if NCCL's call failed. ncclRemoteError: a connection broke, or a rank is gone.
// call NULL: while connecting.
static void check_result(const Comm *comm, const Call *call, ncclResult_t result)
{
    char text[CALL_TEXT];
    if (result == ncclSuccess || result == ncclInProgress)
        return;
    const char *more = ncclGetLastError(comm->backend->nccl);
    if (result == ncclRemoteError)
        call_lost(comm, call, more);
    FAIL(result == ncclUnhandledCudaError
             ? "if the GPU's memory is full (nvidia-smi), use fewer ranks on it (-n) or a smaller "
               "batch (-b); for more output, set NCCL_DEBUG=INFO"
             : "for more output, set NCCL_DEBUG=INFO",
         "NCCL: %s: %s: %s", call_describe(comm, call, text), ncclGetErrorString(result),
         more ? more : "");
}

static void check_device(const Comm *comm, const Call *call)
{
    ncclResult_t result = ncclSuccess;
    check_result(comm, call, ncclCommGetAsyncError(comm->backend->nccl, &result));
    check_result(comm, call, result);
}

// Called now and then while the host waits for the device (device_cuda.c). If a rank on another
// machine is gone, one of the communicators reports an error. If the rank was on this machine, NCCL
// reports nothing (NVIDIA/nccl#279); the parent or launcher ends this process.
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
        check_result(comm, NULL, ncclGetUniqueId(&id));
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
// variable, so ranks that share a GPU pretend to be on different machines, and use sockets. NVLink
// SHARP (NVLS) needs a GPU for each rank. Keeps variables that are set. Has not yet run on a GPU.
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
    unsetenv("NCCL_COMM_ID");     // any process that knows this id could join
    keep_host_order(world);
    if (world->gpus_shared)
        share_gpus(world);
    if (comm->device->deterministic)    // NVLS may add in an order that differs from run to run
        setenv("NCCL_NVLS_ENABLE", "0", 0);
    device_use(comm->device);
    PROGRESS_DOING("waiting for", "NCCL to connect the ranks");     // may take seconds
    ncclUniqueId id = share_id(comm, world);
    check_result(comm, NULL, ncclCommInitRankConfig(&backend->nccl, comm->size, id, comm->rank,
                                                    &config));
    backend->last = (Call){ .kind = CALL_BARRIER, .section = "" };
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
    free(comm->backend);
}

// --- a call --------------------------------------------------------------------------------------

// The timeline shows when the host made the call; a profiler shows when the GPU ran it.
void comm_run(Comm *comm, Stream *stream, Call call)
{
    ncclComm_t nccl = comm->backend->nccl;
    ncclDataType_t type = nccl_types[call.type];
    ncclResult_t result = ncclSuccess;
    char *values = call.values;
    size_t count = call.count, mine = (size_t)comm->rank * count * comm_width(call.type);
    if (!call_begin(comm, &call))
        return;
    device_use(comm->device);
    call_record(comm, &call);
    switch (call.kind) {
    case CALL_BARRIER:
    case CALL_ALL_REDUCE:
        result = ncclAllReduce(values, values, count, type, ncclSum, nccl, stream->handle);
        break;
    case CALL_BROADCAST:
        result = ncclBroadcast(values, values, count, type, call.peer, nccl, stream->handle);
        break;
    case CALL_ALL_GATHER:
        result = ncclAllGather(values + mine, values, count, type, nccl, stream->handle);
        break;
    case CALL_SEND:
        result = ncclSend(values, count, type, call.peer, nccl, stream->handle);
        break;
    case CALL_RECEIVE:
        result = ncclRecv(values, count, type, call.peer, nccl, stream->handle);
        break;
    }
    trace_end();
    comm->backend->last = call;
    check_result(comm, &call, result);
    check_device(comm, &call);
    call_end(comm, stream, &call);
}
