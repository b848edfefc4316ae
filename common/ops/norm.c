// norm.c - batch normalisation.
#include "ops/loops.h"

#include <stdlib.h>

typedef struct NormJob {
    Matrix m;
    bool relu;
    int processes;          // number of processes that share the batch
    NormTensors t;
    const void *x, *residual, *y, *dy1, *dy2;
    void *out;
    float *scale, *shift;   // (c) forward: y = x * scale + shift
    float *slope;           // (c) backward: dx = d * scale + (x - mean) * slope + shift
    // A message between processes has 1 + 2 * c values: the number of rows, then (2, c) statistics.
    double *mine;           // this process's message
    double *all;            // the messages of all processes, in rank order
} NormJob;

// --- forward -------------------------------------------------------------------------------------

// Where the middle row begins. This row's values are the origins in `moments`, one per channel.
INLINE size_t middle(const NormJob *j) { return j->m.rows / 2 * j->m.columns; }

// Adds up distances from the channel's origin, and their squares. So a mean far from zero costs
// little precision.
INLINE void moments(const NormJob *j, Type type, At at, Pack *sums)
{
    Pack x, origin;
    load_at(type, j->x, at, &x);
    load(type, j->x, middle(j) + at.column, at.count, &origin);
    FOR_LANES(k) {
        float d = x.v[k] - origin.v[k];
        sums[0].v[k] += d;
        sums[1].v[k] += d * d;
    }
}

INLINE void scale_set(const NormJob *j, size_t c, float mean, float inv_std)
{
    float scale = j->t.gamma[c] * inv_std, shift = j->t.beta[c] - mean * scale;
    j->scale[c] = scale;
    j->shift[c] = shift;
}

// squares: the sum of squared distances from the mean. All loads come first, so that a GPU waits
// for memory once.
INLINE void statistics_set(const NormJob *j, size_t c, double rows, double mean, double squares)
{
    const NormTensors *t = &j->t;
    float inv_std = 1 / sqrt(squares / rows + 1e-5);
    double running_mean = 0.9 * t->running_mean[c] + 0.1 * mean;
    double running_var = 0.9 * t->running_var[c] + 0.1 * (squares / (rows > 1 ? rows - 1 : 1));
    scale_set(j, c, mean, inv_std);
    t->mean[c] = mean;
    t->inv_std[c] = inv_std;
    t->running_mean[c] = running_mean;
    t->running_var[c] = running_var;
}

INLINE void message_set(const NormJob *j, size_t c, double first, double second)
{
    if (c == 0)
        j->mine[0] = (double)j->m.rows;
    j->mine[1 + c] = first;
    j->mine[1 + j->m.columns + c] = second;
}

INLINE void moments_end(const NormJob *j, size_t c, const double *sums)
{
    double rows = (double)j->m.rows, mean = sums[0] / rows, var = sums[1] / rows - mean * mean;
    mean += load_one(j->m.type, j->x, middle(j) + c);
    var = var > 0 ? var : var == var ? 0 : var;     // not below zero, but let NaN through
    if (j->processes > 1)
        message_set(j, c, mean, rows * var);
    else
        statistics_set(j, c, rows, mean, rows * var);
}
COLUMNS(moments, moments_end, NormJob)

// Merges the processes' moments without a difference of two large sums (Chan, Golub, LeVeque 1979),
// and in rank order, so that all processes get the same bits.
INLINE void moments_merge(const NormJob *j, size_t c)
{
    const double *rank = j->all;
    double rows = 0, mean = 0, squares = 0;
    for (int r = 0; r < j->processes; r++, rank += 1 + 2 * j->m.columns) {
        double together = rows + rank[0], delta = rank[1 + c] - mean, share = rank[0] / together;
        mean += delta * share;
        squares += rank[1 + j->m.columns + c] + delta * delta * rows * share;
        rows = together;
    }
    statistics_set(j, c, rows, mean, squares);
}
ITEMS(moments_merge, NormJob)

INLINE void scale_of_running(const NormJob *j, size_t c)
{
    scale_set(j, c, j->t.running_mean[c], 1 / sqrt(j->t.running_var[c] + 1e-5));
}
ITEMS(scale_of_running, NormJob)

