// together.c - host broadcasts, comparing weights, shared BatchNorm statistics.
#include "comm/backend.h"
#include "check.h"
#include "ops.h"

#include <string.h>

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

uint64_t comm_compare(Comm *comm, uint64_t hash)
{
    int size = comm->size;
    uint64_t hashes[size];
    char names[256] = "";
    Stream *stream = device_stream(comm->device);
    uint64_t *all = device_alloc(comm->device, (size_t)(size + 1) * sizeof hash), *mine = all + size;
    copy_to_device(stream, mine, &hash, sizeof hash);
    comm_all_gather(comm, stream, mine, all, 1, COMM_I64);
    copy_to_host(stream, hashes, all, sizeof hashes);
    stream_sync(stream);
    device_free(comm->device, all);
    for (int rank = 1; rank < size; rank++)
        if (hashes[rank] != hashes[0]) {
            size_t length = strlen(names);
            snprintf(names + length, sizeof names - length, "%s%d (%016llx)", length ? ", " : "",
                     rank, (unsigned long long)hashes[rank]);
        }
    CHECK(!names[0] || comm->rank > 0,
          "they began with different weights, or applied different gradients; at the start: "
          "their processors differ (DNNL_MAX_CPU_ISA=AVX2 on all ranks avoids that)",
          "the ranks have come apart: the weights of rank %s differ from rank 0's (%016llx)", names,
          (unsigned long long)hashes[0]);
    return hash;
}

static void gather_norms(void *arg, const double *mine, double *all, size_t count)
{
    Comm *comm = arg;
    comm_all_gather(comm, device_stream(comm->device), mine, all, count, COMM_F64);
}

void comm_share_norms(Comm *comm, Ops *ops)
{
    ops_share_norms(ops, comm->size, gather_norms, comm);
}
