// nccl_shim.c - NCCL's communicators, collectives, sends and groups, on comm.h.
//
//   the program's stream   | earlier work |    it waits     | later work
//   a thread of the shim                  | comm_all_reduce |
#include "nccl.h"
#include "shim.h"
#include "agree.h"
#include "alive.h"
#include "comm.h"
#include "tcp_store.h"
#include "trace.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// A thread of the shim's own. For sends or receives, the first one makes its Comm, of the two ranks.
typedef struct Lane {
    cudaStream_t stream;
    Comm *comm;
} Lane;

struct ncclComm {
    int number, rank, size;
    Lane *all, *to, *from;      // collectives; for each rank, sends and receives
};

typedef enum { ALL_REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, SEND, RECEIVE } Kind;
static const char *const names[] = { "ncclAllReduce", "ncclReduceScatter", "ncclBroadcast", "ncclAllGather", "ncclSend",
                                     "ncclRecv" };
static const struct {
    size_t width;
    CommType type;              // of this width
    bool adds;                  // comm_all_reduce adds its values
} types[] = {
    [ncclInt8] = { 1, COMM_U8 }, [ncclUint8] = { 1, COMM_U8 }, [ncclInt32] = { 4, COMM_F32 },
    [ncclUint32] = { 4, COMM_F32 }, [ncclInt64] = { 8, COMM_I64, true }, [ncclUint64] = { 8, COMM_I64, true },
    [ncclFloat16] = { 2, COMM_F16, true }, [ncclFloat32] = { 4, COMM_F32, true },
    [ncclFloat64] = { 8, COMM_F64, true }, [ncclBfloat16] = { 2, COMM_BF16, true },
};

typedef struct Call {
    Kind kind;
    ncclComm_t comm;
    const void *from;
    void *to;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer;                   // the other rank, or the root
    Stream *stream;
    Lane *lane;
} Call;

static World world;             // of all communicators
static atomic_int running;      // calls that are not done
static Call group[2048];        // not enqueued
static int group_calls, group_depth;

#define REFUSE(result, hint, ...) (warn_at(__FILE__, __LINE__, hint, __VA_ARGS__), result)

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : result == ncclInvalidUsage ? "invalid usage" : "invalid argument";
}

// --- communicators --------------------------------------------------------------------------------------------------

typedef struct Id {
    char magic[8];
    TcpPlace place;             // where rank 0 keeps the store
    char token[STORE_TOKEN];
    int number;
} Id;
_Static_assert(sizeof(Id) <= sizeof(ncclUniqueId), "");
static Id made = { .magic = "gpushim" };
static TcpStoreConfig offer;

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    if (made.number++ == 0)
        tcp_store_offer(&offer, NULL, 0, true);
    made.place = offer.place;
    memcpy(made.token, offer.token, sizeof made.token);
    memset(id, 0, sizeof *id);
    memcpy(id, &made, sizeof made);
    return ncclSuccess;
}

// At exit. Threads that still work would use what exit destroys.
static void leave(int status, void *arg)
{
    tcp_store_end(&world);
    fflush(NULL);
    if (running)
        _exit(status);
}

static void join(const Id *id, int rank, int size)
{
    const char *limit = getenv("GPU_TIMEOUT");
    double timeout = limit ? atof(limit) : 30;
    offer = (TcpStoreConfig){ rank, size, id->place, offer.socket };
    memcpy(offer.token, id->token, sizeof offer.token);
    world = (World){ .rank = rank, .size = size, .local_rank = rank, .local_size = size, .sharers = size };
    check_set_rank(rank, size);
    alive_limits(timeout, timeout);
    tcp_store_join(&offer, &world);
    on_exit(leave, NULL);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId unique, int rank)
{
    static const char hint[] = "rank 0 calls ncclGetUniqueId, and passes its id on to all ranks, as with MPI_Bcast";
    int gpu;
    Id id;
    char text[16];
    memcpy(&id, &unique, sizeof id);
    *comm = NULL;
    if (memcmp(id.magic, made.magic, sizeof id.magic) != 0)
        return REFUSE(ncclInvalidArgument, hint, "ncclCommInitRank: rank %d has no id", rank);
    if (rank < 0 || rank >= ranks || (world.store && (rank != world.rank || ranks != world.size)))
        return REFUSE(ncclInvalidArgument, "", "ncclCommInitRank: there is no rank %d of %d", rank, ranks);
    if ((rank == 0) != (memcmp(id.token, made.token, sizeof id.token) == 0))
        return REFUSE(ncclInvalidUsage, hint, "ncclCommInitRank: rank %d has an id that %s made", rank,
                      rank == 0 ? "a different rank" : "it");
    if (!world.store)
        join(&id, rank, ranks);
    cudaGetDevice(&gpu);
    snprintf(text, sizeof text, "GPU %d", gpu);
    agree_unique(&world, "GPU", text, "before anything else, each rank calls cudaSetDevice with its local rank");
    ncclComm_t c = *comm = xcalloc(1, sizeof *c);
    Lane *lanes = xcalloc(1 + 2 * (size_t)ranks, sizeof *lanes);
    *c = (struct ncclComm){ id.number, rank, ranks, lanes, lanes + 1, lanes + 1 + ranks };
    snprintf(text, sizeof text, "NCCL %d", id.number);
    c->all->comm = comm_new(&world, shim_gpu, text, &(CommConfig){ .checked = true });
    return ncclSuccess;
}