INLINE void normalise_pack(const NormJob *j, Type type, At at, bool add)
{
    const float least = j->relu ? 0 : -INFINITY;
    Pack y, scale, shift;
    load_at(type, j->x, at, &y);
    load_columns(j->scale, at, &scale);
    load_columns(j->shift, at, &shift);
    FOR_LANES(k)
        y.v[k] = y.v[k] * scale.v[k] + shift.v[k];
    if (add)
        add_at(type, j->residual, at, &y);
    FOR_LANES(k)
        y.v[k] = y.v[k] < least ? least : y.v[k];
    store_at(type, j->out, at, &y);
}

// Each case is compiled separately: otherwise a pack that only one of the cases changes would not
// stay in registers.
INLINE void normalise(const NormJob *j, Type type, At at)
{
    if (j->residual)
        normalise_pack(j, type, at, true);
    else
        normalise_pack(j, type, at, false);
}
CELLS(normalise, NormJob)

// --- backward ------------------------------------------------------------------------------------

// Computes d: dy1, plus dy2 if `two`. With `relu`, d is 0 unless y > 0. Stores d in out, and adds
// up d and d * (x - mean).
INLINE void gradient_pack(const NormJob *j, Type type, At at, Pack *sums, bool two, bool relu)
{
    Pack d, d2, x, y, mean;
    load_fixed_at(type, j->dy1, at, &d);
    load_fixed_at(type, j->x, at, &x);
    load_columns(j->t.mean, at, &mean);
    if (two) {
        load_fixed_at(type, j->dy2, at, &d2);
        FOR_LANES(k)
            d.v[k] = rounded(type, d.v[k] + d2.v[k]);
    }
    if (relu) {
        load_fixed_at(type, j->y, at, &y);
        FOR_LANES(k)
            d.v[k] = y.v[k] > 0 ? d.v[k] : 0;
    }
    store_exact_at(type, j->out, at, &d);
    FOR_LANES(k) {
        sums[0].v[k] += d.v[k];
        sums[1].v[k] += d.v[k] * (x.v[k] - mean.v[k]);
    }
}

// With sums over all rows of all processes, and xhat = (x - mean) * inv_std:
//   dbeta = sum(d)   dgamma = sum(d * xhat)
//   dx = gamma * inv_std * (d - dbeta / rows - xhat * dgamma / rows)
INLINE void slope_set(const NormJob *j, size_t c, double rows, double sum, double dot)
{
    double inv_std = j->t.inv_std[c], scale = j->t.gamma[c] * inv_std;
    j->scale[c] = scale;
    j->shift[c] = -scale * sum / rows;
    j->slope[c] = -scale * inv_std * inv_std * dot / rows;
}

// dbeta and dgamma become this process's part of the sums.
INLINE void gradient_end(const NormJob *j, size_t c, const double *sums)
{
    double dgamma = sums[1] * j->t.inv_std[c];
    if (j->processes > 1)
        message_set(j, c, sums[0], sums[1]);
    else
        slope_set(j, c, (double)j->m.rows, sums[0], sums[1]);
    j->t.dbeta[c] = sums[0];
    j->t.dgamma[c] = dgamma;
}

// A loop for each case: in a loop with a branch, a GPU would not load the next rows ahead.
#define GRADIENT(fn, two, relu)                                                                 \
    INLINE void fn(const NormJob *j, Type type, At at, Pack *sums)                              \
    {                                                                                           \
        gradient_pack(j, type, at, sums, two, relu);                                            \
    }                                                                                           \
    COLUMNS(fn, gradient_end, NormJob)
GRADIENT(gradient, false, false)
GRADIENT(gradient_relu, false, true)
GRADIENT(gradient_two, true, false)
GRADIENT(gradient_two_relu, true, true)

INLINE void gradient_merge(const NormJob *j, size_t c)
{
    const double *rank = j->all;
    double rows = 0, sum = 0, dot = 0;
    for (int r = 0; r < j->processes; r++, rank += 1 + 2 * j->m.columns) {
        rows += rank[0];
        sum += rank[1 + c];
        dot += rank[1 + j->m.columns + c];
    }
    slope_set(j, c, rows, sum, dot);
}
ITEMS(gradient_merge, NormJob)

// In this loop j->dy1 is d, which gradient_pack has stored.
INLINE void input_gradient(const NormJob *j, Type type, At at)
{
    Pack d, x, mean, scale, slope, shift;
    load_at(type, j->dy1, at, &d);
    load_at(type, j->x, at, &x);
    load_columns(j->t.mean, at, &mean);
    load_columns(j->scale, at, &scale);
    load_columns(j->slope, at, &slope);
    load_columns(j->shift, at, &shift);
    FOR_LANES(k)
        d.v[k] = d.v[k] * scale.v[k] + ((x.v[k] - mean.v[k]) * slope.v[k] + shift.v[k]);
    store_at(type, j->out, at, &d);
}
CELLS(input_gradient, NormJob)

