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

#include <stdlib.h>
#include <string.h>

void virtual_options(Args *args, VirtualConfig *config)
{
    *config = (VirtualConfig){ 0 };
    args_add(args, ARGS_ROWS(
        { "virtual-ranks", 0, ARG_INT, &config->ranks, "V",
          "compute as V ranks: the same bits with any number of processes that divides V",
          1, 4096 }));
}

void virtual_check_options(const Args *args, const VirtualConfig *config, bool sync_bn,
                           const AmpConfig *amp, OpsConfig *ops)
{
    if (config->ranks == 0)
        return;
    if (sync_bn)
        args_reject(args, "virtual-ranks", "cannot be combined with --sync-bn: a process computes "
                    "its virtual ranks one after the other");
    if (amp->accumulate > 1)
        args_reject(args, "virtual-ranks", "cannot be combined with --accumulate: choose a smaller "
                    "-b and more virtual ranks");
    if (strcmp(amp->compress, "none") != 0)
        args_reject(args, "virtual-ranks", "cannot be combined with --compress: gradients are sent "
                    "as integers");
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

bool virtual_batch(Virtual *v, const Batch *all, int i, Batch *batch)
{
    int rows = all->rows / v->count;
    bool over = i == v->count;
    v->model->buffers = over || v->first + i == 0 ? v->buffers : v->others;
    if (over)
        return false;
    if (i > 0)
        ddp_wait(v->ddp);       // the next backward overwrites the gradients
    v->current = i;
    *batch = batch_part(all, v->model->input, i * rows, rows);
    if (v->inputs)
        align(v, batch);
    return true;
}

// ==== Sums that do not depend on their order =====================================================

// ddp.c's hook, called for each bucket of each of this process's ranks. A sum may reach 2^22 (2^62
// units of 2^-40), and a rank's gradient 2^22 / ranks. A larger gradient, infinity or NaN sets a
// flag, which is summed with the last bucket and makes a gradient infinite in all processes.
static void add_integers(void *arg, Comm *comm, Stream *stream, float *grads, size_t count)
{
    Virtual *v = arg;
    Ops *ops = v->model->ops;
    size_t begin = (size_t)(grads - v->model->grads);
    bool last_bucket = begin + count == v->sent;
    int64_t *sums = v->sums + begin, *overflow = v->sums + v->sent;
    if (v->current == 0 && begin == 0)
        fill_zero(stream, overflow, sizeof *overflow);
    fixed_add(ops, stream, count, grads, 0x1p22f / (float)v->ranks, v->current > 0, sums, overflow);
    if (v->current < v->count - 1)
        return;
    comm_all_reduce(comm, stream, sums, count + last_bucket, COMM_I64);
    fixed_read(ops, stream, count, sums, 1.0 / v->ranks, last_bucket ? overflow : NULL, grads);
}

// ==== Begin and end ==============================================================================

void virtual_begin(Virtual *v, const World *world, Model *model, Ddp *ddp, Log *log)
{
    v->model = model;
    v->ddp = ddp;
    v->sent = model->ready_count;
    v->buffers = v->others = model->buffers;
    if (!v->given)
        return;
    agree_same(world, "device", device_name(model->device));
    log_say(log, "   == virtual ranks: %d in all, %d in each process", v->ranks, v->count);
    v->sums = device_alloc(model->device, (v->sent + 1) * sizeof *v->sums);
    v->others = device_alloc(model->device, model->buffer_count * sizeof *v->others);
    if (v->count > 1 && !device_shares_memory(model->device))
        v->inputs = device_alloc(model->device, shape_bytes(model->input));
    ddp_set_hook(ddp, add_integers, v);
}

void virtual_end(Virtual *v)
{
    if (!v->given)
        return;
    device_free(v->model->device, v->inputs);
    device_free(v->model->device, v->others);
    device_free(v->model->device, v->sums);
}