// Two ranks free what they share in the same order.
ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    cudaDeviceSynchronize();
    for (int i = 0; i < c->size * c->size; i++) {
        int from = i / c->size, to = i % c->size;
        comm_free(from == c->rank ? c->to[to].comm : to == c->rank ? c->from[from].comm : NULL);
    }
    comm_free(c->all->comm);
    for (Lane *lane = c->all; lane < c->from + c->size; lane++)
        if (lane->stream)
            cudaStreamDestroy(lane->stream);
    free(c->all);
    free(c);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *ranks) { *ranks = comm->size; return ncclSuccess; }
ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) { *rank = comm->rank; return ncclSuccess; }

// --- the work of a call, in its lane's thread -----------------------------------------------------------------------

static void reduce(const Call *c)
{
    size_t size = (size_t)c->comm->size, bytes = c->count * types[c->type].width;
    size_t all = c->kind == REDUCE_SCATTER ? size : 1, mine = c->kind == REDUCE_SCATTER ? (size_t)c->comm->rank : 0;
    char *sum = xmalloc(all * bytes);
    memcpy(sum, c->from, all * bytes);
    comm_all_reduce(c->comm->all->comm, device_stream(shim_gpu), sum, all * c->count, types[c->type].type);
    for (size_t i = 0; c->op == ncclAvg && i < all * c->count; i++)
        if (c->type == ncclFloat32)
            ((float *)sum)[i] /= (float)size;
        else
            ((double *)sum)[i] /= (double)size;
    memcpy(c->to, sum + mine * bytes, bytes);
    free(sum);
}

static void move(const Call *c)
{
    static _Atomic uint64_t place;
    bool sends = c->kind == SEND;
    int me = c->comm->rank, from = sends ? me : c->peer, to = sends ? c->peer : me;
    char name[16];
    World pair = world;
    pair.size = 2;
    pair.rank = !sends;
    snprintf(name, sizeof name, "NCCL %d: %d > %d", c->comm->number, from, to);
    alive_collective_begin(++place, name, sends ? "send" : "receive", (int64_t)c->count, "");
    if (!c->lane->comm)
        c->lane->comm = comm_new(&pair, shim_gpu, name, NULL);
    Comm *comm = c->lane->comm;
    CommType type = types[c->type].type;
    int64_t sent = (int64_t)c->count;
    if (sends) {
        comm_send(comm, device_stream(shim_gpu), &sent, 1, COMM_I64, 1);
        comm_send(comm, device_stream(shim_gpu), c->from, c->count, type, 1);
    } else {
        comm_receive(comm, device_stream(shim_gpu), &sent, 1, COMM_I64, 0);
        CHECK(sent == (int64_t)c->count, "", "rank %d sends %lld values to rank %d, which receives %zu", from,
              (long long)sent, to, c->count);
        comm_receive(comm, device_stream(shim_gpu), c->to, c->count, type, 0);
    }
    alive_collective_end();
}

static void run(void *arg)
{
    const Call *c = arg;
    Comm *comm = c->comm->all->comm;
    Stream *here = device_stream(shim_gpu);
    CommType type = types[c->type].type;
    char text[40];
    const char *preposition = c->kind == SEND ? "to" : "from";
    snprintf(text, sizeof text, c->kind < SEND ? "%s" : "%s %s %d", names[c->kind], preposition, c->peer);
    shim_begin(text, SHIM_NCCL);
    if (c->kind <= REDUCE_SCATTER) {
        reduce(c);
    } else if (c->kind == BROADCAST) {
        if (c->peer == c->comm->rank)
            memmove(c->to, c->from, c->count * types[c->type].width);
        comm_broadcast(comm, here, c->to, c->count, type, c->peer);
    } else if (c->kind == ALL_GATHER) {
        comm_all_gather(comm, here, c->from, c->to, c->count, type);
    } else if (c->peer != c->comm->rank) {
        move(c);
    } else if (c->kind == RECEIVE) {
        memmove(c->to, c->from, c->count * types[c->type].width);
    }
    trace_end();
    running--;
}

// --- calls ----------------------------------------------------------------------------------------------------------

