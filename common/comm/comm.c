// comm.c - the part of a communicator that needs no library: options, arguments, comparing calls.
#include "comm/backend.h"
#include "agree.h"
#include "args.h"
#include "alive.h"
#include "check.h"
#include "trace.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

int comm_rank(const Comm *comm) { return comm->rank; }
int comm_size(const Comm *comm) { return comm->size; }
uint64_t comm_bytes(const Comm *comm) { return comm->bytes; }

// The ranks of a machine may each see all its GPUs, or only their own, as number 0. So we compare
// UUIDs, not numbers.
Device *comm_open_device(const World *world, int threads)
{
    int gpus = device_count(), index = gpus > 0 ? world->local_rank % gpus : world->local_rank;
    if (gpus > 0 && !comm_shares_devices)
        agree_unique(world, "GPU", device_uuid(index),
                     "each rank needs a GPU of its own: start fewer ranks, or use the cuda-gloo "
                     "backend, whose ranks may share one");
    return device_open(index, device_share(world->sharers, threads, world->local_rank == 0));
}

// --- checked: all ranks compare what they are about to do ----------------------------------------

// Gathers the text of every rank's call in `all`, in stream order. The host waits.
static void exchange_calls(Comm *comm, Stream *stream, const char *mine, void *all)
{
    size_t bytes = (size_t)comm->size * CALL_TEXT;
    char *gathered = device_alloc(comm->device, bytes + CALL_TEXT), *given = gathered + bytes;
    copy_to_device(stream, given, mine, CALL_TEXT);
    link_enqueue(comm->link, stream, &(Call){
        .kind = CALL_ALL_GATHER, .type = COMM_U8, .other = -1, .count = CALL_TEXT,
        .bytes = CALL_TEXT, .from = given, .from_bytes = CALL_TEXT, .to = gathered,
        .to_bytes = bytes });
    copy_to_host(stream, all, gathered, bytes);
    stream_sync(stream);
    device_free(comm->device, gathered);
}

static void compare_calls(Comm *comm, Stream *stream, const Call *call)
{
    char mine[CALL_TEXT] = "", all[comm->size][CALL_TEXT];
    exchange_calls(comm, stream, comm_describe(call, mine), all);
    for (int i = 0; i < comm->size; i++) {
        if (strcmp(all[i], mine) == 0)
            continue;
        if (comm->rank > 0)
            comm_lost(comm, call, "the ranks make different calls, see rank 0");
        FAIL("all ranks must make the same calls in the same order",
             "communicator %s: rank %d calls %s, rank %d calls %s", comm->name, comm->rank, mine, i,
             all[i]);
    }
}

// --- a simulated slow network, so that overlap shows on any machine ------------------------------

static void sleep_for(void *seconds)
{
    double s = *(double *)seconds;
    trace_begin("slow network");
    nanosleep(&(struct timespec){ (time_t)s, (long)((s - (double)(time_t)s) * 1e9) }, NULL);
    trace_end();
}

// A message has a latency of 1 ms; a ring sends 2 (size - 1) / size times the bytes it sums.
static void slow_down(const Comm *comm, Stream *stream, const Call *call)
{
    double times = call->kind == CALL_ALL_REDUCE ? 2 - 2.0 / comm->size : 1;
    double seconds = 1e-3 + times * (double)call->bytes / (1e6 * comm->config.slow_network);
    stream_call(stream, sleep_for, &seconds, sizeof seconds);
}

// --- opening and closing -------------------------------------------------------------------------

void comm_options(Args *args, CommConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "check-collectives", 0, ARG_FLAG, &config->checked, NULL,
          "debugging: before each collective, fail if the ranks' calls differ" },
        { "slow-network", 0, ARG_DOUBLE, &config->slow_network, "MB/S",
          "slow each rank's network down to this, with 1 ms of latency (0: off)",
          .min = 0, .max = 1e6 }));
}

Comm *comm_new(const World *world, Device *device, const char *name, const CommConfig *config)
{
    Comm *comm = xcalloc(1, sizeof *comm);
    *comm = (Comm){ .rank = world->rank, .size = world->size, .device = device,
                    .config = config ? *config : (CommConfig){ 0 } };
    snprintf(comm->name, sizeof comm->name, "%s", name);
    trace_begin("meet the other ranks");
    alive_wait_begin();
    comm->link = link_new(comm, world);
    alive_wait_end();
    trace_end();
    alive_joined();
    if (comm->config.checked || comm->config.slow_network > 0 || comm_shares_devices)
        replay_forbid(device);
    return comm;
}

// Waits for the other ranks. At the end, without a watchdog, it waits no longer than a rank may be
// silent. Returns NULL, or the library's error if a rank is gone.
static const char *meet(Comm *comm, const Call *call)
{
    double patience = atomic_load(&alive_here()->patience);
    alive_wait_begin();
    if (comm->config.checked)
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

// gives, gets: this rank's input and output have gives * count and gets * count values.
static void enqueue(Comm *comm, Stream *stream, Call *call, int gives, int gets)
{
    bool pair = call->kind == CALL_SEND || call->kind == CALL_RECEIVE;
    bool other = call->other >= 0 && call->other < comm->size && !(pair && call->other == comm->rank);
    CHECK(!call_peers[call->kind] || other, "", "%s%s%d: this is rank %d of %d",
          call_names[call->kind], call_peers[call->kind], call->other, comm->rank, comm->size);
    call->bytes = call->count * comm_width(call->type);
    call->from_bytes = (size_t)gives * call->bytes;
    call->to_bytes = (size_t)gets * call->bytes;
    call->number = pair ? ++comm->pair_calls : ++comm->calls;
    comm->bytes += call->bytes;
    alive_wait_begin(); // a stream without its own thread works in this one
    if (comm->config.checked && !pair)
        compare_calls(comm, stream, call);
    if (call->count > 0)
        link_enqueue(comm->link, stream, call);
    if (comm->config.slow_network > 0 && comm->size > 1)
        slow_down(comm, stream, call);
    alive_wait_end();
}

void comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    enqueue(comm, stream, &(Call){ .kind = CALL_ALL_REDUCE, .type = type, .other = -1,
                                   .count = count, .from = values, .to = values }, 1, 1);
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
