// nccl.c - NCCL, for fake.h: a communicator is a file in $TMPDIR that its ranks map, with a barrier and a place for
// each rank's values. A rank waits for a lost rank until the communicator is aborted or the process ends.
#include "fake.h"
#include "numbers.h"

#include <fcntl.h>
#include <nccl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

enum { MAX_RANKS = 64, HEADER = 8192, PLACE = 64 << 20 };

typedef enum Kind { REDUCE, BROADCAST, GATHER } Kind;

typedef struct Doing {
    Kind kind;
    size_t count;
    int type, op, root;
} Doing;

typedef struct Shared {
    _Atomic int arrived, round;
    Doing doing[MAX_RANKS];
    char hosts[MAX_RANKS][80];
    int devices[MAX_RANKS];
} Shared;
_Static_assert(sizeof(Shared) <= HEADER, "");

struct ncclComm {
    int rank, size;
    Shared *shared;
    char *places;               // (size, PLACE)
    Order order;
    int graphs;
    _Atomic bool aborted;
};

typedef struct Job {
    struct ncclComm *comm;
    Doing doing;
    const void *from;
    void *to;
} Job;

static void meet(struct ncclComm *comm)
{
    Shared *s = comm->shared;
    int round = s->round;
    if (atomic_fetch_add(&s->arrived, 1) + 1 < comm->size) {
        while (s->round == round && !comm->aborted)
            usleep(20);
        return;
    }
    s->arrived = 0;
    s->round = round + 1;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return "a fake error";
}

static char last_error[100];

const char *ncclGetLastError(ncclComm_t comm)
{
    return last_error;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    *result = ncclSuccess;
    return ncclSuccess;
}

// --- meeting and parting -------------------------------------------------------------------------

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 0, sizeof *id);
    return getrandom(id, 8, 0) == 8 ? ncclSuccess : ncclSystemError;
}

// Rank 0 makes the file; the others wait until it has its full size.
static Shared *map_file(const char *path, bool make, size_t bytes)
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

ncclResult_t ncclGetVersion(int *version)
{
    *version = fake_setting("FAKE_NCCL_VERSION", NCCL_VERSION_CODE);
    return ncclSuccess;
}

static const char *setting(const char *name)
{
    const char *text = getenv(name);
    return text ? text : "";
}

static void tell_where(struct ncclComm *comm)
{
    char *host = comm->shared->hosts[comm->rank];
    cudaGetDevice(&comm->shared->devices[comm->rank]);
    if (!setting("NCCL_HOSTID")[0])
        gethostname(host, 64);
    else
        snprintf(host, sizeof comm->shared->hosts[0], "%s", setting("NCCL_HOSTID"));
}

// NCCL refuses two ranks of one machine on one GPU. From 2.30 on, a variable allows them.
static ncclResult_t check_places(const struct ncclComm *comm)
{
    const Shared *s = comm->shared;
    bool allowed = fake_setting("FAKE_NCCL_VERSION", NCCL_VERSION_CODE) >= NCCL_VERSION(2, 30, 0) &&
                   fake_setting("NCCL_MULTI_RANK_GPU_ENABLE", 0) == 1;
    for (int i = 0; i < comm->size; i++)
        for (int k = 0; k < i; k++) {
            bool together = strcmp(s->hosts[i], s->hosts[k]) == 0;
            if (!together && strcmp(setting("NCCL_NET"), "Socket") != 0)
                fake_die("ranks %d and %d look like two machines: NCCL would connect them by InfiniBand", k, i);
            if (s->devices[i] != s->devices[k])
                continue;
            if (strcmp(setting("NCCL_NVLS_ENABLE"), "0") != 0)
                fake_die("ranks %d and %d share a GPU, and NCCL may use NVLink SHARP", k, i);
            if (together && !allowed) {
                snprintf(last_error, sizeof last_error, "ranks %d and %d have the same GPU", k, i);
                return ncclInvalidUsage;
            }
        }
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *made, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    char path[4096];
    uint64_t number;
    const char *folder = getenv("TMPDIR");
    static int communicators;
    const char *order = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    fake_not_in_capture("ncclCommInitRankConfig");
    if (communicators++ > 0 && (!order || strcmp(order, "1") != 0))
        fake_die("two communicators on a device: NCCL may launch their kernels in different orders on the ranks");
    if (config->size != sizeof *config || size > MAX_RANKS)
        fake_die("ncclCommInitRankConfig: %d ranks, or an invalid configuration", size);
    memcpy(&number, &id, sizeof number);
    snprintf(path, sizeof path, "%s/fake-nccl-%016llx", folder ? folder : "/tmp",
             (unsigned long long)number);
    if (communicators == 1)
        fake_load();
    while (size > 1 && rank == fake_setting("FAKE_INIT_HANGS", -1))
        pause();
    struct ncclComm *comm = calloc(1, sizeof *comm);
    *comm = (struct ncclComm){ .rank = rank, .size = size };
    comm->shared = map_file(path, rank == 0, HEADER + (size_t)size * PLACE);
    comm->places = (char *)comm->shared + HEADER;
    tell_where(comm);
    meet(comm);
    if (rank == 0)
        unlink(path);
    ncclResult_t result = fake_fails("nccl") ? ncclUnhandledCudaError : check_places(comm);
    *made = result == ncclSuccess ? comm : NULL;
    return result;
}

