// virtual.c - virtual ranks: a run ends with the same bits on any number of processes.
//
// Float addition rounds, so a sum depends on its order, and the order on the number of ranks:
//
//   1 rank     ((a + b) + c) + d
//   2 ranks    (a + b) + (c + d)        other bits, and after some steps other digits
//
// Integer addition does not round: every order gives the same bits. But within a batch, sums stay
// floats, so the batches must not depend on the number of processes. So the run has a fixed number
// of virtual ranks, each with its own batches. Each process computes some of the ranks, one after
// the other, and adds up their gradients as integers in units of 2^-40:
//
//   process 0   rank 0 | rank 1 | sum --+
//                                       +-- all-reduce: the same bits in both
//   process 1   rank 2 | rank 3 | sum --+
//
// What a rank computes must not depend on which process computes it. So its samples and batches are
// fixed, and all processes must have the same kind of device and the same number of threads.
#include "virtual.h"
#include "agree.h"
#include "check.h"

#include <math.h>
#include <stdlib.h>

void virtual_options(Args *args, VirtualConfig *config)
{
    *config = (VirtualConfig){ 0 };
    args_add(args, ARGS_ROWS(
        { "virtual-ranks", 0, ARG_INT, &config->ranks, "V",
          "compute as V ranks: the same bits with any number of processes that divides V",
          1, 4096 }));
}

// A process computes its virtual ranks one after the other (--sync-bn), each with a whole batch
// (--accumulate), and sends integers (--compress).
void virtual_check_options(const Args *args, const VirtualConfig *config, OpsConfig *ops)
{
    static const char *const others[] = { "sync-bn", "accumulate", "compress" };
    if (config->ranks == 0)
        return;
    for (int i = 0; i < 3; i++)
        if (args_given(args, others[i]))
            args_reject(args, "virtual-ranks", "cannot be combined with --%s", others[i]);
    ops->deterministic = true;
}

void virtual_divide(Virtual *v, const VirtualConfig *config, const World *world)
{
    int ranks = config->ranks > 0 ? config->ranks : world->size, count = ranks / world->size;
    if (ranks % world->size != 0)
        FAIL_USAGE("choose a multiple of the number of processes", "--virtual-ranks %d cannot be "
                   "shared by %d processes", ranks, world->size);
    *v = (Virtual){ .given = config->ranks > 0, .ranks = ranks, .first = world->rank * count,
                    .count = count };
}

// ==== Batches ====================================================================================

// For each step, ids has the batches of this process's ranks, all with the same number of rows.
void virtual_ids(const Virtual *v, const Sampler *sampler, int batch_size, int32_t *ids)
{
    Sampler own = *sampler;
    int share = sampler_share(sampler);
    int32_t *samples = xmalloc(share * sizeof *samples);
    for (int i = 0; i < v->count; i++) {
        own.rank = v->first + i;
        sampler_ids(&own, samples);
        for (int j = 0; j < share; j++) {
            int begin = j - j % batch_size, left = share - begin;
            int rows = left < batch_size ? left : batch_size;
            ids[begin * v->count + i * rows + j % batch_size] = samples[j];
        }
    }
    free(samples);
}

// cuDNN's tensors must begin at multiples of 16 bytes. A part of a larger batch may begin anywhere,
// so it is copied.
static void align(const Virtual *v, Batch *batch)
{
    Shape shape = v->model->input;
    shape.n = batch->rows;
    copy_on_device(device_stream(v->model->device), v->inputs, batch->inputs, shape_bytes(shape));
    batch->inputs = v->inputs;
}

Batch virtual_batch(Virtual *v, const Batch *all, int i)
{
    int rows = all->rows / v->count;
    Batch batch = batch_part(all, v->model->input, i * rows, rows);
    v->current = i;
    v->model->buffers = v->first + i == 0 ? v->buffers : v->others;
    if (v->inputs)
        align(v, &batch);
    return batch;
}

void virtual_end_step(Virtual *v)
{
    v->current = 0;
    v->model->buffers = v->buffers;
}

