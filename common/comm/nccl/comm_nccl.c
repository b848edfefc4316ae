// comm_nccl.c - comm.h with NCCL: GPUs exchange data in stream order; the host does not wait.
//
// Only creating and freeing a communicator wait for the device, so everything else can be recorded
// in a CUDA graph.
#include "alive.h"
#include "comm/backend.h"
#include "cuda/cuda_internal.h"

#include <nccl.h>
#include <stdlib.h>
#include <string.h>

const char *const comm_backend = "nccl";
const bool comm_shares_devices = false;

struct Link {
    const Comm *comm;
    ncclComm_t nccl;
    Stream *stream;         // for barriers
    float *token;           // a barrier's value, on the device
    Call last;              // enqueued last; in a replay: recorded last
    struct Link *next;
};
static Link *links;         // of this process, which has one device

static const ncclDataType_t nccl_types[] = {
    [COMM_U8] = ncclUint8, [COMM_I64] = ncclInt64, [COMM_F32] = ncclFloat32,
    [COMM_F64] = ncclFloat64, [COMM_BF16] = ncclBfloat16, [COMM_F16] = ncclFloat16,
};

// --- errors --------------------------------------------------------------------------------------

static const struct {
    ncclResult_t result;
    const char *hint;
} nccl_hints[] = {
    { ncclInvalidUsage, "NCCL needs a GPU for each rank: fewer ranks (-n), or --backend cuda-gloo, "
                        "whose ranks may share one; NCCL_DEBUG=WARN says more" },
    { ncclInvalidArgument, "NCCL_DEBUG=WARN says which argument, and why" },
    { ncclSystemError, "NCCL_DEBUG=INFO shows the call that failed; in a container /dev/shm may be "
                       "too small (--shm-size=1g), on a cluster NCCL_SOCKET_IFNAME may help" },
    { ncclUnhandledCudaError, "NCCL_DEBUG=INFO shows the call that failed; nvidia-smi shows the "
                              "driver, and who else uses the GPU's memory" },
    { ncclInternalError, "NCCL_DEBUG=INFO shows where; are NCCL and the driver the same on all "
                         "machines?" },
};

_Noreturn static void nccl_failed(const Link *link, ncclResult_t result, const char *call, int line)
{
    const char *hint = "", *more = ncclGetLastError(link->nccl);
    for (size_t i = 0; i < sizeof nccl_hints / sizeof *nccl_hints; i++)
        if (nccl_hints[i].result == result)
            hint = nccl_hints[i].hint;
    fail_at(__FILE__, line, EXIT_FAILED, hint, "%.*s (%s): %s%s%s", (int)strcspn(call, "("), call,
            link->comm->name, ncclGetErrorString(result), more && more[0] ? ": " : "",
            more ? more : "");
}

// NCCL's errors for a broken connection: another rank is gone.
static void check_result(const Link *link, const Call *doing, ncclResult_t result, const char *call,
                         int line)
{
    if (result == ncclRemoteError)
        comm_lost(link->comm, doing, ncclGetLastError(link->nccl));
    if (result != ncclSuccess && result != ncclInProgress)
        nccl_failed(link, result, call, line);
}

#define NCCL(link, doing, call) check_result(link, doing, call, #call, __LINE__)

// An error on the device since the last call.
static void check_device(const Link *link, const Call *doing)
{
    ncclResult_t result = ncclSuccess;
    NCCL(link, doing, ncclCommGetAsyncError(link->nccl, &result));
    check_result(link, doing, result, "NCCL", __LINE__);
}

// Called now and then while the host waits for the device (device_cuda.c). If the device waits for
// a rank that is gone, one of the communicators reports an error.
static void check_links(void)
{
    for (const Link *link = links; link; link = link->next)
        check_device(link, &link->last);
}

// --- new and free --------------------------------------------------------------------------------

// Any process with the id can join. With NCCL_COMM_ID set, the id's random part would be constant.
static void refuse_fixed_id(void)
{
    if (!getenv("NCCL_COMM_ID"))
        return;
    WARN("unset it: ranks of another run could join this one", "NCCL_COMM_ID is ignored");
    unsetenv("NCCL_COMM_ID");
}

// Rank 0 makes the id; the others find it in the store.
static ncclUniqueId share_id(const Link *link, const World *world)
{
    char key[32];
    ncclUniqueId id;
    snprintf(key, sizeof key, "nccl/%s", link->comm->name);
    if (world->rank == 0) {
        NCCL(link, NULL, ncclGetUniqueId(&id));
        store_put(world, key, &id, sizeof id);
        return id;
    }
    size_t bytes = store_get(world, key, &id, sizeof id);
    CHECK(bytes == sizeof id, "all ranks must use the same NCCL",
          "rank 0's NCCL id has %zu bytes, not %zu", bytes, sizeof id);
    return id;
}

