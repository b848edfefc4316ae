// nccl.c - NCCL, for fake.h, as far as exercises/gpu/nccl.h declares it.
//
// A communicator is a file in $TMPDIR that its ranks map. In the file are rooms, where ranks meet: a barrier, and a
// place for each rank's values. All ranks meet in the first room; in each of the others, a rank that sends to one that
// receives. A rank waits for a lost rank until the communicator is aborted or the process ends.
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
    Order order;
} Lane;

struct ncclComm {
    int rank, size, number;
    Lane lanes[1 + 2 * MAX_RANKS];      // of collectives; of sends to each rank; of receives from each rank
    size_t bytes;               // of the file
    int graphs;
    _Atomic bool aborted;
};

typedef struct Call {
    const char *name;
    struct ncclComm *comm;
    Doing doing;
    const void *from;           // NULL: this rank only receives, or only sends
    void *to;
    cudaStream_t stream;
    Lane *lane;
} Call;

// The calls of a group on one stream.
typedef struct Group {
    int count;
    Call calls[MAX_CALLS];
} Group;

static _Thread_local Group group;       // not enqueued yet
static _Thread_local int group_depth;

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : result == ncclInvalidUsage ? "invalid usage" : "invalid argument";
}

// --- meeting and parting -------------------------------------------------------------------------

static void meet(const struct ncclComm *comm, const Lane *lane)
{
    Room *room = lane->room;
    int round = room->round;
    if (atomic_fetch_add(&room->arrived, 1) + 1 < lane->size) {
        while (room->round == round && !comm->aborted)
            usleep(20);
        return;
    }
    room->arrived = 0;
    room->round = round + 1;
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

static const char *setting(const char *name)
{
    const char *text = getenv(name);
    return text ? text : "";
}

static void tell_where(const struct ncclComm *comm)
{
    char *host = comm->lanes[0].room->hosts[comm->rank];
    cudaGetDevice(&comm->lanes[0].room->devices[comm->rank]);
    if (!setting("NCCL_HOSTID")[0])
        gethostname(host, 64);
    else
        snprintf(host, sizeof comm->lanes[0].room->hosts[0], "%s", setting("NCCL_HOSTID"));
}

char fake_last_text[100];
int fake_nccl_version(void) { return fake_setting("FAKE_NCCL_VERSION", 23007); }

// NCCL refuses two ranks of one machine on one GPU. From 2.30 on, a variable allows them.
static ncclResult_t check_places(const struct ncclComm *comm)
{
    const Room *room = comm->lanes[0].room;
    bool allowed = fake_nccl_version() >= 23000 && fake_setting("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 1;
    for (int i = 0; i < comm->size; i++)
        for (int k = 0; k < i; k++) {
            bool together = strcmp(room->hosts[i], room->hosts[k]) == 0;
            if (!together && strcmp(setting("NCCL_NET"), "Socket") != 0)
                fake_die("ranks %d and %d look like two machines: NCCL would connect them by InfiniBand", k, i);
            if (room->devices[i] != room->devices[k])
                continue;
            if (together && !allowed) {
                snprintf(fake_last_text, sizeof fake_last_text, "rank %d has the same GPU as rank %d: GPU %d", i, k,
                         room->devices[i]);
                return ncclInvalidUsage;
            }
            if (strcmp(setting("NCCL_NVLS_ENABLE"), "0") != 0)
                fake_die("ranks %d and %d share a GPU, and NCCL may use NVLink SHARP", k, i);
        }
    return ncclSuccess;
}

ncclResult_t fake_comm_new(ncclComm_t *made, int size, const ncclUniqueId *id, int rank)
{
    char path[4096], text[64];
    uint64_t code;
    static int number;
    fake_not_in_capture("ncclCommInitRank");
    if (size > MAX_RANKS)
        fake_die("the mock has at most %d ranks", MAX_RANKS);
    memcpy(&code, id, sizeof code);
    snprintf(path, sizeof path, "%s/fake-nccl-%016llx", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp",
             (unsigned long long)code);
    snprintf(text, sizeof text, "ncclCommInitRank (NCCL %d)", ++number);
    while (size > 1 && rank == fake_setting("FAKE_INIT_HANGS", -1))
        pause();
    fake_begin(NULL, text);
    struct ncclComm *comm = calloc(1, sizeof *comm);
    *comm = (struct ncclComm){ .rank = rank, .size = size, .number = number };
    make_lanes(comm, path);
    tell_where(comm);
    meet(comm, &comm->lanes[0]);
    fake_end();
    if (rank == 0)
        unlink(path);
    ncclResult_t result = (ncclResult_t)fake_status("ncclCommInitRank");
    result = result ? result : check_places(comm);
    *made = result == ncclSuccess ? comm : NULL;
    return result;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->graphs > 0)
        fake_die("ncclCommDestroy: %d graphs hold its work: it would wait for them", comm->graphs);
    for (int i = 0; i < 1 + 2 * comm->size; i++) {
        fake_need_stream(comm->lanes[i].order.stream, "ncclCommDestroy");
        fake_order_wait(&comm->lanes[i].order);
    }
    char text[64];
    snprintf(text, sizeof text, "ncclCommDestroy (NCCL %d)", comm->number);
    fake_begin(NULL, text);
    meet(comm, &comm->lanes[0]);
    fake_end();
    munmap(comm->lanes[0].room, comm->bytes);
    free(comm);
    return ncclSuccess;
}

// Its calls may still be running, so nothing is freed.
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (comm->graphs > 0)
        fake_die("ncclCommAbort: %d graphs hold its work: it would wait for them", comm->graphs);
    comm->aborted = true;
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) { *error = ncclSuccess; return ncclSuccess; }
ncclResult_t ncclCommCount(ncclComm_t comm, int *ranks) { *ranks = comm->size; return ncclSuccess; }
ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) { *rank = comm->rank; return ncclSuccess; }

