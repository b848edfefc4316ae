// comm.c - the half of a communicator that knows no library: arguments, names, comparing calls.
#include "comm/backend.h"
#include "agree.h"
#include "alive.h"
#include "check.h"
#include "trace.h"

#include <stdlib.h>
#include <string.h>

int comm_rank(const Comm *comm) { return comm->rank; }
int comm_size(const Comm *comm) { return comm->size; }
uint64_t comm_bytes(const Comm *comm) { return comm->bytes; }

// All ranks of a machine may see all its GPUs, or each only the one that was given to it, which is
// number 0 to it then. So it is not their number that tells whether there are enough.
Device *comm_open_device(const World *world, int threads)
{
    int gpus = device_count(), index = gpus > 0 ? world->local_rank % gpus : world->local_rank;
    if (gpus > 0 && !comm_shares_devices)
        agree_unique(world, "GPU", device_uuid(index),
                     "each rank needs a GPU of its own: fewer ranks on a machine, or the cuda-gloo "
                     "backend, whose ranks may share one");
    return device_open(index, device_share(world->sharers, threads, world->local_rank == 0));
}

// --- checked: all ranks compare what they are about to do ----------------------------------------

// A call, as the ranks tell it to each other.
typedef struct Row {
    uint64_t number, count;
    int32_t kind, type, op, other;
} Row;

static Row row_of(const Call *call)
{
    return (Row){ call->number, call->count, (int32_t)call->kind, (int32_t)call->type,
                  (int32_t)call->op, call->other };
}

static void describe_row(const Row *row, char text[CALL_TEXT])
{
    comm_describe(&(Call){ .kind = (CallKind)row->kind, .type = (CommType)row->type,
                           .op = (CommOp)row->op, .other = row->other, .count = row->count,
                           .number = row->number }, text);
}

// Tells everybody's call to everybody: in the order of the stream, and the host waits.
static void exchange_rows(Comm *comm, Stream *stream, const Row *mine, Row *all)
{
    size_t bytes = sizeof(Row) * (size_t)comm->size;
    copy_to_device(stream, comm->mine, mine, sizeof *mine);
    link_enqueue(comm->link, stream, &(Call){
        .kind = CALL_ALL_GATHER, .type = COMM_U8, .other = -1, .count = sizeof *mine,
        .from = comm->mine, .from_bytes = sizeof *mine, .to = comm->all, .to_bytes = bytes });
    copy_to_host(stream, all, comm->all, bytes);
    stream_sync(stream);
}

static void compare_calls(Comm *comm, Stream *stream, const Call *call)
{
    char ours[CALL_TEXT], theirs[CALL_TEXT];
    Row mine = row_of(call), *all = xmalloc(sizeof *all * (size_t)comm->size);
    exchange_rows(comm, stream, &mine, all);
    for (int i = 0; i < comm->size; i++) {
        if (memcmp(&all[i], &mine, sizeof mine) == 0)
            continue;
        describe_row(&mine, ours);
        describe_row(&all[i], theirs);
        if (comm->rank > 0)
            comm_lost(comm, call, "the ranks make different calls, as rank 0 says");
        FAIL("all ranks must make the same calls in the same order",
             "communicator %s: rank %d calls %s, rank %d calls %s", comm->name, comm->rank, ours, i,
             theirs);
    }
    free(all);
}

// --- from the first to the last ------------------------------------------------------------------

static void check_world(const World *world, const char *name)
{
    CHECK(world->size >= 1 && world->rank >= 0 && world->rank < world->size, "",
          "comm_new: rank %d of %d", world->rank, world->size);
    CHECK(name[0] && strlen(name) < sizeof((Comm *)0)->name, "",
          "comm_new: a name has 1 to 15 letters, not '%s'", name);
}

Comm *comm_new(const World *world, Device *device, const char *name, bool checked)
{
    check_world(world, name);
    Comm *comm = xcalloc(1, sizeof *comm);
    *comm = (Comm){ .rank = world->rank, .size = world->size, .device = device,
                    .checked = checked };
    snprintf(comm->name, sizeof comm->name, "%s", name);
    trace_begin("meet the other ranks");
    alive_wait_begin();
    comm->link = link_new(comm, world);
    alive_wait_end();
    trace_end();
    alive_joined();
    if (checked || comm_shares_devices)     // then the host has a part in every call
        replay_forbid(device);
    if (checked) {
        comm->mine = device_alloc(device, sizeof(Row));
        comm->all = device_alloc(device, sizeof(Row) * (size_t)world->size);
    }
    return comm;
}

