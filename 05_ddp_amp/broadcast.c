// broadcast.c - all ranks start with what rank 0 has.
//
// Later, all ranks change their weights alike, so the weights are never sent again. If one rank is
// left out here, or takes a step of its own, its loss still falls, and nothing looks wrong. So the
// ranks sometimes compare a hash of their weights: only this hash travels, eight bytes.
#include "broadcast.h"
#include "check.h"

#include <stdlib.h>
#include <string.h>

void broadcast(Comm *comm, Device *device, const Array *arrays, int count)
{
    for (int i = 0; i < count; i++)
        comm_broadcast(comm, device_stream(device), arrays[i].values, arrays[i].count, COMM_F32, 0);
}

// Returns all ranks' hashes, in rank order. The caller frees them.
static uint64_t *gather(Comm *comm, Device *device, uint64_t mine)
{
    Stream *stream = device_stream(device);
    size_t size = (size_t)comm_size(comm);
    uint64_t *hashes = xmalloc(size * sizeof mine);
    uint64_t *there = device_alloc(device, (size + 1) * sizeof mine);
    copy_to_device(stream, there + size, &mine, sizeof mine);
    comm_all_gather(comm, stream, there + size, there, 1, COMM_I64);
    copy_to_host(stream, hashes, there, size * sizeof mine);
    stream_sync(stream);
    device_free(device, there);
    return hashes;
}

void compare_hashes(Comm *comm, Device *device, uint64_t hash)
{
    char names[256] = "";
    uint64_t *hashes = gather(comm, device, hash), first = hashes[0];
    for (int rank = 1; rank < comm_size(comm); rank++)
        if (hashes[rank] != first) {
            size_t length = strlen(names);
            snprintf(names + length, sizeof names - length, "%s%d (%016llx)", length ? ", " : "",
                     rank, (unsigned long long)hashes[rank]);
        }
    free(hashes);
    if (!names[0])
        return;
    leave_only_with(EXIT_RANKS_DIFFER);
    fflush(stdout);
    if (comm_rank(comm) == 0)
        WARN("the broadcast at the start has failed, or the ranks have taken different steps since "
             "the weights were last compared",
             "the ranks have diverged: the weights of rank %s differ from rank 0's (%016llx)",
             names, (unsigned long long)first);
    free(gather(comm, device, hash));       // the other ranks wait here until rank 0 has printed
    leave_at_once(EXIT_RANKS_DIFFER);
}