// ==== Sums that do not depend on their order =====================================================
//
// The host adds, in plain C, so that this file needs no kernel. A sum may reach 2^22 (2^62 units of
// 2^-40), and a rank's gradient 2^22 / ranks. A larger gradient, infinity or NaN sets a flag, which
// is summed with the last bucket and makes a gradient infinite in all processes.

typedef struct Range {
    const Virtual *v;
    int rank;               // counted from `first`
    size_t begin, end;      // gradients of a bucket
} Range;

static void add(void *arg)
{
    const Range *r = arg;
    const Virtual *v = r->v;
    const float limit = 0x1p22f / (float)v->ranks;
    bool fit = true;
    for (size_t i = r->begin; i < r->end; i++) {
        bool fits = fabsf(v->grads[i]) <= limit;        // NaN does not
        int64_t fixed = fits ? llrintf(v->grads[i] * 0x1p40f) : 0;
        v->sums[i] = r->rank == 0 ? fixed : v->sums[i] + fixed;
        fit = fit && fits;
    }
    if (!fit)
        v->sums[v->sent] = 1;
}

static void read_sums(void *arg)
{
    const Range *r = arg;
    const Virtual *v = r->v;
    for (size_t i = r->begin; i < r->end; i++)
        v->grads[i] = (float)((double)v->sums[i] * 0x1p-40 * (1.0 / v->ranks));
    if (r->end < v->sent)
        return;
    if (v->sums[v->sent] != 0)
        v->grads[r->begin] = INFINITY;
    v->sums[v->sent] = 0;
}

// On the CPU the arrays of host and device are the same.
static void fetch(Stream *stream, void *host, const void *device, size_t bytes)
{
    if (host != device)
        copy_to_host(stream, host, device, bytes);
}

static void bring(Stream *stream, void *device, const void *host, size_t bytes)
{
    if (host != device)
        copy_to_device(stream, device, host, bytes);
}

// ddp.c's hook, called for each bucket of each of this process's ranks.
static void add_integers(void *arg, Comm *comm, Stream *stream, float *grads, size_t count)
{
    Virtual *v = arg;
    size_t begin = (size_t)(grads - v->model->grads), end = begin + count;
    Range range = { v, v->current, begin, end };
    size_t sums = count + (end == v->sent), bytes = sums * sizeof *v->sums;
    fetch(stream, v->grads + begin, grads, count * sizeof *grads);
    stream_enqueue(stream, add, &range, sizeof range);
    if (v->current < v->count - 1)
        return;
    bring(stream, v->all_sums + begin, v->sums + begin, bytes);
    comm_all_reduce(comm, stream, v->all_sums + begin, sums, COMM_I64);
    fetch(stream, v->sums + begin, v->all_sums + begin, bytes);
    stream_enqueue(stream, read_sums, &range, sizeof range);
    bring(stream, grads, v->grads + begin, count * sizeof *grads);
}

// ==== Begin ======================================================================================

void virtual_begin(Virtual *v, const World *world, Model *model, Ddp *ddp, Log *log)
{
    Device *device = model->device;
    v->model = model;
    v->sent = model->ready_count;
    v->buffers = v->others = model->buffers;
    if (!v->given)
        return;
    agree_same(world, "device", device_name(device));
    log_say(log, "   == virtual ranks: %d in all, %d in each process", v->ranks, v->count);
    v->others = device_alloc(device, model->buffer_count * sizeof *v->others);
    v->grads = model->grads;
    v->sums = v->all_sums = device_alloc(device, (v->sent + 1) * sizeof *v->all_sums);
    ddp_set_hook(ddp, add_integers, v);
    if (device_shares_memory(device))
        return;
    v->grads = host_alloc(v->sent * sizeof *v->grads);
    v->sums = host_alloc((v->sent + 1) * sizeof *v->sums);
    v->sums[v->sent] = 0;
    if (v->count > 1)
        v->inputs = device_alloc(device, shape_bytes(model->input));
    replay_forbid(device);
}

void virtual_end(Virtual *v)
{
    if (!v->given)
        return;
    v->model->buffers = v->buffers;     // model_free frees these
    if (v->sums != v->all_sums) {
        host_free(v->sums);
        host_free(v->grads);
    }
    device_free(v->model->device, v->inputs);
    device_free(v->model->device, v->all_sums);
    device_free(v->model->device, v->others);
}