// The memory is never freed, since other ranks may still be in the barrier.
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->graphs > 0)
        fake_die("ncclCommDestroy: %d graphs hold its work: it would wait for them", comm->graphs);
    fake_need_stream(comm->order.stream, "ncclCommDestroy");
    meet(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (comm->graphs > 0)
        fake_die("ncclCommAbort: %d graphs hold its work: it would wait for them", comm->graphs);
    comm->aborted = true;
    return ncclSuccess;
}

// --- work ----------------------------------------------------------------------------------------

static void *place(const struct ncclComm *comm, int rank)
{
    return comm->places + (size_t)rank * PLACE;
}

static cudaDataType_t type_of(int type)
{
    switch (type) {
    case ncclUint8: return CUDA_R_8U;
    case ncclFloat16: return CUDA_R_16F;
    case ncclBfloat16: return CUDA_R_16BF;
    case ncclFloat32: return CUDA_R_32F;
    case ncclInt64: return CUDA_R_64I;
    case ncclFloat64: return CUDA_R_64F;
    default: fake_die("NCCL's type %d", type);
    }
}

static void reduce(const Job *job)
{
    const Doing *d = &job->doing;
    cudaDataType_t type = type_of(d->type);
    for (size_t i = 0; i < d->count; i++) {
        double all = number_get(place(job->comm, 0), type, i);
        for (int rank = 1; rank < job->comm->size; rank++) {
            double next = number_get(place(job->comm, rank), type, i);
            all = d->op == ncclSum ? all + next : next > all ? next : all;
        }
        number_set(job->to, type, i, all);
    }
}

static void check_alike(const Job *job)
{
    const Doing *mine = &job->doing;
    for (int rank = 0; rank < job->comm->size; rank++) {
        const Doing *d = &job->comm->shared->doing[rank];
        if (d->kind != mine->kind || d->count != mine->count || d->type != mine->type ||
            d->op != mine->op || d->root != mine->root)
            fake_die("the ranks' collectives differ: kind %d of %zu, kind %d of %zu",
                     (int)mine->kind, mine->count, (int)d->kind, d->count);
    }
}

static void exchange(void *arg)
{
    const Job *job = arg;
    struct ncclComm *comm = job->comm;
    Kind kind = job->doing.kind;
    size_t bytes = job->doing.count * number_bytes(type_of(job->doing.type));
    bool root = comm->rank == job->doing.root;
    if (bytes > PLACE)
        fake_die("a message of %zu bytes is too long", bytes);
    comm->shared->doing[comm->rank] = job->doing;
    if (kind != BROADCAST || root)
        memcpy(place(comm, comm->rank), job->from, bytes);
    meet(comm);
    if (comm->aborted)
        return;
    check_alike(job);
    if (kind == REDUCE)
        reduce(job);
    else if (kind == BROADCAST)
        memcpy(job->to, place(comm, job->doing.root), bytes);
    else
        for (int rank = 0; rank < comm->size; rank++)
            memcpy((char *)job->to + (size_t)rank * bytes, place(comm, rank), bytes);
    meet(comm);
}

static ncclResult_t enqueue(Job job, cudaStream_t stream)
{
    struct ncclComm *comm = job.comm;
    const Doing *d = &job.doing;
    bool root = comm->rank == d->root;
    size_t bytes = d->count * number_bytes(type_of(d->type));
    size_t parts = d->kind == GATHER ? (size_t)comm->size : 1;
    if (comm->size == 1 && job.from == job.to)
        return ncclSuccess;
    fake_hold(stream, &comm->graphs);
    fake_order_before(stream, &comm->order);
    fake_do(stream, "NCCL", exchange, &job, sizeof job,
            RANGES({ d->kind != BROADCAST || root ? job.from : NULL, bytes },
                   { job.to, parts * bytes }));
    fake_order_after(stream, &comm->order);
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return enqueue((Job){ comm, { REDUCE, count, type, op, -1 }, from, to }, stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    return enqueue((Job){ comm, { BROADCAST, count, type, 0, root }, from, to }, stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return enqueue((Job){ comm, { GATHER, count, type, 0, -1 }, from, to }, stream);
}

// The steps neither send nor receive.
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    fake_die("ncclSend: the mock has none");
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    fake_die("ncclRecv: the mock has none");
}
