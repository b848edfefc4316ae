// comm.c - opening devices and communicators, and a call on host memory.
#include "comm/backend.h"
#include "agree.h"
#include "check.h"
#include "progress.h"
#include "trace.h"

#include <stdlib.h>

int comm_rank(const Comm *comm) { return comm->rank; }
int comm_size(const Comm *comm) { return comm->size; }
uint64_t comm_bytes(const Comm *comm) { return comm->bytes; }

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
    if (gpus > 0)
        share_gpus(world, index);
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

Comm *comm_new(const World *world, Device *device, const char *name, const CommConfig *config)
{
    Comm *comm = xcalloc(1, sizeof *comm);
    *comm = (Comm){ .rank = world->rank, .size = world->size, .device = device,
                    .one = device_alloc(device, sizeof *comm->one) };
    if (config)
        comm->network.rate = config->slow_network;
    if (comm->network.rate > 0)
        replay_forbid(device);
    snprintf(comm->name, sizeof comm->name, "%s", name);
    trace_begin("meet the other ranks");
    progress_call("connect (%s)", name);
    backend_connect(comm, world);
    trace_end();
    return comm;
}

void comm_free(Comm *comm)
{
    if (!comm)
        return;
    comm_barrier(comm);
    backend_free(comm);
    device_free(comm->device, comm->one);
    free(comm);
}