// --- the work of a call, in a stream's thread ----------------------------------------------------

// By ncclDataType_t. Types before ncclInt64 are not added up, so only their width counts.
static const NumberType types[] = { NUMBER_U8, NUMBER_U8, NUMBER_F32, NUMBER_F32, NUMBER_I64, NUMBER_I64, NUMBER_F16,
                                    NUMBER_F32, NUMBER_F64, NUMBER_BF16 };

static size_t bytes_of(const Call *c) { return c->doing.count * number_bytes(types[c->doing.type]); }
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

static void check_alike(const Call *c)
{
    const Lane *lane = c->lane;
    const Doing *first = &lane->room->doing[0];
    for (int rank = 1; rank < lane->size; rank++) {
        const Doing *d = &lane->room->doing[rank];
        if (first->kind == SEND && (first->count != d->count || first->type != d->type))
            fake_die("rank %d sends %zu values to rank %d, which receives %zu", d->root, first->count, first->root,
                     d->count);
        bool alike = first->kind == d->kind && first->count == d->count && first->type == d->type &&
                     first->op == d->op && first->root == d->root;
        if (first->kind != SEND && !alike)
            fake_die("the ranks' collectives differ: rank 0 is in %s of %zu, rank %d in %s of %zu",
                     kind_name(first->kind), first->count, rank, kind_name(d->kind), d->count);
    }
}

static void take(const Call *c, size_t bytes)
{
    const Lane *lane = c->lane;
    char *to = fake_at(c->to);
    switch (c->doing.kind) {
    case ALL_REDUCE: reduce(c, 0, to); break;
    case REDUCE_SCATTER: reduce(c, (size_t)lane->rank * c->doing.count, to); break;
    case BROADCAST: memcpy(to, place(lane, c->doing.root), bytes); break;
    case RECEIVE: memcpy(to, place(lane, 0), bytes); break;
    case ALL_GATHER:
        for (int rank = 0; rank < lane->size; rank++)
            memcpy(to + (size_t)rank * bytes, place(lane, rank), bytes);
        break;
    case SEND: break;
    }
}

// The names of sends and receives are for exercises/check.sh, and for exercises/gpu-3_ring/check.sh.
static void run(const Call *c)
{
    struct ncclComm *comm = c->comm;
    Lane *lane = c->lane;
    Kind kind = c->doing.kind;
    bool sends = kind == SEND;
    int peer = c->doing.root, from = sends ? comm->rank : peer, to = sends ? peer : comm->rank;
    size_t bytes = bytes_of(c);
    char name[40], what[80];
    snprintf(name, sizeof name, kind < SEND ? "%s" : sends ? "%s to %d" : "%s from %d", c->name, peer);
    snprintf(what, sizeof what, kind < SEND ? "%s of %zu (NCCL %d)" : "%s of %zu (NCCL %d: %d > %d)",
             kind < SEND ? c->name : sends ? "send" : "receive", c->doing.count, comm->number, from, to);
    fake_begin(name, what);
    lane->room->doing[lane->rank] = c->doing;
    if (c->from)
        memcpy(place(lane, lane->rank), fake_at(c->from), kind == REDUCE_SCATTER ? (size_t)lane->size * bytes : bytes);
    meet(comm, lane);
    if (!comm->aborted) {
        check_alike(c);
        take(c, bytes);
        meet(comm, lane);
    }
    fake_end();
}

