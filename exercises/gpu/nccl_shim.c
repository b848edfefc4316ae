// nccl_shim.c - NCCL's communicators, collectives, sends and groups, on comm.h.
//
//   the program's stream   | earlier work |    it waits     | later work
//   a thread of the shim                  | comm_all_reduce |
#include "nccl.h"
#include "shim.h"
#include "agree.h"
#include "progress.h"
#include "comm.h"
#include "store.h"
#include "trace.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// A thread of the shim. The first call makes its stream, and the first send or receive its Comm of two ranks.
typedef struct Lane {
    cudaStream_t stream;
    Comm *comm;
} Lane;

struct ncclComm {
    int number, rank, size;
    Lane lanes[];               // of collectives; of sends to each rank; of receives from each rank
};

// By ncclDataType_t. Types before ncclInt64 are not added up, so only their width counts.
static const CommType types[] = { COMM_U8, COMM_U8, COMM_F32, COMM_F32, COMM_I64, COMM_I64, COMM_F16, COMM_F32,
                                  COMM_F64, COMM_BF16 };
static const size_t widths[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2 };

typedef enum { ALL_REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, SEND, RECEIVE } Kind;
typedef struct Call {
    const char *name;
    Kind kind;
    const void *from;
    void *to;
    size_t count;
    ncclDataType_t type;
    ncclComm_t comm;
    ncclRedOp_t op;
    int peer;                   // the other rank, or the root
    Stream *stream;
    Lane *lane;
} Call;

static World world;             // of all communicators
static atomic_int running;      // number of calls that are not done
static Call group[2048];        // calls of the open group, not enqueued yet
static int group_calls, group_depth;

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
static StoreConfig offer;

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    if (made.number++ == 0)
        store_offer(&offer, NULL, 0, true);
    made.place = offer.place;
    memcpy(made.token, offer.token, sizeof made.token);
    memset(id, 0, sizeof *id);
    memcpy(id, &made, sizeof made);
    return ncclSuccess;
}

// Runs at exit. If calls of NCCL are not done, ends the process without the rest of exit's cleanup: their threads would
// use what it destroys.
static void leave(int status, void *arg)
{
    store_leave(&world);
    fflush(NULL);
    if (running)
        _exit(status);
}

static void join(const Id *id, int rank, int size)
{
    const char *limit = getenv("GPU_TIMEOUT");
    double timeout = limit ? atof(limit) : 30;
    offer = (StoreConfig){ rank, size, id->place, offer.socket, .timeout = timeout };
    memcpy(offer.token, id->token, sizeof offer.token);
    world = (World){ .rank = rank, .size = size, .local_rank = rank, .local_size = size, .sharers = size };
    check_set_rank(rank, size);
    store_join(&offer, &world);
    on_exit(leave, NULL);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId unique, int rank)
{
    static const char rule[] = "Rank 0 calls ncclGetUniqueId, and passes its id on to all ranks, as with MPI_Bcast";
    int gpu, gpus;
    Id id;
    char text[16];
    memcpy(&id, &unique, sizeof id);
    *comm = NULL;
    if (memcmp(id.magic, made.magic, sizeof id.magic) != 0)
        return REFUSE(ncclInvalidArgument, "ncclCommInitRank: rank %d has no id. %s", rank, rule);
    if (rank < 0 || rank >= ranks || (world.store && (rank != world.rank || ranks != world.size)))
        return REFUSE(ncclInvalidArgument, "ncclCommInitRank: there is no rank %d of %d", rank, ranks);
    if ((rank == 0) != (memcmp(id.token, made.token, sizeof id.token) == 0))
        return REFUSE(ncclInvalidUsage, "ncclCommInitRank: rank %d has an id that %s made. %s", rank,
                      rank == 0 ? "a different rank" : "it", rule);
    if (!world.store)
        join(&id, rank, ranks);
    cudaGetDevice(&gpu);
    snprintf(text, sizeof text, "GPU %d", gpu);
    CHECK(agree_place(&world, "GPU", text, &gpus) == 0,
          "before anything else, each rank calls cudaSetDevice with its local rank",
          "rank %d has the same GPU as another rank: %s", rank, text);
    *comm = xcalloc(1, sizeof **comm + (1 + 2 * (size_t)ranks) * sizeof(Lane));
    **comm = (struct ncclComm){ id.number, rank, ranks };
    snprintf(text, sizeof text, "NCCL %d", id.number);
    (*comm)->lanes[0].comm = comm_new(&world, shim_gpu, text, NULL);
    return ncclSuccess;
}

