// nccl.c - NCCL, for fake.h, as far as exercises/gpu/nccl.h declares it.
//
// A communicator is a file in $TMPDIR that its ranks map. In the file are rooms, where ranks meet: a barrier, and a
// place for each rank's values. All ranks meet in the first room; in each of the others, a sender meets a receiver. A
// rank waits for a lost rank until the communicator is aborted or the process ends.
#include "communicators.h"
#include "numbers.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

enum { MAX_RANKS = 16, MAX_CALLS = 256, HEADER = 8192, PLACE = 64 << 20 };

typedef enum Kind { ALL_REDUCE, REDUCE_SCATTER, BROADCAST, ALL_GATHER, SEND, RECEIVE } Kind;

typedef enum Stage { WAITING, SHOWN, TAKEN, DONE } Stage;

typedef struct Doing {
    Kind kind;
    size_t count;
    int type, op, root;         // root: for sends and receives, the other rank
} Doing;

typedef struct Room {
    _Atomic int arrived, round;
    Doing doing[MAX_RANKS];
    char hosts[MAX_RANKS][80];
    int devices[MAX_RANKS];
} Room;
_Static_assert(sizeof(Room) <= HEADER, "");

// How a rank takes part in one kind of call. Calls of a lane run in order.
typedef struct Lane {
    Room *room;
    char *places;               // (size, PLACE)
    int rank, size;             // in the room: a sender is 0, a receiver is 1
} Lane;

struct ncclComm {
    int rank, size, number;
    Lane lanes[1 + 2 * MAX_RANKS];      // of collectives; of sends to each rank; of receives from each rank
    size_t bytes;               // of the file
    int graphs;
    struct CUevent_st last;     // after the last call or group. The next one, on any stream, waits for it
    _Atomic bool aborted;
};

typedef struct Call {
    const char *name;
    struct ncclComm *comm;
    Doing doing;
    const void *from;           // NULL: this rank only receives, or only sends
    void *to;
    size_t in, out;             // bytes
    cudaStream_t stream;
    Lane *lane;
    char span[40], wait[80];
    Stage stage;
    int round;                  // the room's round in which this rank has arrived
} Call;

// The calls of a group on one communicator.
typedef struct Group {
    int count;
    Call calls[MAX_CALLS];
} Group;

static _Thread_local Group group;       // not enqueued yet
static _Thread_local int group_depth;

const char *ncclGetErrorString(ncclResult_t result) { return result == ncclSuccess ? "no error" : "invalid"; }

// --- meeting and parting -------------------------------------------------------------------------

// Returns a number for has_met, which is true when all ranks have arrived.
static int arrive(const Lane *lane)
{
    Room *room = lane->room;
    int round = room->round;
    if (atomic_fetch_add(&room->arrived, 1) + 1 == lane->size) {
        room->arrived = 0;
        room->round = round + 1;
    }
    return round;
}

static bool has_met(const struct ncclComm *comm, const Lane *lane, int round)
{
    return lane->room->round != round || comm->aborted;
}

static void meet(const struct ncclComm *comm, const char *name)
{
    char text[64];
    snprintf(text, sizeof text, "%s (NCCL %d)", name, comm->number);
    fake_wait(text);
    int round = arrive(&comm->lanes[0]);
    while (!has_met(comm, &comm->lanes[0], round))
        usleep(20);
    fake_wait(NULL);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    if (getrandom(id, 8, 0) != 8)
        return ncclSystemError;
    fake_offer(id->internal + 8, sizeof *id - 8);
    return ncclSuccess;
}

// Rank 0 makes the file; the others wait until it has its full size.
static char *map_file(const char *path, bool make, size_t bytes)
{
    int file;
    while ((file = open(path, O_RDWR | O_CLOEXEC | (make ? O_CREAT : 0), 0600)) < 0)
        usleep(1000);
    if (make && ftruncate(file, (off_t)bytes) != 0)
        fake_die("%s cannot be made", path);
    while (lseek(file, 0, SEEK_END) < (off_t)bytes)
        usleep(1000);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (map == MAP_FAILED)
        fake_die("%s cannot be mapped", path);
    return map;
}

static Lane lane_in(char *room, int rank, int size) { return (Lane){ (Room *)room, room + HEADER, rank, size }; }

static void make_lanes(struct ncclComm *comm, const char *path)
{
    const size_t first = HEADER + (size_t)comm->size * PLACE, pair = HEADER + (size_t)PLACE;
    comm->bytes = first + (size_t)(comm->size * comm->size) * pair;
    char *file = map_file(path, comm->rank == 0, comm->bytes);
    comm->lanes[0] = lane_in(file, comm->rank, comm->size);
    for (int peer = 0; peer < comm->size; peer++) {
        char *pairs = file + first;
        comm->lanes[1 + peer] = lane_in(pairs + (size_t)(comm->rank * comm->size + peer) * pair, 0, 2);
        comm->lanes[1 + comm->size + peer] = lane_in(pairs + (size_t)(peer * comm->size + comm->rank) * pair, 1, 2);
    }
}

