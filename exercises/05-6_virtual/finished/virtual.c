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

// A process computes its virtual ranks one after the other, each with a whole batch (--accumulate),
// and sends integers (--compress).
void virtual_check_options(const Args *args, const VirtualConfig *config, OpsConfig *ops)
{
    static const char *const others[] = { "accumulate", "compress" };
    if (config->ranks == 0)
        return;
    for (int i = 0; i < 2; i++)
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
    const Model *model = v->models[v->current];
    Shape shape = model->input;
    void *copy = (char *)v->inputs + (size_t)v->current * round_up(shape_bytes(shape), 16);
    shape.n = batch->rows;
    copy_on_device(device_stream(model->device), copy, batch->inputs, shape_bytes(shape));
    batch->inputs = copy;
}

// Rank i of this process. BatchNorm changes its statistics in training; only rank 0's are used.
static void compute_rank(void *arg, int i)
{
    Virtual *v = arg;
    Model *model = v->models[i];
    int rows = v->all->rows / v->count;
    Batch batch = batch_part(v->all, model->input, i * rows, rows);
    v->current = i;
    model->buffers = v->first + i == 0 ? v->buffers : v->others;
    if (v->inputs)
        align(v, &batch);
    v->compute(v->arg, model, &batch);
}

void virtual_step(Virtual *v, const Batch *all, VirtualCompute compute, void *arg)
{
    v->all = all;
    v->compute = compute;
    v->arg = arg;
    if (v->turns)
        turns_run(v->turns, compute_rank, v);
    for (int i = 0; i < v->count && !v->turns; i++)
        compute_rank(v, i);
    v->models[0]->buffers = v->buffers;     // to evaluate and to save
}

// ==== BatchNorm over all ranks ===================================================================
//
// BatchNorm cannot continue before all ranks have come to the same layer. So a process's ranks take
// turns, and each needs a model of its own, which keeps its activations:
//
//   rank 0   conv, sums |                        | norm, conv, sums |
//   rank 1              | conv, sums, all-gather |                  | norm, conv, sums, all-gather
//
// All ranks merge the statistics in the order of the ranks. So they get the same bits.

static void gather_norms(void *arg, const double *mine, double *all, size_t count)
{
    Virtual *v = arg;
    int rank = v->current;
    Stream *stream = device_stream(v->models[0]->device);
    copy_on_device(stream, v->mine + (size_t)rank * count, mine, count * sizeof *mine);
    if (rank == v->count - 1)
        comm_all_gather(v->norms, stream, v->mine, v->theirs, (size_t)v->count * count, COMM_F64);
    turns_pass(v->turns);
    v->current = rank;
    copy_on_device(stream, all, v->theirs, (size_t)v->ranks * count * sizeof *all);
}

// Only the first model has weights and statistics of its own.
static void share_arenas(Model *model, Model *first)
{
    device_free(model->device, model->buffers);
    if (model->weights != model->params)
        device_free(model->device, model->weights);
    device_free(model->device, model->params);
    model->params = first->params;
    model->weights = first->weights;
    model->buffers = first->buffers;
}

static void begin_turns(Virtual *v, Comm *norms)
{
    Model *first = v->models[0];
    size_t most = 1 + first->buffer_count;  // numbers of a layer, at most
    for (int i = 1; i < v->count; i++) {
        v->models[i] = model_new(first->device, first->ops, &first->config);
        share_arenas(v->models[i], first);
    }
    v->norms = norms;
    v->mine = device_alloc(first->device, (size_t)v->count * most * sizeof *v->mine);
    v->theirs = device_alloc(first->device, (size_t)v->ranks * most * sizeof *v->theirs);
    v->turns = turns_new(v->count);
    ops_share_norms(first->ops, v->ranks, gather_norms, v);
}

static void end_turns(Virtual *v)
{
    turns_free(v->turns);
    device_free(v->models[0]->device, v->theirs);
    device_free(v->models[0]->device, v->mine);
    for (int i = 1; i < v->count; i++) {
        v->models[i]->params = v->models[i]->buffers = NULL;    // the first model frees them
        v->models[i]->weights = NULL;
        model_free(v->models[i]);
    }
}

// ==== Sums that do not depend on their order =====================================================
//
// The host adds, in plain C, so that this file needs no kernel. A sum may reach 2^22 (2^62 units of
// 2^-40), and a rank's gradient 2^22 / ranks. A larger gradient, infinity or NaN sets a flag, which
// is summed with the last bucket and makes a gradient infinite in all processes.

