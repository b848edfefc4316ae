// ddp.c - every rank's gradients become the average of all ranks' gradients.
//
// Ranks that begin with the same weights and take the same steps keep the same weights. Read
// average_naive first: it averages all gradients in one call. Buckets only make the step faster.
#include "ddp.h"
#include "check.h"
#include "trace.h"

#include <stdlib.h>

enum { FIRST_BUCKET = 1 << 20 };    // bytes

struct Ddp {
    DdpConfig config;
    Model *model;
    size_t count;               // floats to average: the gradients, then stop.c's
    Comm *comm;                 // for gradients, state and hashes; stop.c uses it, too
    Comm *norms;                // for BatchNorm, whose sums must not wait for a bucket
    Stream *stream;             // on which buckets are sent
    DdpHook hook;
    void *hook_arg;
    size_t begin, end;          // gradients that are final and have not been sent
    size_t bucket, first, limit;    // bytes: of a bucket, of the first one, of the next one
    Event *final, *averaged;    // a bucket is final; all are averaged
};

void ddp_options(Args *args, DdpConfig *config)
{
    *config = (DdpConfig){ .bucket_mb = 25, .overlap = true };
    args_add(args, ARGS_ROWS(
        { "bucket-mb", 0, ARG_DOUBLE, &config->bucket_mb, "MIB",
          "size of a bucket of gradients (0: all at once, after backward)", 0, 65536 },
        { "overlap", 0, ARG_BOOL, &config->overlap, "0|1",
          "send gradients while backward still runs", .needs = "bucket-mb" },
        { "sync-bn", 0, ARG_FLAG, &config->sync_bn, NULL, "BatchNorm over all ranks' batches",
          .needs = "arch not lenet|gpt" }));
    comm_options(args, &config->comm);
}

// ==== The average, all at once ===================================================================

// The sum of all ranks' gradients, divided by the number of ranks.
static void average(void *ops, Comm *comm, Stream *stream, float *grads, size_t count)
{
    comm_all_reduce(comm, stream, grads, count, COMM_F32);
    values_scale(ops, stream, count, grads, 1.0f / (float)comm_size(comm));
}

// After backward, everything in one message.
//
//   compute   | forward | backward                     |            | optimizer |
//   network                                            | all-reduce |
static void average_naive(Ddp *ddp)
{
    ddp->hook(ddp->hook_arg, ddp->comm, device_stream(ddp->model->device), ddp->model->grads,
              ddp->count);
}

// ==== The average, in buckets, beside backward ===================================================
// The last layer's gradients are final when backward has hardly begun. The arena holds gradients in
// the order in which they become final, so those that are final and not yet sent are one range. As
// soon as this range is large enough, it is sent as a bucket, while backward continues:
//
//   compute   | forward | backward                     |   | optimizer |
//   buckets                  | 0 |     | 1 |           | 2 |
//
// The first bucket is small, so that sending starts early. The last is sent when backward ends.

static void send_bucket(Ddp *ddp)
{
    event_record(ddp->final, device_stream(ddp->model->device));
    stream_wait(ddp->stream, ddp->final);
    ddp->hook(ddp->hook_arg, ddp->comm, ddp->stream, ddp->model->grads + ddp->begin,
              ddp->end - ddp->begin);
    ddp->begin = ddp->end;
    ddp->limit = ddp->bucket;
}

void ddp_ready(void *arg, size_t offset, size_t count)
{
    Ddp *ddp = arg;
    CHECK(offset == ddp->end, "each range must begin where the last one ended",
          "backward announced gradient %zu, but %zu is next", offset, ddp->end);
    bool last = offset + count == ddp->model->grad_count;
    ddp->end = last ? ddp->count : offset + count;
    if (ddp->config.bucket_mb == 0)
        return;
    if (last || (ddp->end - ddp->begin) * sizeof(float) >= ddp->limit)
        send_bucket(ddp);
}

void ddp_wait(Ddp *ddp)
{
    CHECK(ddp->end == ddp->count, "backward must announce every gradient once (ddp_ready)",
          "backward announced %zu of %zu gradients; the others would not be averaged", ddp->end,
          ddp->model->grad_count);
    ddp->begin = ddp->end = 0;
    if (ddp->config.bucket_mb == 0) {
        average_naive(ddp);
        return;
    }
    trace_begin("wait for gradients");
    event_record(ddp->averaged, ddp->stream);
    stream_wait(device_stream(ddp->model->device), ddp->averaged);
    trace_end();
    ddp->limit = ddp->first;
}

// ==== The same weights on every rank =============================================================

uint64_t ddp_compare(Ddp *ddp, uint64_t hash) { return comm_compare(ddp->comm, hash); }

void ddp_broadcast(Ddp *ddp, const Optim *optim, void *state, size_t bytes)
{
    Model *m = ddp->model;
    Stream *stream = device_stream(m->device);
    trace_begin("broadcast");
    comm_broadcast(ddp->comm, stream, m->params, m->param_count, COMM_F32, 0);
    comm_broadcast(ddp->comm, stream, m->buffers, m->buffer_count, COMM_F32, 0);
    for (int i = 0; i < optim->arena_count; i++)
        comm_broadcast(ddp->comm, stream, optim->arenas[i].values, m->param_count, COMM_F32, 0);
    comm_broadcast_host(ddp->comm, state, bytes);
    ddp_compare(ddp, model_hash(m));    // two kinds of processors may lay out arenas differently
    trace_end();
}

// ==== New and free ===============================================================================

Ddp *ddp_new(const DdpConfig *config, const World *world, Model *model)
{
    Ddp *ddp = xcalloc(1, sizeof *ddp);
    // With Gloo on a GPU, SyncBN's calls wait for the buckets anyway, so all use one stream.
    bool by_host = comm_shares_devices && !device_shares_memory(model->device);
    bool beside = config->overlap && config->bucket_mb > 0 && !(config->sync_bn && by_host);
    *ddp = (Ddp){ .config = *config, .model = model, .hook = average, .hook_arg = model->ops,
                  .count = model->grad_count + MODEL_SPARE,
                  .final = event_new(model->device), .averaged = event_new(model->device) };
    ddp->bucket = (size_t)(config->bucket_mb * 0x1p20);
    ddp->limit = ddp->first = ddp->bucket < FIRST_BUCKET ? ddp->bucket : FIRST_BUCKET;
    ddp->comm = comm_new(world, model->device, "gradients", &config->comm);
    ddp->stream = beside ? stream_new_beside(model->device, "communication")
                         : device_stream(model->device);
    if (config->sync_bn) {
        ddp->norms = comm_new(world, model->device, "norms", &config->comm);
        comm_share_norms(ddp->norms, model->ops);
    }
    return ddp;
}

void ddp_free(Ddp *ddp)
{
    stream_sync(ddp->stream);
    comm_free(ddp->norms);
    comm_free(ddp->comm);
    event_free(ddp->averaged);
    event_free(ddp->final);
    if (ddp->stream != device_stream(ddp->model->device))
        stream_free(ddp->stream);
    free(ddp);
}

Comm *ddp_comm(Ddp *ddp) { return ddp->comm; }

void ddp_set_hook(Ddp *ddp, DdpHook hook, void *arg)
{
    ddp->hook = hook;
    ddp->hook_arg = arg;
}