static void tell_where(const struct ncclComm *comm)
{
    Room *room = comm->lanes[0].room;
    const char *host = getenv("NCCL_HOSTID");
    cudaGetDevice(&room->devices[comm->rank]);
    room->devices[comm->rank] += fake_setting("CUDA_VISIBLE_DEVICES", 0);
    snprintf(room->hosts[comm->rank], sizeof room->hosts[0], "%s", host ? host : "this machine");
}

int fake_nccl_version(void) { return fake_setting("FAKE_NCCL_VERSION", 23007); }

// NCCL refuses two ranks of one machine on one GPU. From 2.30 on, a variable allows them.
static ncclResult_t check_places(const struct ncclComm *comm)
{
    const Room *room = comm->lanes[0].room;
    bool allowed = fake_nccl_version() >= 23000 && fake_setting("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 1;
    for (int i = 0; i < comm->size && !allowed; i++)
        for (int k = 0; k < i; k++)
            if (room->devices[i] == room->devices[k] && strcmp(room->hosts[i], room->hosts[k]) == 0)
                return (ncclResult_t)fake_refuse(ncclInvalidUsage, "ncclCommInitRank: rank %d has the same GPU as rank "
                                                 "%d: GPU %d. Before anything else, each rank calls cudaSetDevice with "
                                                 "its local rank", i, k, room->devices[i]);
    return ncclSuccess;
}

ncclResult_t fake_comm_new(ncclComm_t *made, int size, const ncclUniqueId *id, int rank)
{
    char path[4096];
    uint64_t code;
    static int number;
    fake_not_in_capture("ncclCommInitRank");
    if (size > MAX_RANKS)
        fake_die("the mock has at most %d ranks", MAX_RANKS);
    memcpy(&code, id, sizeof code);
    snprintf(path, sizeof path, "%s/fake-nccl-%016llx", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp",
             (unsigned long long)code);
    struct ncclComm *comm = calloc(1, sizeof *comm);
    *comm = (struct ncclComm){ .rank = rank, .size = size, .number = ++number };
    make_lanes(comm, path);
    tell_where(comm);
    meet(comm, "ncclCommInitRank");
    if (rank == 0)
        unlink(path);
    ncclResult_t result = check_places(comm);
    *made = result == ncclSuccess ? comm : NULL;
    return result;
}

// NCCL frees a communicator only when no graph refers to it.
static void check_graphs(const struct ncclComm *comm, const char *name)
{
    if (comm->graphs > 0)
        fake_die("%s: %d graphs hold the communicator's work: it would wait for them", name, comm->graphs);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    check_graphs(comm, "ncclCommDestroy");
    cudaDeviceSynchronize();
    meet(comm, "ncclCommDestroy");
    munmap(comm->lanes[0].room, comm->bytes);
    free(comm);
    return ncclSuccess;
}

// Calls of the communicator may still be running, so nothing is freed.
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    check_graphs(comm, "ncclCommAbort");
    comm->aborted = true;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) { *error = ncclSuccess; return ncclSuccess; }
ncclResult_t ncclCommCount(ncclComm_t comm, int *ranks) { *ranks = comm->size; return ncclSuccess; }
ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) { *rank = comm->rank; return ncclSuccess; }

// --- the work of a call, in a stream's thread ----------------------------------------------------

// Indexed by ncclDataType_t. Types before ncclInt64 are not added up, so only their width counts.
static const NumberType types[] = { NUMBER_U8, NUMBER_U8, NUMBER_F32, NUMBER_F32, NUMBER_I64, NUMBER_I64, NUMBER_F16,
                                    NUMBER_F32, NUMBER_F64, NUMBER_BF16 };

static size_t bytes_of(const Doing *d) { return d->count * number_bytes(types[d->type]); }
static char *place(const Lane *lane, int rank) { return lane->places + (size_t)rank * PLACE; }

static void reduce(const Call *c, size_t begin, void *to)
{
    const Doing *d = &c->doing;
    NumberType type = types[d->type];
    for (size_t i = 0; i < d->count; i++) {
        double sum = 0;
        for (int rank = 0; rank < c->lane->size; rank++)
            sum += number_get(place(c->lane, rank), type, begin + i);
        number_set(to, type, i, d->op == ncclAvg ? sum / c->lane->size : sum);
    }
}