// Waits for the others; at the end, when nobody watches any more, not longer than a rank may be
// silent. Returns NULL, or what the library says when one of them is gone.
static const char *meet(Comm *comm, const Call *call)
{
    double patience = atomic_load(&alive_here()->patience);
    alive_wait_begin();
    if (comm->checked)
        compare_calls(comm, device_stream(comm->device), call);
    comm_call_begin(comm, call);
    bool last = call->kind == CALL_FREE && patience > 0;
    const char *error = link_barrier(comm->link, last ? patience + 10 : 0);
    comm_call_end();
    alive_wait_end();
    return error;
}

void comm_free(Comm *comm)
{
    if (!comm)
        return;
    meet(comm, &(Call){ .kind = CALL_FREE, .other = -1, .number = ++comm->calls });
    link_free(comm->link);
    device_free(comm->device, comm->all);
    device_free(comm->device, comm->mine);
    free(comm);
}

void comm_barrier(Comm *comm)
{
    Call call = { .kind = CALL_BARRIER, .other = -1, .number = ++comm->calls };
    const char *error = meet(comm, &call);
    if (error)
        comm_lost(comm, &call, error);
}

// --- the calls -----------------------------------------------------------------------------------

static void check_other(const Comm *comm, const Call *call)
{
    CHECK(call->other >= 0 && call->other < comm->size, "", "%s%s%d: there are %d ranks",
          call_names[call->kind], call_peers[call->kind], call->other, comm->size);
}

// gives, gets: how many times count values this rank gives and gets.
static void enqueue(Comm *comm, Stream *stream, Call *call, int gives, int gets)
{
    size_t bytes = call->count * comm_width(call->type);
    bool pair = call->kind == CALL_SEND || call->kind == CALL_RECEIVE;
    CHECK(call->count == 0 || ((gives == 0 || call->from) && (gets == 0 || call->to)), "",
          "%s: no memory was given", call_names[call->kind]);
    if (call_peers[call->kind])
        check_other(comm, call);
    CHECK(!pair || call->other != comm->rank, "", "%s%s%d: that is this one itself",
          call_names[call->kind], call_peers[call->kind], call->other);
    comm->bytes += bytes;
    call->number = pair ? ++comm->pair_calls : ++comm->calls;
    call->from_bytes = (size_t)gives * bytes;
    call->to_bytes = (size_t)gets * bytes;
    alive_wait_begin(); // a stream without a thread does its work here
    if (comm->checked && !pair)
        compare_calls(comm, stream, call);
    if (call->count > 0)
        link_enqueue(comm->link, stream, call);
    alive_wait_end();
}

void comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                     CommOp op)
{
    enqueue(comm, stream, &(Call){ .kind = CALL_ALL_REDUCE, .type = type, .op = op, .other = -1,
                                   .count = count, .from = values, .to = values }, 1, 1);
}

void comm_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type, CommOp op,
                 int root)
{
    enqueue(comm, stream, &(Call){ .kind = CALL_REDUCE, .type = type, .op = op, .other = root,
                                   .count = count, .from = values, .to = values },
            1, comm->rank == root);
}

void comm_broadcast(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                    int root)
{
    enqueue(comm, stream, &(Call){ .kind = CALL_BROADCAST, .type = type, .other = root,
                                   .count = count, .from = values, .to = values },
            comm->rank == root, comm->rank != root);
}

void comm_all_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                     CommType type)
{
    enqueue(comm, stream, &(Call){ .kind = CALL_ALL_GATHER, .type = type, .other = -1,
                                   .count = count, .from = mine, .to = all }, 1, comm->size);
}

void comm_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                 CommType type, int root)
{
    enqueue(comm, stream, &(Call){ .kind = CALL_GATHER, .type = type, .other = root,
                                   .count = count, .from = mine, .to = all },
            1, comm->rank == root ? comm->size : 0);
}

void comm_scatter(Comm *comm, Stream *stream, const void *all, void *mine, size_t count,
                  CommType type, int root)
{
    enqueue(comm, stream, &(Call){ .kind = CALL_SCATTER, .type = type, .other = root,
                                   .count = count, .from = all, .to = mine },
            comm->rank == root ? comm->size : 0, 1);
}

void comm_send(Comm *comm, Stream *stream, const void *values, size_t count, CommType type, int to)
{
    enqueue(comm, stream, &(Call){ .kind = CALL_SEND, .type = type, .other = to, .count = count,
                                   .from = values }, 1, 0);
}

void comm_receive(Comm *comm, Stream *stream, void *values, size_t count, CommType type, int from)
{
    enqueue(comm, stream, &(Call){ .kind = CALL_RECEIVE, .type = type, .other = from,
                                   .count = count, .to = values }, 0, 1);
}