static void free_comm(void *comm) { comm_free(*(Comm **)comm); }

// comm_free waits for the other ranks. So the Comms of sends and receives are freed in their lanes' threads: in one
// thread, two ranks could wait for each other.
ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    cudaDeviceSynchronize();
    comm_free(c->lanes[0].comm);
    c->lanes[0].comm = NULL;
    for (Lane *lane = c->lanes; lane <= c->lanes + 2 * c->size; lane++)
        if (lane->stream) {
            stream_enqueue(shim_enter(lane->stream), free_comm, &lane->comm, sizeof lane->comm);
            cudaStreamDestroy(lane->stream);
        }
    cudaDeviceSynchronize();
    free(c);
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) { *error = ncclSuccess; return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclSuccess; }     // leave() ends the calls that wait
ncclResult_t ncclCommCount(ncclComm_t comm, int *ranks) { *ranks = comm->size; return ncclSuccess; }
ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) { *rank = comm->rank; return ncclSuccess; }

// --- the work of a call, in its lane's thread -----------------------------------------------------------------------

static void reduce(const Call *c)
{
    size_t size = (size_t)c->comm->size, bytes = c->count * widths[c->type];
    size_t all = c->kind == REDUCE_SCATTER ? size : 1, mine = c->kind == REDUCE_SCATTER ? (size_t)c->comm->rank : 0;
    char *sum = xmalloc(all * bytes);
    memcpy(sum, c->from, all * bytes);
    comm_all_reduce(c->lane->comm, device_stream(shim_gpu), sum, all * c->count, types[c->type]);
    for (size_t i = 0; c->op == ncclAvg && i < all * c->count; i++)
        if (c->type == ncclFloat32)
            ((float *)sum)[i] /= (float)size;
        else
            ((double *)sum)[i] /= (double)size;
    memcpy(c->to, sum + mine * bytes, bytes);
    free(sum);
}

// The sender is rank 0 of a World of two, and the receiver is rank 1. If a rank sends to itself, they are two threads
// of one process.
static void move(const Call *c)
{
    Stream *here = device_stream(shim_gpu);
    bool sends = c->kind == SEND;
    int me = c->comm->rank, from = sends ? me : c->peer, to = sends ? c->peer : me;
    char name[16], text[64];
    World pair = world;
    pair.size = 2;
    pair.rank = !sends;
    snprintf(name, sizeof name, "NCCL %d: %d > %d", c->comm->number, from, to);
    snprintf(text, sizeof text, "%s of %zu (%s)", sends ? "send" : "receive", c->count, name);
    progress_call("%s", text);
    PROGRESS_DOING("in", text);
    if (!c->lane->comm)
        c->lane->comm = comm_new(&pair, shim_gpu, name, NULL);
    int64_t sent = (int64_t)c->count;
    if (sends) {
        comm_send(c->lane->comm, here, &sent, 1, COMM_I64, 1);
        comm_send(c->lane->comm, here, c->from, c->count, types[c->type], 1);
    } else {
        comm_receive(c->lane->comm, here, &sent, 1, COMM_I64, 0);
        CHECK(sent == (int64_t)c->count, "", "rank %d sends %lld values to rank %d, which receives %zu", from,
              (long long)sent, to, c->count);
        comm_receive(c->lane->comm, here, c->to, c->count, types[c->type], 0);
    }
}

static void run(void *arg)
{
    const Call *c = arg;
    Stream *here = device_stream(shim_gpu);
    CommType type = types[c->type];
    char text[40];
    const char *preposition = c->kind == SEND ? "to" : "from";
    snprintf(text, sizeof text, c->kind < SEND ? "%s" : "%s %s %d", c->name, preposition, c->peer);
    shim_begin(text);
    if (c->kind <= REDUCE_SCATTER) {
        reduce(c);
    } else if (c->kind == BROADCAST) {
        if (c->from)
            memmove(c->to, c->from, c->count * widths[c->type]);
        comm_broadcast(c->lane->comm, here, c->to, c->count, type, c->peer);
    } else if (c->kind == ALL_GATHER) {
        comm_all_gather(c->lane->comm, here, c->from, c->to, c->count, type);
    } else {
        move(c);
    }
    trace_end();
    running--;
}