static const char *kind_name(Kind kind)
{
    static const char *const names[] = { "ncclAllReduce", "ncclReduceScatter", "ncclBroadcast", "ncclAllGather",
                                         "ncclSend", "ncclRecv" };
    return names[kind];
}

static void check_alike(const Lane *lane)
{
    const Doing *first = &lane->room->doing[0];
    for (int rank = 1; rank < lane->size; rank++) {
        const Doing *d = &lane->room->doing[rank];
        bool alike = first->count == d->count && first->type == d->type;
        if (first->kind == SEND && !alike)
            fake_die("rank %d sends %zu values to rank %d, which receives %zu", d->root, first->count, first->root,
                     d->count);
        if (first->kind != SEND &&
            !(alike && first->kind == d->kind && first->op == d->op && first->root == d->root))
            fake_die("the ranks' collectives differ: rank 0 is in %s of %zu, rank %d in %s of %zu",
                     kind_name(first->kind), first->count, rank, kind_name(d->kind), d->count);
    }
}

static void take(const Call *c)
{
    const Lane *lane = c->lane;
    char *to = fake_at(c->to);
    switch (c->doing.kind) {
    case ALL_REDUCE: reduce(c, 0, to); break;
    case REDUCE_SCATTER: reduce(c, (size_t)lane->rank * c->doing.count, to); break;
    case BROADCAST: memcpy(to, place(lane, c->doing.root), c->out); break;
    case RECEIVE: memcpy(to, place(lane, 0), c->out); break;
    case ALL_GATHER:
        for (int rank = 0; rank < lane->size; rank++)
            memcpy(to + (size_t)rank * c->in, place(lane, rank), c->in);
        break;
    case SEND: break;
    }
}

// Does what the call can do now: shows its values to the other ranks, or takes theirs, or ends.
static void advance(Call *c)
{
    Lane *lane = c->lane;
    if (c->stage == WAITING) {
        fake_need(c->from, c->from ? c->in : 0, c->name);
        fake_need(c->to, c->to ? c->out : 0, c->name);
        lane->room->doing[lane->rank] = c->doing;
        if (c->from)
            memcpy(place(lane, lane->rank), fake_at(c->from), c->in);
    } else if (!has_met(c->comm, lane, c->round)) {
        return;
    } else if (c->comm->aborted) {
        c->stage = DONE;
        return;
    } else if (c->stage == SHOWN) {
        check_alike(lane);
        take(c);
    }
    c->stage++;
    if (c->stage != DONE)
        c->round = arrive(lane);
}

static bool is_first_of_lane(const Group *g, const Call *c)
{
    for (const Call *earlier = g->calls; earlier < c; earlier++)
        if (earlier->lane == c->lane && earlier->stage != DONE)
            return false;
    return true;
}

// Calls of a group that use different lanes run at the same time.
static void run_group(void *arg)
{
    Group *g = arg;
    for (Call *c = g->calls; c < g->calls + g->count; c++) {
        c->stage = WAITING;
        fake_begin(c->span);
    }
    fake_wait(g->calls[0].wait);
    for (bool busy = true, moved = true; busy;) {
        if (!moved)
            usleep(20);
        busy = moved = false;
        for (Call *c = g->calls; c < g->calls + g->count; c++) {
            Stage stage = c->stage;
            if (c->stage != DONE && is_first_of_lane(g, c))
                advance(c);
            moved = moved || c->stage != stage;
            busy = busy || c->stage != DONE;
        }
    }
    fake_wait(NULL);
    for (int i = 0; i < g->count; i++)
        fake_end();
}

// --- calls ---------------------------------------------------------------------------------------

// Enqueues the group's calls: those of one communicator as one piece of work, on the stream of the first. It begins
// after the earlier work of all their streams, and their later work waits for it.
static ncclResult_t enqueue(void)
{
    Group *part = malloc(sizeof *part);
    for (int i = 0; i < group.count; i++) {
        struct ncclComm *comm = group.calls[i].comm;
        cudaStream_t stream = group.calls[i].stream;
        if (!comm)
            continue;
        part->count = 0;
        fake_hold(stream, &comm->graphs);
        if (comm->last.stream != stream && comm->last.graph == stream->graph)
            cudaStreamWaitEvent(stream, &comm->last, 0);
        for (Call *c = &group.calls[i]; c < group.calls + group.count; c++) {
            if (c->comm != comm)
                continue;
            if (c->stream != stream) {
                struct CUevent_st before = { 0 };
                cudaEventRecord(&before, c->stream);
                cudaStreamWaitEvent(stream, &before, 0);
            }
            part->calls[part->count++] = *c;
            c->comm = NULL;
        }
        fake_do(stream, "NCCL", run_group, part, offsetof(Group, calls) + (size_t)part->count * sizeof(Call));
        cudaEventRecord(&comm->last, stream);
        for (int k = 0; k < part->count; k++)
            if (part->calls[k].stream != stream)
                cudaStreamWaitEvent(part->calls[k].stream, &comm->last, 0);
    }
    group.count = 0;
    free(part);
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) { group_depth++; return ncclSuccess; }

