// sync_bn.c - BatchNorm over the batches of all ranks (--sync-bn).
#include "comm/backend.h"
#include "ops.h"

// BatchNorm calls this with the rank's own statistics, and gets the statistics of all ranks.
static void gather_norms(void *arg, const double *mine, double *all, size_t count)
{
    Comm *comm = arg;
    comm_all_gather(comm, device_stream(comm->device), mine, all, count, COMM_F64);
}

Comm *comm_share_norms(const World *world, Device *device, Ops *ops, const CommConfig *config)
{
    Comm *comm = comm_new(world, device, "norms", config);
    ops_share_norms(ops, comm->size, gather_norms, comm);
    return comm;
}
