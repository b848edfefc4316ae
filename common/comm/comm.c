// comm.c - opening devices and communicators, barriers, and calls on host memory.
#include "comm/backend.h"
#include "agree.h"
#include "check.h"
#include "machine.h"
#include "progress.h"
#include "trace.h"

#include <stdlib.h>
#include <string.h>

int comm_rank(const Comm *comm) { return comm->rank; }
int comm_size(const Comm *comm) { return comm->size; }
uint64_t comm_bytes(const Comm *comm) { return comm->bytes; }

// Access to a GPU is fastest from the cores next to it.
static void go_near(const World *world, int gpu)
{
    char line[400];
    machine_stay_near("/sys", device_bus(gpu));
    snprintf(line, sizeof line, "[init] == global rank: %d: GPU %d, cores %s\n", world->rank, gpu,
             machine_cores());
    agree_print(world, line);
}

// Compares UUIDs, because a machine's ranks may each see only their own GPU, as number 0.
static void share_gpus(World *world, int gpu)
{
    int different;
    world->gpu_place = agree_place(world, "GPU", device_uuid(gpu), &different);
    world->gpus_shared = different < world->size;
    if (world->gpus_shared && world->rank == 0)
        printf("[init] == %d ranks share %d GPU%s and take turns: for learning, not for speed\n",
               world->size, different, different == 1 ? "" : "s");
}

Device *comm_open_device(World *world, int threads)
{
    int gpus = device_count(), index = gpus > 0 ? world->local_rank % gpus : world->local_rank;
    if (gpus > 0) {
        share_gpus(world, index);
        go_near(world, index);
    }
    Device *device = device_open(index, device_share(world->sharers, threads,
                                                     world->local_rank == 0));
    if (world->gpus_shared)
        device_takes_turns(device);
    return device;
}

void comm_broadcast_host(Comm *comm, void *bytes, size_t count)
{
    Stream *stream = device_stream(comm->device);
    void *on_device = device_alloc(comm->device, count);
    copy_to_device(stream, on_device, bytes, count);
    comm_broadcast(comm, stream, on_device, count, COMM_U8, 0);
    copy_to_host(stream, bytes, on_device, count);
    stream_sync(stream);
    device_free(comm->device, on_device);
}

// Returns every rank's bytes, in rank order; the caller frees them.
static void *gather_host(Comm *comm, Stream *stream, const void *mine, size_t bytes)
{
    size_t all_bytes = (size_t)comm->size * bytes;
    char *all = xmalloc(all_bytes), *gathered = device_alloc(comm->device, all_bytes + bytes);
    copy_to_device(stream, gathered + all_bytes, mine, bytes);
    comm_all_gather(comm, stream, gathered + all_bytes, gathered, bytes, COMM_U8);
    copy_to_host(stream, all, gathered, all_bytes);
    stream_sync(stream);
    device_free(comm->device, gathered);
    return all;
}

// --check-collectives: every rank compares all ranks' calls with its own; rank 0 reports.
static void compare_calls(Comm *comm, Stream *stream, const Call *call)
{
    char mine[CALL_TEXT] = "";
    call_describe(call, mine);
    comm->checking = true;
    char(*all)[CALL_TEXT] = gather_host(comm, stream, mine, sizeof mine);
    comm->checking = false;
    for (int i = 0; i < comm->size; i++) {
        if (strcmp(all[i], mine) == 0)
            continue;
        if (comm->rank > 0)
            call_lost(comm, call, "the ranks make different calls; rank 0 prints them");
        FAIL("all ranks must make the same calls in the same order",
             "communicator %s: rank %d calls %s, but rank %d calls %s", comm->name, comm->rank,
             mine, i, all[i]);
    }
    free(all);
}

// A rank has its own link (--slow-network), or its part of one that all share (--shared-link). With
// both, the slower one counts.
static double network_rate(const CommConfig *config, int size)
{
    double own = config->slow_network, share = config->shared_link / size;
    return own > 0 && (own < share || share == 0) ? own : share;
}

Comm *comm_new(const World *world, Device *device, const char *name, const CommConfig *config)
{
    Comm *comm = xcalloc(1, sizeof *comm);
    *comm = (Comm){ .rank = world->rank, .size = world->size, .device = device,
                    .config = config ? *config : (CommConfig){ 0 } };
    comm->network.rate = network_rate(&comm->config, comm->size);
    comm->check = comm->config.checked ? compare_calls : NULL;
    snprintf(comm->name, sizeof comm->name, "%s", name);
    trace_begin("meet the other ranks");
    progress_call("connect (%s)", name);
    backend_connect(comm, world);
    trace_end();
    if (comm->config.checked || comm->network.rate > 0 || comm_shares_devices)
        replay_forbid(device);
    return comm;
}

static const char *wait_for_ranks(Comm *comm, Call *call)
{
    call_begin(comm, device_stream(comm->device), call);
    call_work_begin(comm, call);
    const char *error = backend_barrier(comm);
    call_work_end(comm, call);
    return error;
}

void comm_barrier(Comm *comm)
{
    Call call = { .kind = CALL_BARRIER };
    const char *error = wait_for_ranks(comm, &call);
    if (error)
        call_lost(comm, &call, error);
}

void comm_free(Comm *comm)
{
    if (!comm)
        return;
    wait_for_ranks(comm, &(Call){ .kind = CALL_FREE });
    backend_free(comm);
    free(comm);
}