ncclResult_t ncclGroupEnd(void)
{
    if (group_depth == 0)
        return (ncclResult_t)fake_refuse(ncclInvalidUsage, "ncclGroupEnd: there was no ncclGroupStart");
    return --group_depth ? ncclSuccess : enqueue();
}

// exercises/check.sh and exercises/gpu-3_ring/check.sh look for the names of sends and receives.
static void name_call(Call *c)
{
    int peer = c->doing.root, own = c->comm->rank, number = c->comm->number;
    bool sends = c->doing.kind == SEND;
    if (c->doing.kind < SEND) {
        snprintf(c->span, sizeof c->span, "%s", c->name);
        snprintf(c->wait, sizeof c->wait, "%s of %zu (NCCL %d)", c->name, c->doing.count, number);
    } else {
        snprintf(c->span, sizeof c->span, "%s %s %d", c->name, sends ? "to" : "from", peer);
        snprintf(c->wait, sizeof c->wait, "%s of %zu (NCCL %d: %d > %d)", sends ? "send" : "receive", c->doing.count,
                 number, sends ? own : peer, sends ? peer : own);
    }
}

#define REFUSE(...) (ncclResult_t)fake_refuse(ncclInvalidArgument, __VA_ARGS__)

static ncclResult_t call(Kind kind, const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                         int root, ncclComm_t comm, cudaStream_t stream)
{
    Call c = { kind_name(kind), comm, { kind, count, type, op, root }, .stage = WAITING };
    if (!comm || (unsigned)type > ncclBfloat16 || root < 0 || root >= comm->size)
        return REFUSE("%s: no such communicator, data type or rank", c.name);
    if (kind <= REDUCE_SCATTER && ((op != ncclSum && op != ncclAvg) || type < ncclInt64))
        return REFUSE("%s: without a GPU there are ncclSum and ncclAvg, of floating point and 64-bit numbers", c.name);

    size_t all = (size_t)comm->size, rank = (size_t)comm->rank, bytes = bytes_of(&c.doing);
    bool reads = kind != RECEIVE && (kind != BROADCAST || root == comm->rank);
    c.in = kind == REDUCE_SCATTER ? all * bytes : bytes;
    c.out = kind == ALL_GATHER ? all * bytes : bytes;
    const char *a = c.from = reads ? from : NULL;
    const char *b = c.to = kind != SEND ? to : NULL;
    if ((reads && !fake_memory(a, c.in)) || (kind != SEND && !fake_memory(b, c.out)))
        return REFUSE("%s: the buffer to %s is host memory, or has fewer than %zu values", c.name,
                      reads && !fake_memory(a, c.in) ? "read" : "write", count);
    if (fake_elsewhere(a) || fake_elsewhere(b))
        return REFUSE("%s: a buffer is on another GPU: call cudaSetDevice before cudaMalloc", c.name);
    const char *in_place = c.in > c.out ? a + rank * bytes : c.out > c.in ? a - rank * bytes : a;
    if (a && b && a < b + c.out && b < a + c.in && b != in_place)
        return REFUSE("%s: from and to overlap. In place, rank %zu's part begins %zu values after the beginning of the "
                      "array", c.name, rank, rank * count);
    if (c.in > PLACE)
        fake_die("a message of %zu bytes is too long", c.in);
    if (comm->size == 1 && a == b)
        return ncclSuccess;
    c.stream = fake_enter(stream, c.name);
    c.lane = &comm->lanes[kind < SEND ? 0 : kind == SEND ? 1 + root : 1 + comm->size + root];
    name_call(&c);
    if (group.count == MAX_CALLS)
        fake_die("a group of more than %d calls", MAX_CALLS);
    group.calls[group.count++] = c;
    return group_depth ? ncclSuccess : enqueue();
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call(ALL_REDUCE, from, to, count, type, op, 0, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return call(REDUCE_SCATTER, from, to, count, type, op, 0, comm, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return call(BROADCAST, from, to, count, type, ncclSum, root, comm, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return call(ALL_GATHER, from, to, count, type, ncclSum, 0, comm, stream);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return call(SEND, from, NULL, count, type, ncclSum, peer, comm, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return call(RECEIVE, NULL, to, count, type, ncclSum, peer, comm, stream);
}
