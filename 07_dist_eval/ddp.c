// ddp.c - the average of all ranks' gradients: in buckets, while backward still runs.
//
// The last layer's gradients are final when backward has hardly begun. The arena holds gradients in
// the order in which they become final, so those that are final and not yet sent are one range. As
// soon as this range is large enough, it is sent as a bucket, while backward continues:
//
//   compute   | forward | backward                     |   | optimizer |
//   buckets                  | 0 |     | 1 |           | 2 |
//
// With a bucket that has room for all gradients, this file gives the same result as ddp_naive.c.
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
    size_t begin;           // gradients before `begin` have been sent
    size_t bucket;          // least number of gradients in a bucket; the last may have fewer
    Stream *stream;         // the stream that sends the buckets
    Event *final, *averaged;
};

// The mean of all ranks' gradients. A rank's gradients are a mean over its batch. In each step all
// batches are equally large (sampler.c), so the mean of these means is the mean over all samples.
static void average(void *arg, Comm *comm, Stream *stream, float *grads, size_t count)
{
    comm_all_reduce(comm, stream, grads, count, COMM_F32);
    values_scale(stream, grads, count, 1.0f / (float)comm_size(comm));
}

// One event serves all buckets: recording it again does not disturb a stream that already waits.
static void send_bucket(Ddp *ddp)
{
    event_record(ddp->final, device_stream(ddp->device));
    stream_wait(ddp->stream, ddp->final);
    ddp->hook(ddp->arg, ddp->comm, ddp->stream, ddp->grads + ddp->begin, ddp->end - ddp->begin);
    ddp->begin = ddp->end;
}

void ddp_ready(void *arg, size_t offset, size_t count)
{
    Ddp *ddp = arg;
    CHECK(offset == ddp->end && count <= ddp->count - offset, "announce gradients once, in order",
          "backward announced gradients %zu to %zu, but %zu to %zu are left", offset,
          offset + count, ddp->end, ddp->count);
    ddp->end = offset + count;
    if (ddp->end - ddp->begin >= ddp->bucket || ddp->end == ddp->count)
        send_bucket(ddp);
}

void ddp_wait(Ddp *ddp)
{
    CHECK(ddp->end == ddp->count, "backward must announce every gradient once (ddp_ready)",
          "backward announced %zu of %zu gradients; the others would not be averaged", ddp->end,
          ddp->count);
    event_record(ddp->averaged, ddp->stream);
    stream_wait(device_stream(ddp->device), ddp->averaged);
    ddp->begin = ddp->end = 0;
}

Ddp *ddp_new(float *grads, size_t count, Device *device, Comm *comm, size_t bucket_bytes)
{
    Ddp *ddp = xmalloc(sizeof *ddp);
    *ddp = (Ddp){ .grads = grads, .count = count, .device = device, .comm = comm,
                  .hook = average };
    ddp->bucket = bucket_bytes / sizeof *grads;
    ddp->stream = stream_new_beside(device, "gradients");
    ddp->final = event_new(device);
    ddp->averaged = event_new(device);
    return ddp;
}

void ddp_free(Ddp *ddp)
{
    event_free(ddp->averaged);
    event_free(ddp->final);
    stream_free(ddp->stream);
    free(ddp);
}

void ddp_set_hook(Ddp *ddp, DdpHook hook, void *arg)
{
    ddp->hook = hook;
    ddp->arg = arg;
}