typedef struct Range {
    const Virtual *v;
    int rank;               // counted from `first`
    float *grads;           // host
    size_t begin, end;
} Range;

static float *host_grads(const Virtual *v, int rank)
{
    return v->grads ? v->grads : v->models[rank]->grads;
}

static void add(void *arg)
{
    const Range *r = arg;
    const Virtual *v = r->v;
    const float limit = 0x1p22f / (float)v->ranks;
    bool fit = true;
    for (size_t i = r->begin; i < r->end; i++) {
        bool fits = fabsf(r->grads[i]) <= limit;        // NaN does not
        int64_t fixed = fits ? llrintf(r->grads[i] * 0x1p40f) : 0;
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
        r->grads[i] = (float)((double)v->sums[i] * 0x1p-40 * (1.0 / v->ranks));
    if (r->end < v->sent)
        return;
    if (v->sums[v->sent] != 0)
        r->grads[r->begin] = INFINITY;
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

void virtual_ready(void *arg, size_t offset, size_t count)
{
    Virtual *v = arg;
    const Model *model = v->models[v->current];
    Stream *stream = device_stream(model->device);
    Range range = { v, v->current, host_grads(v, v->current), offset, offset + count };
    if (v->given) {
        fetch(stream, range.grads + offset, model->grads + offset, count * sizeof *range.grads);
        stream_enqueue(stream, add, &range, sizeof range);
    }
    if (v->current == v->count - 1)
        accumulate_ready(v->accumulate, offset, count);
}

// ddp.c's hook, called when all ranks of this process have added the gradients of a bucket.
static void average_integers(void *arg, Comm *comm, Stream *stream, float *grads, size_t count)
{
    Virtual *v = arg;
    size_t begin = (size_t)(grads - v->models[0]->grads), end = begin + count;
    size_t sums = count + (end == v->sent), bytes = sums * sizeof *v->sums;
    Range range = { v, 0, host_grads(v, 0), begin, end };
    bring(stream, v->all_sums + begin, v->sums + begin, bytes);
    comm_all_reduce(comm, stream, v->all_sums + begin, sums, COMM_I64);
    fetch(stream, v->sums + begin, v->all_sums + begin, bytes);
    stream_enqueue(stream, read_sums, &range, sizeof range);
    bring(stream, grads, range.grads + begin, count * sizeof *grads);
}

// ==== Begin ======================================================================================

void virtual_begin(Virtual *v, const World *world, Accumulate *accumulate, Comm *norms, Log *log)
{
    Model *model = accumulate->model;
    Device *device = model->device;
    v->accumulate = accumulate;
    v->sent = model->ready_count;
    v->buffers = v->others = model->buffers;
    v->models = xcalloc((size_t)v->count, sizeof *v->models);
    for (int i = 0; i < v->count; i++)
        v->models[i] = model;
    if (!v->given)
        return;
    agree_same(world, "device", device_name(device));
    log_say(log, "   == virtual ranks: %d in all, %d in each process", v->ranks, v->count);
    v->others = device_alloc(device, model->buffer_count * sizeof *v->others);
    v->sums = v->all_sums = device_alloc(device, (v->sent + 1) * sizeof *v->all_sums);
    ddp_set_hook(accumulate->ddp, average_integers, v);
    if (norms && v->count > 1)
        begin_turns(v, norms);
    if (device_shares_memory(device))
        return;
    v->grads = host_alloc(v->sent * sizeof *v->grads);
    v->sums = host_alloc((v->sent + 1) * sizeof *v->sums);
    v->sums[v->sent] = 0;
    size_t each = round_up(shape_bytes(model->input), 16);
    if (v->count > 1)
        v->inputs = device_alloc(device, (size_t)v->count * each);
    replay_forbid(device);
}

void virtual_end(Virtual *v)
{
    Model *model = v->models[0];
    model->buffers = v->buffers;        // model_free frees these
    if (v->turns)
        end_turns(v);
    if (v->sums != v->all_sums) {
        host_free(v->sums);
        host_free(v->grads);
    }
    device_free(model->device, v->inputs);
    device_free(model->device, v->all_sums);
    if (v->given)
        device_free(model->device, v->others);
    free(v->models);
}