// --- op.h ----------------------------------------------------------------------------------------

typedef struct Norm {
    Ops *ops;
    NormJob job;
} Norm;

void *norm_new(const Op *op)
{
    Norm *norm = (Norm *)xcalloc(1, sizeof *norm);
    NormJob *j = &norm->job;
    size_t c = round_up(op->spec.x.c, 16);  // each array begins at a multiple of 64 bytes
    norm->ops = op->ops;
    j->m = pixels_of(op->spec.x);
    j->relu = op->spec.relu;
    j->scale = (float *)device_alloc(op->ops->device, 3 * c * sizeof(float));
    j->shift = j->scale + c;
    j->slope = j->shift + c;
    return norm;
}

void norm_free(void *own)
{
    Norm *norm = (Norm *)own;
    device_free(norm->ops->device, norm->job.scale);
    device_free(norm->ops->device, norm->job.mine);
    free(norm);
}

void ops_share_norms(Ops *ops, int size, OpsGather gather, void *arg)
{
    ops->norm_processes = size;
    ops->norm_gather = gather;
    ops->norm_gather_arg = arg;
}

// The first call allocates the messages. A recorded step could not allocate, but the first call of
// a step is never recorded (device.h).
static void prepare(Norm *norm)
{
    NormJob *j = &norm->job;
    size_t each = 1 + 2 * j->m.columns;
    j->processes = norm->ops->norm_processes;
    if (j->processes <= 1 || j->mine)
        return;
    j->mine = (double *)device_alloc(norm->ops->device, (1 + j->processes) * each * sizeof(double));
    j->all = j->mine + each;
}

static void gather(Norm *norm)
{
    const Ops *ops = norm->ops;
    const NormJob *j = &norm->job;
    ops->norm_gather(ops->norm_gather_arg, j->mine, j->all, 1 + 2 * j->m.columns);
}

// A variance of 0 makes all outputs of a channel beta, and all gradients of its inputs 0.
static void warn_of_one_value(void)
{
    static bool warned;                     // in 02, several threads call this
    if (!__atomic_test_and_set(&warned, __ATOMIC_RELAXED) && own_rank() == 0)
        WARN("use a larger batch (-b), fewer parts (--accumulate) or, with ranks, --sync-bn",
             "BatchNorm has one value per channel, so the layers before it learn nothing");
}

void norm_forward(const Op *op, const OpArgs *a)
{
    Norm *norm = (Norm *)op->own;
    NormJob *j = &norm->job;
    Stream *stream = compute(norm->ops);
    prepare(norm);
    if (a->training && j->m.rows == 1 && j->processes <= 1)
        warn_of_one_value();
    j->t = a->norm, j->x = a->x, j->residual = a->residual, j->out = a->y;
    if (!a->training)
        RUN_ITEMS(scale_of_running, stream, j->m.columns, j);
    else
        RUN_COLUMNS(moments, stream, j->m, j);
    if (a->training && j->processes > 1) {
        gather(norm);
        RUN_ITEMS(moments_merge, stream, j->m.columns, j);
    }
    RUN_CELLS(normalise, stream, j->m, j);
}

void norm_backward(const Op *op, const OpArgs *a)
{
    Norm *norm = (Norm *)op->own;
    NormJob *j = &norm->job;
    Stream *stream = compute(norm->ops);
    prepare(norm);
    j->t = a->norm, j->x = a->x, j->y = a->y, j->dy1 = a->dy1, j->dy2 = a->dy2;
    j->out = a->dresidual ? a->dresidual : a->dx;
    if (j->dy2 && j->relu)
        RUN_COLUMNS(gradient_two_relu, stream, j->m, j);
    else if (j->dy2)
        RUN_COLUMNS(gradient_two, stream, j->m, j);
    else if (j->relu)
        RUN_COLUMNS(gradient_relu, stream, j->m, j);
    else
        RUN_COLUMNS(gradient, stream, j->m, j);
    if (j->processes > 1) {
        gather(norm);
        RUN_ITEMS(gradient_merge, stream, j->m.columns, j);
    }
    j->dy1 = j->out, j->out = a->dx;
    RUN_CELLS(input_gradient, stream, j->m, j);
}