// --- calls ----------------------------------------------------------------------------------------------------------

// Enqueues the calls of the group. Each begins after earlier work on its stream. Only calls of the same lane wait for
// each other.
static ncclResult_t enqueue(void)
{
    Call *end = group + group_calls;
    group_calls = 0;
    for (Call *c = group; c < end; c++) {
        shim_order(c->stream, shim_enter(c->lane->stream));
        running++;
        stream_enqueue(shim_enter(c->lane->stream), run, c, sizeof *c);
    }
    for (Call *c = group; c < end; c++)
        shim_order(shim_enter(c->lane->stream), c->stream);
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) { group_depth++; return ncclSuccess; }

ncclResult_t ncclGroupEnd(void)
{
    if (group_depth == 0)
        return REFUSE(ncclInvalidUsage, "ncclGroupEnd: there was no ncclGroupStart");
    return --group_depth ? ncclSuccess : enqueue();
}

static ncclResult_t call(Call c, cudaStream_t stream)
{
    if (!c.comm || (unsigned)c.type > ncclBfloat16 || c.peer < 0 || c.peer >= c.comm->size)
        return REFUSE(ncclInvalidArgument, "%s: no such communicator, data type or rank", c.name);
    bool divides = c.op == ncclAvg && (c.type == ncclFloat32 || c.type == ncclFloat64);
    if (c.kind <= REDUCE_SCATTER && !divides && (c.op != ncclSum || c.type < ncclInt64))
        return REFUSE(ncclInvalidArgument, "%s: without a GPU there are ncclSum of floating point and 64-bit "
                      "numbers, and ncclAvg of ncclFloat and ncclDouble", c.name);

    size_t size = (size_t)c.comm->size, rank = (size_t)c.comm->rank, bytes = c.count * widths[c.type];
    size_t in = c.kind == REDUCE_SCATTER ? size * bytes : bytes, out = c.kind == ALL_GATHER ? size * bytes : bytes;
    bool reads = c.kind != RECEIVE && (c.kind != BROADCAST || c.peer == c.comm->rank), writes = c.kind != SEND;
    const char *from = c.from = reads ? shim_memory(c.from, in) : NULL;
    const char *to = c.to = writes ? shim_memory(c.to, out) : NULL;
    if ((reads && !from) || (writes && !to))
        return REFUSE(ncclInvalidArgument, "%s: the buffer to %s is host memory, or has fewer than %zu values",
                      c.name, reads && !from ? "read" : "write", c.count);
    const char *in_place = in > out ? from + rank * bytes : out > in ? from - rank * bytes : from;
    if (from && to && from < to + out && to < from + in && to != in_place)
        return REFUSE(ncclInvalidArgument, "%s: from and to overlap. In place, rank %zu's part begins %zu values "
                      "after the beginning of the array", c.name, rank, rank * c.count);

    c.stream = shim_enter(stream);
    c.lane = &c.comm->lanes[c.kind < SEND ? 0 : c.kind == SEND ? 1 + c.peer : 1 + c.comm->size + c.peer];
    if (!c.lane->stream)
        cudaStreamCreateWithFlags(&c.lane->stream, cudaStreamNonBlocking);
    CHECK(group_calls < (int)(sizeof group / sizeof *group), "", "a group has too many calls");
    group[group_calls++] = c;
    return group_depth ? ncclSuccess : enqueue();
}

// Each collective, send and receive packs its arguments into a Call.
#define DEFINE(name, parameters, ...) \
    ncclResult_t name parameters { return call((Call){ #name, __VA_ARGS__ }, stream); }

DEFINE(ncclAllReduce, (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                       cudaStream_t stream), ALL_REDUCE, from, to, count, type, comm, op)
DEFINE(ncclReduceScatter, (const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream), REDUCE_SCATTER, from, to, count, type, comm, op)
DEFINE(ncclBroadcast, (const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream), BROADCAST, from, to, count, type, comm, .peer = root)
DEFINE(ncclAllGather, (const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                       cudaStream_t stream), ALL_GATHER, from, to, count, type, comm)
DEFINE(ncclSend, (const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
       SEND, from, NULL, count, type, comm, .peer = peer)
DEFINE(ncclRecv, (void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream),
       RECEIVE, NULL, to, count, type, comm, .peer = peer)
