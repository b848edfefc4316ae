// kernels.c - the kernels of cuda/kernels.h, for fake.h.
//
// Most only mix: what they write depends on every byte that they read. Those whose results programs
// look at (labels, what has been counted, scalars, sums) do something like what they should.
#include "fake.h"

#include "cuda/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIX(stream, name, salt, ...)                                   \
    do {                                                               \
        fake_mix(stream, name, (uint64_t)(salt), RANGES(__VA_ARGS__)); \
        return cudaGetLastError(); /* as after the launch of a real one */ \
    } while (0)
#define DO(stream, fn, arg, ...)                                       \
    do {                                                               \
        fake_do(stream, #fn, fn, &(arg), sizeof(arg), RANGES(__VA_ARGS__)); \
        return cudaGetLastError();                                     \
    } while (0)

// --- mixing --------------------------------------------------------------------------------------

uint64_t fake_hash(uint64_t hash, const void *p, size_t bytes)
{
    const char *at = p;
    for (; bytes > 0; at += 8) {
        uint64_t word = 0;
        size_t part = bytes < 8 ? bytes : 8;
        memcpy(&word, at, part);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
        bytes -= part;
    }
    return hash;
}

void fake_fill(void *p, size_t bytes, uint64_t hash)
{
    char *at = p;
    for (; bytes > 0; at += 4) {
        size_t part = bytes < 4 ? bytes : 4;
        hash = hash * 6364136223846793005u + 1442695040888963407u;
        float number = 0.25f + (float)(hash >> 40) * 0x1p-25f;
        memcpy(at, &number, part);
        bytes -= part;
    }
}

typedef struct Mix {
    uint64_t hash;
    int count;
    Range ranges[12];
} Mix;

static void do_mix(void *arg)
{
    Mix *m = arg;
    for (int i = 0; i < m->count; i++)
        if (m->ranges[i].p && m->ranges[i].use & FAKE_READ)
            m->hash = fake_hash(m->hash, m->ranges[i].p, m->ranges[i].bytes);
    for (int i = 0; i < m->count; i++)
        if (m->ranges[i].p && m->ranges[i].use & FAKE_WRITE)
            fake_fill((void *)(uintptr_t)m->ranges[i].p, m->ranges[i].bytes, m->hash + (uint64_t)i);
}

// A replay begins with the same hash: it changes a copy.
static void do_mix_of_copy(void *arg)
{
    Mix copy = *(const Mix *)arg;
    do_mix(&copy);
}

void fake_mix(cudaStream_t stream, const char *name, uint64_t salt, const Range *ranges, int count)
{
    Mix m = { fake_hash(salt, name, strlen(name)), count, { { 0 } } };
    if (count > (int)(sizeof m.ranges / sizeof *m.ranges))
        fake_die("%s: too many ranges", name);
    memcpy(m.ranges, ranges, (size_t)count * sizeof *ranges);
    fake_do(stream, name, do_mix_of_copy, &m, sizeof m, ranges, count);
}

// --- layers --------------------------------------------------------------------------------------

static size_t bytes_of(Type type, int64_t rows, int channels)
{
    return (size_t)rows * (size_t)channels * type_size(type);
}

static size_t floats(int count) { return (size_t)count * sizeof(float); }

// What processes that share a batch tell each other about a normalisation.
static size_t shared_bytes(int channels) { return (1 + 2 * (size_t)channels) * sizeof(double); }

cudaError_t kernels_present(void) { return cudaSuccess; }

cudaError_t kernel_bias_add(cudaStream_t stream, Type type, int64_t rows, int channels,
                            const float *bias, Type x_type, const void *x, void *y)
{
    MIX(stream, __func__, 0, READ(bias, floats(channels)),
        READ(x, bytes_of(x_type, rows, channels)), WRITE(y, bytes_of(type, rows, channels)));
}

cudaError_t kernel_bias_gradient(const Launch *l, Type type, int64_t rows, int channels,
                                 const void *dy, float *dbias)
{
    MIX(l->stream, __func__, 0, READ(dy, bytes_of(type, rows, channels)),
        WRITE(l->partials, LAUNCH_PARTIAL_BYTES / 64), WRITE(dbias, floats(channels)));
}

// On its own: what a batch is normalised by does not depend on what is running.
static cudaError_t move_running(cudaStream_t stream, int channels, const NormTensors *t)
{
    size_t each = floats(channels);
    MIX(stream, __func__, 0, READ(t->mean, each), READ(t->inv_std, each),
        CHANGE(t->running_mean, each), CHANGE(t->running_var, each));
}

cudaError_t kernel_norm_statistics(const Launch *l, Type type, int64_t rows, int channels,
                                   const NormTensors *t, const void *x, const NormShared *shared)
{
    size_t bytes = bytes_of(type, rows, channels), each = floats(channels);
    if (shared)
        MIX(l->stream, __func__, 1, READ(x, bytes), WRITE(shared->mine, shared_bytes(channels)));
    fake_mix(l->stream, __func__, 0,
             RANGES(READ(x, bytes), WRITE(t->mean, each), WRITE(t->inv_std, each)));
    return move_running(l->stream, channels, t);
}

cudaError_t kernel_norm_merge_statistics(cudaStream_t stream, int channels, const NormTensors *t,
                                         const NormShared *shared)
{
    size_t each = floats(channels);
    fake_mix(stream, __func__, 0,
             RANGES(READ(shared->all, (size_t)shared->size * shared_bytes(channels)),
                    WRITE(shared->count, sizeof(double)), WRITE(t->mean, each),
                    WRITE(t->inv_std, each)));
    return move_running(stream, channels, t);
}

cudaError_t kernel_norm_apply(cudaStream_t stream, Type type, int64_t rows, int channels,
                              const NormTensors *t, const void *x, const void *residual, void *y,
                              bool relu, bool training)
{
    size_t bytes = bytes_of(type, rows, channels), each = floats(channels);
    MIX(stream, __func__, relu, READ(x, bytes), READ(residual, bytes),
        READ(training ? t->mean : t->running_mean, each),
        READ(training ? t->inv_std : t->running_var, each), READ(t->gamma, each),
        READ(t->beta, each), WRITE(y, bytes));
}

cudaError_t kernel_norm_gradients(const Launch *l, Type type, int64_t rows, int channels,
                                  const NormTensors *t, const NormBackward *b,
                                  const NormShared *shared)
{
    size_t bytes = bytes_of(type, rows, channels), each = floats(channels);
    MIX(l->stream, __func__, 0, READ(b->x, bytes), READ(b->y, bytes), READ(b->dy1, bytes),
        READ(b->dy2, bytes), READ(t->mean, each), READ(t->inv_std, each), WRITE(t->dgamma, each),
        WRITE(t->dbeta, each), WRITE(b->dresidual, bytes),
        WRITE(shared ? shared->mine : NULL, shared_bytes(channels)));
}

cudaError_t kernel_norm_merge_gradients(cudaStream_t stream, int channels, const NormTensors *t,
                                        const NormShared *shared)
{
    size_t each = floats(channels);
    MIX(stream, __func__, 0, READ(shared->all, (size_t)shared->size * shared_bytes(channels)),
        READ(t->inv_std, each), WRITE(shared->dgamma, each), WRITE(shared->dbeta, each));
}

cudaError_t kernel_norm_input_gradient(cudaStream_t stream, Type type, int64_t rows, int channels,
                                       const NormTensors *t, const NormBackward *b,
                                       const NormShared *shared)
{
    size_t bytes = bytes_of(type, rows, channels), each = floats(channels);
    MIX(stream, __func__, 0, READ(b->x, bytes), READ(b->dy1, bytes), READ(b->dy2, bytes),
        READ(shared ? shared->dgamma : t->dgamma, each),
        READ(shared ? shared->dbeta : t->dbeta, each), READ(t->gamma, each), WRITE(b->dx, bytes));
}

cudaError_t kernel_relu_forward(cudaStream_t stream, Type type, size_t count, const void *x,
                                void *y)
{
    size_t bytes = count * type_size(type);
    MIX(stream, __func__, 0, READ(x, bytes), WRITE(y, bytes));
}

cudaError_t kernel_relu_backward(cudaStream_t stream, Type type, size_t count, const void *y,
                                 const void *dy, void *dx)
{
    size_t bytes = count * type_size(type);
    MIX(stream, __func__, 0, READ(y, bytes), READ(dy, bytes), WRITE(dx, bytes));
}

cudaError_t kernel_maxpool_forward(cudaStream_t stream, const PoolSpec *spec, const void *x,
                                   void *y, uint8_t *index)
{
    Shape out = pool_output(spec);
    MIX(stream, __func__, 0, READ(x, shape_bytes(spec->x)), WRITE(y, shape_bytes(out)),
        WRITE(index, shape_count(out)));
}

cudaError_t kernel_maxpool_backward(cudaStream_t stream, const PoolSpec *spec, const uint8_t *index,
                                    const void *dy1, const void *dy2, void *dx)
{
    Shape out = pool_output(spec);
    MIX(stream, __func__, 0, READ(index, shape_count(out)), READ(dy1, shape_bytes(out)),
        READ(dy2, shape_bytes(out)), WRITE(dx, shape_bytes(spec->x)));
}

static size_t pooled_bytes(Shape x) { return bytes_of(x.type, x.n, x.c); }

cudaError_t kernel_avgpool_forward(cudaStream_t stream, Shape x, const void *in, void *out)
{
    MIX(stream, __func__, 0, READ(in, shape_bytes(x)), WRITE(out, pooled_bytes(x)));
}

cudaError_t kernel_avgpool_backward(cudaStream_t stream, Shape x, const void *dout, void *dx)
{
    MIX(stream, __func__, 0, READ(dout, pooled_bytes(x)), WRITE(dx, shape_bytes(x)));
}

// --- images and labels ---------------------------------------------------------------------------

// An image is another one in another epoch; beyond the last one, all are alike.
static void load_images(void *arg)
{
    const ImagesJob *job = arg;
    size_t in = (size_t)job->c * (size_t)job->h * (size_t)job->w;
    size_t out = shape_bytes(job->out_shape) / (size_t)job->out_shape.n;
    for (int i = 0; i < job->out_shape.n; i++) {
        bool is_image = i < job->n;
        uint64_t hash = (uint64_t)job->epoch;
        if (is_image)
            hash = fake_hash(hash, job->images + (size_t)job->ids[i] * in, in);
        fake_fill((char *)job->out + (size_t)i * out, out, is_image ? hash : 0);
        job->labels_out[i] = is_image ? job->labels[job->ids[i]] : -1;
    }
}

cudaError_t kernel_images_load(cudaStream_t stream, const ImagesJob *job)
{
    DO(stream, load_images, *job, READ(job->ids, (size_t)job->n * sizeof *job->ids),
       READ(job->images, 1), READ(job->labels, sizeof *job->labels),
       WRITE(job->out, shape_bytes(job->out_shape)),
       WRITE(job->labels_out, (size_t)job->out_shape.n * sizeof *job->labels_out));
}

typedef struct Loss {
    int rows;
    const float *logits;
    const int32_t *labels;
    Scalars *scalars;
    Stats *stats;
    bool training;
} Loss;

// Class 3 is right, always.
static void count_loss(void *arg)
{
    const Loss *l = arg;
    Stats *s = l->stats;
    bool part = l->training && l->scalars->window > 0;
    int count = 0, right = 0;
    for (int i = 0; i < l->rows; i++) {
        count += l->labels[i] >= 0;
        right += l->labels[i] == 3;
    }
    double loss = fabs((double)l->logits[0]) * count;
    if (!part || l->scalars->done == 0)
        s->batch_loss_sum = 0, s->batch_count = s->batch_correct1 = 0;
    s->loss_sum += loss;
    s->count += count;
    s->correct1 += right;
    s->correct5 += count;
    s->batch_loss_sum += loss;
    s->batch_count += count;
    s->batch_correct1 += right;
    if (part)
        l->scalars->done += count;
}

cudaError_t kernel_cross_entropy(const Launch *l, int rows, int classes, const float *logits,
                                 const int32_t *labels, Scalars *scalars, Stats *stats,
                                 float *dlogits)
{
    Loss loss = { rows, logits, labels, scalars, stats, dlogits != NULL };
    size_t bytes = floats(rows) * (size_t)classes, labels_bytes = (size_t)rows * sizeof *labels;
    fake_mix(l->stream, __func__, 0,
             RANGES(READ(logits, bytes), READ(labels, labels_bytes), WRITE(dlogits, bytes)));
    DO(l->stream, count_loss, loss, READ(logits, bytes), READ(labels, labels_bytes),
       CHANGE(scalars, sizeof *scalars), CHANGE(stats, sizeof *stats));
}

typedef struct Judge {
    int rows, classes;
    const float *logits;
    const int32_t *labels;
    Verdict *verdicts;
} Judge;

static void judge(void *arg)
{
    const Judge *j = arg;
    for (int i = 0; i < j->rows; i++) {
        const float *row = j->logits + (size_t)i * (size_t)j->classes;
        uint64_t hash = fake_hash(0, row, floats(j->classes));
        j->verdicts[i] = (Verdict){ .label = j->labels[i] };
        if (j->labels[i] < 0)
            continue;
        j->verdicts[i].prediction = (int32_t)(hash % (uint64_t)j->classes);
        j->verdicts[i].before = j->verdicts[i].prediction == j->labels[i] ? 0 : 1 + hash / 64 % 8;
        j->verdicts[i].loss = fabsf(row[0]);
        j->verdicts[i].margin = 1;
    }
}

cudaError_t kernel_judge_rows(cudaStream_t stream, int rows, int classes, const float *logits,
                              const int32_t *labels, Verdict *verdicts)
{
    Judge j = { rows, classes, logits, labels, verdicts };
    DO(stream, judge, j, READ(logits, floats(rows) * (size_t)classes),
       READ(labels, (size_t)rows * sizeof *labels),
       WRITE(verdicts, (size_t)rows * sizeof *verdicts));
}

// --- a step's end --------------------------------------------------------------------------------

typedef struct Setting {
    Scalars *to, values;
} Setting;

static void set_scalars(void *arg)
{
    const Setting *set = arg;
    Scalars values = set->values;
    if (values.loss_scale == 0) {
        values.loss_scale = set->to->loss_scale;
        values.clean = set->to->clean;
        values.skipped = set->to->skipped;
    }
    *set->to = values;
}

cudaError_t kernel_scalars_set(cudaStream_t stream, Scalars *to, Scalars values)
{
    Setting set = { to, values };
    DO(stream, set_scalars, set, CHANGE(to, sizeof *to));
}

typedef struct Adapting {
    Scalars *scalars;
    int interval;
} Adapting;

static void adapt(void *arg)
{
    const Adapting *a = arg;
    Scalars *s = a->scalars;
    if (s->skip) {
        s->loss_scale /= 2;
        s->clean = 0;
        s->skipped++;
    } else if (++s->clean >= a->interval) {
        s->loss_scale *= 2;
        s->clean = 0;
    }
}

cudaError_t kernel_loss_scale_adapt(cudaStream_t stream, Scalars *scalars, int interval)
{
    Adapting a = { scalars, interval };
    DO(stream, adapt, a, CHANGE(scalars, sizeof *scalars));
}

typedef struct Update {
    size_t count;
    float *params, *velocity;
    const float *grads;
    const Scalars *scalars;
} Update;

static void update(void *arg)
{
    const Update *u = arg;
    const Scalars s = *u->scalars;
    float shorter = s.clip_norm > 0 ? fminf(1, s.clip_norm / ((float)s.norm + 1e-6f)) : 1;
    for (size_t i = 0; i < u->count && !s.skip; i++) {
        float grad = shorter * u->grads[i] + s.weight_decay * u->params[i];
        u->velocity[i] = s.momentum * u->velocity[i] + grad;
        u->params[i] -= s.lr * u->velocity[i];
    }
}

cudaError_t kernel_sgd(cudaStream_t stream, size_t count, float *params, const float *grads,
                       float *velocity, const Scalars *scalars)
{
    Update u = { count, params, velocity, grads, scalars };
    size_t bytes = count * sizeof(float);
    DO(stream, update, u, CHANGE(params, bytes), READ(grads, bytes), CHANGE(velocity, bytes),
       READ(scalars, sizeof *scalars));
}

typedef struct Sum {
    size_t count;
    float *values;
    const float *more;
} Sum;

static void add(void *arg)
{
    const Sum *sum = arg;
    for (size_t i = 0; i < sum->count; i++)
        sum->values[i] += sum->more[i];
}

cudaError_t kernel_add_into(cudaStream_t stream, size_t count, float *values, const float *more)
{
    Sum sum = { count, values, more };
    DO(stream, add, sum, CHANGE(values, count * sizeof *values), READ(more, count * sizeof *more));
}

typedef struct Scaling {
    size_t count;
    float *grads, factor;
    Scalars *scalars;
    Stats *stats;
} Scaling;

// One by one: behind the gradients travels a wish to stop, which must keep its value. All ranks
// average as often, so they count the same overflows.
static void scale(void *arg)
{
    static int calls;
    const Scaling *s = arg;
    int each = fake_setting("FAKE_OVERFLOW", 0);
    if (each > 0 && ++calls % each == 0 && !s->scalars->skip) {
        s->scalars->skip = 1;
        s->stats->bad_gradients++;
    }
    for (size_t i = 0; i < s->count; i++)
        s->grads[i] *= s->factor / s->scalars->loss_scale;
}

cudaError_t kernel_gradients_scale(cudaStream_t stream, size_t count, float *grads, float factor,
                                   Scalars *scalars, Stats *stats)
{
    Scaling s = { count, grads, factor, scalars, stats };
    DO(stream, scale, s, CHANGE(grads, count * sizeof *grads), CHANGE(scalars, sizeof *scalars),
       CHANGE(stats, sizeof *stats));
}

typedef struct Length {
    size_t count;
    const float *grads;
    Scalars *scalars;
} Length;

static void measure(void *arg)
{
    const Length *l = arg;
    double squares = 0;
    for (size_t i = 0; i < l->count; i++)
        squares += (double)l->grads[i] * l->grads[i];
    l->scalars->norm = sqrt(squares);
}

cudaError_t kernel_gradients_norm(const Launch *launch, size_t count, const float *grads,
                                  Scalars *scalars)
{
    Length l = { count, grads, scalars };
    DO(launch->stream, measure, l, READ(grads, count * sizeof *grads),
       CHANGE(scalars, sizeof *scalars));
}

// A short number is here a 16-bit integer, of 64ths: a sum of them is one of integers (nccl.c).
typedef struct Casting {
    size_t count;
    const float *wide;
    float factor;
    int16_t *narrow;
    const int16_t *from;
    float *to;
} Casting;

static void narrow(void *arg)
{
    const Casting *c = arg;
    for (size_t i = 0; i < c->count; i++)
        c->narrow[i] = (int16_t)fmaxf(-9999, fminf(9999, rintf(c->wide[i] * c->factor * 64)));
}

static void widen(void *arg)
{
    const Casting *c = arg;
    for (size_t i = 0; i < c->count; i++)
        c->to[i] = (float)c->from[i] / 64;
}

cudaError_t kernel_values_narrow(cudaStream_t stream, Type type, size_t count, const float *values,
                                 float factor, void *short_ones)
{
    Casting c = { .count = count, .wide = values, .factor = factor, .narrow = short_ones };
    (void)type;
    DO(stream, narrow, c, READ(values, count * sizeof *values), WRITE(short_ones, count * 2));
}

cudaError_t kernel_values_widen(cudaStream_t stream, Type type, size_t count,
                                const void *short_ones, float *values)
{
    Casting c = { .count = count, .from = short_ones, .to = values };
    (void)type;
    DO(stream, widen, c, READ(short_ones, count * 2), WRITE(values, count * sizeof *values));
}
