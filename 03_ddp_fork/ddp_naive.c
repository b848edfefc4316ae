// ddp_naive.c - the average of all ranks' gradients: after backward, in one message.
//
//   compute   | forward | backward                     |            | optimizer |
//   network                                            | all-reduce |
#include "ddp.h"
#include "check.h"

#include <stdlib.h>

struct Ddp {
    float *grads;
    size_t count, end;      // number of all gradients; those before `end` are final
    Device *device;
    Comm *comm;
    DdpHook hook;
    void *arg;
};

// The mean of all ranks' gradients. A rank's gradients are a mean over its batch. In each step all
// batches are equally large (sampler.c), so the mean of these means is the mean over all samples.
static void average(void *arg, Comm *comm, Stream *stream, float *grads, size_t count)
{
    comm_all_reduce(comm, stream, grads, count, COMM_F32);
    values_scale(stream, grads, count, 1.0f / (float)comm_size(comm));
}

void ddp_ready(void *arg, size_t offset, size_t count)
{
    Ddp *ddp = arg;
    CHECK(offset == ddp->end && count <= ddp->count - offset, "announce gradients once, in order",
          "backward announced gradients %zu to %zu, but %zu to %zu are left", offset,
          offset + count, ddp->end, ddp->count);
    ddp->end = offset + count;
}

void ddp_wait(Ddp *ddp)
{
    CHECK(ddp->end == ddp->count, "backward must announce every gradient once (ddp_ready)",
          "backward announced %zu of %zu gradients; the others would not be averaged", ddp->end,
          ddp->count);
    ddp->hook(ddp->arg, ddp->comm, device_stream(ddp->device), ddp->grads, ddp->count);
    ddp->end = 0;
}

Ddp *ddp_new(float *grads, size_t count, Device *device, Comm *comm, size_t bucket_bytes)
{
    Ddp *ddp = xmalloc(sizeof *ddp);
    *ddp = (Ddp){ .grads = grads, .count = count, .device = device, .comm = comm,
                  .hook = average };
    return ddp;
}

void ddp_free(Ddp *ddp) { free(ddp); }

void ddp_set_hook(Ddp *ddp, DdpHook hook, void *arg)
{
    ddp->hook = hook;
    ddp->arg = arg;
}