// Calls of a group that use different lanes run at the same time: each lane has a thread.
typedef struct Share {
    const Group *group;
    const Call *first;
} Share;

static void *run_lane(void *arg)
{
    const Share *share = arg;
    for (const Call *c = share->first; c < share->group->calls + share->group->count; c++)
        if (c->lane == share->first->lane)
            run(c);
    return NULL;
}

static void *run_beside(void *arg)
{
    fake_thread("NCCL");
    return run_lane(arg);
}

static void run_group(void *arg)
{
    const Group *g = arg;
    Share shares[MAX_CALLS];
    pthread_t threads[MAX_CALLS];
    int count = 0;
    for (const Call *c = g->calls + 1; c < g->calls + g->count; c++) {
        const Call *first = g->calls;
        while (first->lane != c->lane)
            first++;
        if (first != c)
            continue;
        shares[count] = (Share){ g, c };
        if (pthread_create(&threads[count], NULL, run_beside, &shares[count]) != 0)
            fake_die("cannot create a thread");
        count++;
    }
    run_lane(&(Share){ g, g->calls });
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

// --- calls ---------------------------------------------------------------------------------------

// Enqueues the group's calls: those of one stream as one piece of work.
static ncclResult_t enqueue(void)
{
    Group *part = malloc(sizeof *part);
    Range ranges[2 * MAX_CALLS];
    for (int i = 0; i < group.count; i++) {
        cudaStream_t stream = group.calls[i].stream;
        int count = 0;
        if (!stream)
            continue;
        part->count = 0;
        for (Call *c = &group.calls[i]; c < group.calls + group.count; c++) {
            if (c->stream != stream)
                continue;
            size_t bytes = bytes_of(c), all = bytes * (size_t)c->comm->size;
            ranges[count++] = (Range){ c->from, c->doing.kind == REDUCE_SCATTER ? all : bytes };
            ranges[count++] = (Range){ c->to, c->doing.kind == ALL_GATHER ? all : bytes };
            fake_hold(stream, &c->comm->graphs);
            fake_order_before(stream, &c->lane->order);
            part->calls[part->count++] = *c;
            c->stream = NULL;
        }
        fake_do(stream, "NCCL", run_group, part, offsetof(Group, calls) + (size_t)part->count * sizeof(Call), ranges,
                count);
        for (int k = 0; k < part->count; k++)
            fake_order_after(stream, &part->calls[k].lane->order);
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

#define REFUSE(...) (ncclResult_t)fake_refuse(ncclInvalidArgument, __VA_ARGS__)

static ncclResult_t call(Kind kind, const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                         int root, ncclComm_t comm, cudaStream_t stream)
{
    Call c = { kind_name(kind), comm, { kind, count, type, op, root } };
    if (!comm || (unsigned)type > ncclBfloat16 || root < 0 || root >= comm->size)
        return REFUSE("%s: no such communicator, data type or rank", c.name);
    if (kind <= REDUCE_SCATTER && ((op != ncclSum && op != ncclAvg) || type < ncclInt64))
        return REFUSE("%s: without a GPU there are ncclSum and ncclAvg, of floating point and 64-bit numbers", c.name);

    size_t size = (size_t)comm->size, rank = (size_t)comm->rank, bytes = bytes_of(&c);
    size_t in = kind == REDUCE_SCATTER ? size * bytes : bytes, out = kind == ALL_GATHER ? size * bytes : bytes;
    bool reads = kind != RECEIVE && (kind != BROADCAST || root == comm->rank), writes = kind != SEND;
    const char *a = c.from = reads ? from : NULL;
    const char *b = c.to = writes ? to : NULL;
    if ((reads && !fake_memory(a, in)) || (writes && !fake_memory(b, out)))
        return REFUSE("%s: the buffer to %s is host memory, or has fewer than %zu values", c.name,
                      reads && !fake_memory(a, in) ? "read" : "write", count);
    const char *in_place = in > out ? a + rank * bytes : out > in ? a - rank * bytes : a;
    if (a && b && a < b + out && b < a + in && b != in_place)
        return REFUSE("%s: from and to overlap. In place, rank %zu's part begins %zu values after the beginning of the "
                      "array", c.name, rank, rank * count);
    if (in > PLACE || out > (size_t)PLACE * size)
        fake_die("a message of %zu bytes is too long", in);
    if (comm->size == 1 && a == b)
        return ncclSuccess;
    c.stream = fake_enter(stream, c.name);
    c.lane = &comm->lanes[kind < SEND ? 0 : kind == SEND ? 1 + root : 1 + comm->size + root];
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