// All calls of the group begin when their streams get there, and none waits for another.
static ncclResult_t enqueue(void)
{
    int n = group_calls;
    group_calls = 0;
    for (Call *r = group, *s; r < group + n; r++) {         // to itself: the receive copies
        for (s = group; s < group + n && !(s->kind == SEND && s->lane == r->lane && !s->to); s++) {
        }
        if (r->kind == RECEIVE && r->peer == r->comm->rank && s < group + n)
            r->from = s->to = (void *)s->from;
    }
    for (Call *c = group; c < group + n; c++)
        shim_order(c->stream, shim_enter(c->lane->stream));
    running += n;
    for (Call *c = group; c < group + n; c++)
        stream_enqueue(shim_enter(c->lane->stream), run, c, sizeof *c);
    for (Call *c = group; c < group + n; c++)
        shim_order(shim_enter(c->lane->stream), c->stream);
    return ncclSuccess;
}

// Does the call write over what it reads? NCCL would not notice.
static bool overwrites(const Call *c, size_t bytes)
{
    bool scatters = c->kind == REDUCE_SCATTER, gathers = c->kind == ALL_GATHER;
    size_t ranks = scatters || gathers ? (size_t)c->comm->size : 1, mine = ranks > 1 ? (size_t)c->comm->rank : 0;
    const char *all = gathers ? c->to : c->from, *part = gathers ? c->from : c->to;
    return all && part && part < all + ranks * bytes && all < part + bytes && part != all + mine * bytes;
}

static ncclResult_t call(Call c, cudaStream_t stream)
{
    const char *name = names[c.kind];
    if (!c.comm || (unsigned)c.type > ncclBfloat16 || c.peer < 0 || c.peer >= c.comm->size)
        return REFUSE(ncclInvalidArgument, "", "%s: no such communicator, data type or rank", name);
    if (c.kind <= REDUCE_SCATTER && (!types[c.type].adds || (c.op != ncclSum && c.op != ncclAvg) ||
                                     (c.op == ncclAvg && c.type != ncclFloat32 && c.type != ncclFloat64)))
        return REFUSE(ncclInvalidArgument, "", "%s: without a GPU there are ncclSum of floating point and 64-bit "
                      "numbers, and ncclAvg of ncclFloat and ncclDouble", name);
    size_t bytes = c.count * types[c.type].width, all = (size_t)c.comm->size * bytes;
    bool reads = c.kind != RECEIVE && (c.kind != BROADCAST || c.peer == c.comm->rank);
    c.from = reads ? shim_memory(c.from, c.kind == REDUCE_SCATTER ? all : bytes) : NULL;
    c.to = c.kind != SEND ? shim_memory(c.to, c.kind == ALL_GATHER ? all : bytes) : NULL;
    if ((reads && !c.from) || (c.kind != SEND && !c.to))
        return REFUSE(ncclInvalidArgument, "", "%s: the buffer to %s is host memory, or has fewer than %zu values",
                      name, reads && !c.from ? "read" : "write", c.count);
    if (overwrites(&c, bytes))
        return REFUSE(ncclInvalidArgument, "", "%s: from and to overlap. In place, rank %d's part begins %zu values "
                      "after the beginning of the array", name, c.comm->rank, (size_t)c.comm->rank * c.count);
    c.stream = shim_enter(stream);
    c.lane = c.kind == SEND ? &c.comm->to[c.peer] : c.kind == RECEIVE ? &c.comm->from[c.peer] : c.comm->all;
    c.lane = c.kind == RECEIVE && c.peer == c.comm->rank ? &c.comm->to[c.peer] : c.lane;
    if (!c.lane->stream)
        cudaStreamCreateWithFlags(&c.lane->stream, cudaStreamNonBlocking);
    CHECK(group_calls < (int)(sizeof group / sizeof *group), "", "a group has too many calls");
    group[group_calls++] = c;
    return group_depth ? ncclSuccess : enqueue();
}

ncclResult_t ncclGroupStart(void) { group_depth++; return ncclSuccess; }

ncclResult_t ncclGroupEnd(void)
{
    if (group_depth == 0)
        return REFUSE(ncclInvalidUsage, "", "ncclGroupEnd: there was no ncclGroupStart");
    return --group_depth ? ncclSuccess : enqueue();
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call((Call){ ALL_REDUCE, comm, from, to, count, type, op }, stream);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return call((Call){ REDUCE_SCATTER, comm, from, to, count, type, op }, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return call((Call){ BROADCAST, comm, from, to, count, type, .peer = root }, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return call((Call){ ALL_GATHER, comm, from, to, count, type }, stream);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call((Call){ SEND, comm, from, NULL, count, type, .peer = peer }, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return call((Call){ RECEIVE, comm, NULL, to, count, type, .peer = peer }, stream);
}