// Kernels of two communicators can deadlock unless all ranks launch them in the same order. The
// hosts' calls do have the same order, and from 2.26 on NCCL keeps to it.
static void keep_host_order(bool first)
{
    int version = 0;
    ncclGetVersion(&version);
    CHECK(first || version >= NCCL_VERSION(2, 26, 0), "a newer NCCL; or one rank on each device",
          "NCCL %d.%d may hang with several communicators on a device: 2.26 is needed",
          version / 10000, version / 100 % 100);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

Link *link_new(const Comm *comm, const World *world)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    Link *link = xcalloc(1, sizeof *link);
    link->comm = comm;
    refuse_fixed_id();
    keep_host_order(links == NULL);
    ncclUniqueId id = share_id(link, world);
    device_use(comm->device);
    NCCL(link, NULL, ncclCommInitRankConfig(&link->nccl, world->size, id, world->rank, &config));
    link->stream = stream_new(comm->device, "barrier");
    link->token = device_alloc(comm->device, sizeof *link->token);
    link->last = (Call){ .kind = CALL_BARRIER, .other = -1 };
    link->next = links;
    links = link;
    comm->device->while_waiting = check_links;
    return link;
}

void link_free(Link *link)
{
    Link **at = &links;
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    device_use(link->comm->device);
    stream_free(link->stream);
    (void)ncclCommDestroy(link->nccl); // other ranks may have exited already
    device_free(link->comm->device, link->token);
    free(link);
}

// --- the calls -----------------------------------------------------------------------------------

static ncclResult_t do_all_reduce(const Link *link, const Call *c, cudaStream_t stream)
{
    return ncclAllReduce(c->from, c->to, c->count, nccl_types[c->type], ncclSum, link->nccl,
                         stream);
}

static ncclResult_t do_broadcast(const Link *link, const Call *c, cudaStream_t stream)
{
    return ncclBroadcast(c->from, c->to, c->count, nccl_types[c->type], c->other, link->nccl,
                         stream);
}

static ncclResult_t do_all_gather(const Link *link, const Call *c, cudaStream_t stream)
{
    return ncclAllGather(c->from, c->to, c->count, nccl_types[c->type], link->nccl, stream);
}

static ncclResult_t do_send(const Link *link, const Call *c, cudaStream_t stream)
{
    return ncclSend(c->from, c->count, nccl_types[c->type], c->other, link->nccl, stream);
}

static ncclResult_t do_receive(const Link *link, const Call *c, cudaStream_t stream)
{
    return ncclRecv(c->to, c->count, nccl_types[c->type], c->other, link->nccl, stream);
}

// Older versions of NCCL have no gather, so this is one group of sends and receives.
// The root sends to itself, too.
static ncclResult_t do_gather(const Link *link, const Call *c, cudaStream_t stream)
{
    bool root = link->comm->rank == c->other;
    ncclDataType_t type = nccl_types[c->type];
    NCCL(link, c, ncclGroupStart());
    NCCL(link, c, ncclSend(c->from, c->count, type, c->other, link->nccl, stream));
    for (int i = 0; root && i < link->comm->size; i++)
        NCCL(link, c, ncclRecv((char *)c->to + (size_t)i * c->from_bytes, c->count, type, i,
                               link->nccl, stream));
    return ncclGroupEnd();
}

static ncclResult_t (*const do_call[CALL_KINDS])(const Link *link, const Call *call,
                                                 cudaStream_t stream) = {
    [CALL_ALL_REDUCE] = do_all_reduce, [CALL_BROADCAST] = do_broadcast,
    [CALL_ALL_GATHER] = do_all_gather, [CALL_GATHER] = do_gather, [CALL_SEND] = do_send,
    [CALL_RECEIVE] = do_receive,
};

// The timeline shows when the host made the call; a profiler shows when the GPU ran it.
void link_enqueue(Link *link, Stream *stream, const Call *call)
{
    device_use(link->comm->device);
    comm_call_begin(link->comm, call);
    link->last = *call;
    NCCL(link, call, do_call[call->kind](link, call, stream->handle));
    comm_call_asked();
    check_device(link, call);
}

bool link_bare(Link *link, const Call *call)
{
    return false;
}

// An all-reduce of one number ends on no rank before it has begun on all.
const char *link_barrier(Link *link, double seconds)
{
    const Call call = { .kind = CALL_BARRIER, .other = -1, .number = link->comm->calls };
    device_use(link->comm->device);
    NCCL(link, &call, ncclAllReduce(link->token, link->token, 1, ncclFloat32, ncclSum, link->nccl,
                                    link->stream->handle));
    link->last = call;
    stream_sync(link->stream);
    return NULL;
}
