// transformer.c - a transformer's layers, except matrix products and attention.
#include "ops/attention.h"

// --- embedding -----------------------------------------------------------------------------------

typedef struct OneHotJob {
    OneHotSpec spec;
    const int32_t *batch;
    void *out;
    uint64_t *keys;
} OneHotJob;

INLINE void one_hot_row(const OneHotJob *j, Type type, size_t row)
{
    const OneHotSpec *s = &j->spec;
    const int t = (int)(row % s->T), width = s->vocab + s->T;
    const int32_t *from = j->batch + row / s->T * (2 + s->T);
    const int32_t token = from[2 + t];
    FOR_ROW(i, k, width)
        store_one(type, j->out, row * width + i, i == token || i == s->vocab + t ? 1 : 0);
    if (t == 0 && FIRST_OF_TEAM)
        j->keys[row / s->T] = (uint32_t)from[0] | (uint64_t)(uint32_t)from[1] << 32;
}
ROWS(one_hot_row, OneHotJob)

void one_hot(Ops *ops, const OneHotSpec *spec, const int32_t *batch, void *out, uint64_t *keys)
{
    OneHotJob job = { .spec = *spec, .batch = batch, .out = out, .keys = keys };
    RUN_ROWS(one_hot_row, compute(ops),
             matrix_of(spec->type, (size_t)spec->samples * spec->T, spec->vocab + spec->T), &job);
}

// --- layer normalisation -------------------------------------------------------------------------

typedef struct LayerNormJob {
    int c;
    NormTensors t;
    const void *x, *dy;
    void *out;
} LayerNormJob;

INLINE void layer_norm(const LayerNormJob *j, Type type, size_t row)
{
    const NormTensors *t = &j->t;
    const size_t begin = row * j->c;
    float sum[TEAM] = { 0 }, squares[TEAM] = { 0 };
    FOR_ROW(i, k, j->c)
        sum[k] += load_one(type, j->x, begin + i);
    const float mean = team_sum(sum) / j->c;
    FOR_ROW(i, k, j->c) {
        float d = load_one(type, j->x, begin + i) - mean;
        squares[k] += d * d;
    }
    const float inv_std = 1 / sqrtf(team_sum(squares) / j->c + 1e-5f);
    FOR_ROW(i, k, j->c) {
        float d = load_one(type, j->x, begin + i) - mean;
        store_one(type, j->out, begin + i, t->gamma[i] * d * inv_std + t->beta[i]);
    }
    if (FIRST_OF_TEAM) {
        t->mean[row] = mean;
        t->inv_std[row] = inv_std;
    }
}
ROWS(layer_norm, LayerNormJob)

// With g = gamma * dy and xhat = (x - mean) * inv_std:
//   dx = inv_std * (g - mean(g) - xhat * mean(g * xhat))
INLINE void layer_norm_dx(const LayerNormJob *j, Type type, size_t row)
{
    const float *gamma = j->t.gamma, mean = j->t.mean[row], inv_std = j->t.inv_std[row];
    const size_t begin = row * j->c;
    float sum[TEAM] = { 0 }, dot[TEAM] = { 0 };
    FOR_ROW(i, k, j->c) {
        float g = gamma[i] * load_one(type, j->dy, begin + i);
        sum[k] += g;
        dot[k] += g * (load_one(type, j->x, begin + i) - mean) * inv_std;
    }
    const float mean_g = team_sum(sum) / j->c, mean_dot = team_sum(dot) / j->c;
    FOR_ROW(i, k, j->c) {
        float hat = (load_one(type, j->x, begin + i) - mean) * inv_std;
        float g = gamma[i] * load_one(type, j->dy, begin + i);
        store_one(type, j->out, begin + i, inv_std * (g - mean_g - hat * mean_dot));
    }
}
ROWS(layer_norm_dx, LayerNormJob)

INLINE void layer_norm_sums(const LayerNormJob *j, Type type, At at, Pack *sums)
{
    const float mean = j->t.mean[at.row], inv_std = j->t.inv_std[at.row];
    Pack d, x;
    load_at(type, j->dy, at, &d);
    load_at(type, j->x, at, &x);
    FOR_LANES(k) {
        sums[0].v[k] += d.v[k];
        sums[1].v[k] += d.v[k] * (x.v[k] - mean) * inv_std;
    }
}

INLINE void layer_norm_end(const LayerNormJob *j, size_t column, const double *sums)
{
    j->t.dbeta[column] = (float)sums[0];
    j->t.dgamma[column] = (float)sums[1];
}
COLUMNS(layer_norm_sums, layer_norm_end, LayerNormJob)

void layer_norm_forward(const Op *op, const OpArgs *a)
{
    LayerNormJob job = { .c = op->y.c, .t = a->norm, .x = a->x, .out = a->y };
    RUN_ROWS(layer_norm, compute(op->ops), pixels_of(op->y), &job);
}

void layer_norm_backward(const Op *op, const OpArgs *a)
{
    LayerNormJob job = { .c = op->y.c, .t = a->norm, .x = a->x, .dy = a->dy1, .out = a->dx };
    RUN_COLUMNS(layer_norm_sums, compute(op->ops), pixels_of(op->y), &job);
    RUN_ROWS(layer_norm_dx, compute(op->ops), pixels_of(op->y), &job);
}

// --- GELU ----------------------------------------------------------------------------------------

typedef struct GeluJob {
    const void *x, *dy;     // dy: NULL in forward
    void *out;
} GeluJob;

// y = x * (1 + tanh(u)) / 2 = x * sigmoid(2u), with u = a * (x + b x^3).
INLINE void gelu(const GeluJob *j, Type type, At at)
{
    const float a = 0.7978845608f, b = 0.044715f;
    Pack x, sigmoid, out;
    load_at(type, j->x, at, &x);
    FOR_LANES(k) {
        float v = x.v[k];
        sigmoid.v[k] = 1 / (1 + exp_of(-2 * a * (v + b * v * v * v)));
        out.v[k] = v * sigmoid.v[k];
    }
    if (j->dy) {
        Pack d;
        load_at(type, j->dy, at, &d);
        FOR_LANES(k) {
            float slope = 2 * a * (1 + 3 * b * x.v[k] * x.v[k]);
            out.v[k] = d.v[k] * (sigmoid.v[k] + out.v[k] * (1 - sigmoid.v[k]) * slope);
        }
    }
    store_at(type, j->out, at, &out);
}
CELLS(gelu, GeluJob)

void gelu_forward(const Op *op, const OpArgs *a)
{
    GeluJob job = { .x = a->x, .dy = NULL, .out = a->y };
    RUN_CELLS(gelu, compute(op->ops), array_of(op->y.type, shape_count(op->y)), &job);
}

void gelu_backward(const Op *op, const OpArgs *a)
{
    GeluJob job = { .x = a->x, .dy = a->dy1, .out = a->dx };
    RUN_CELLS(gelu, compute(op->ops), array_of(op->y.type, shape_count(op->y)), &job);
}

// --- addition and dropout: a row has the T * c values of one sample ------------------------------

typedef struct AddJob {
    Mask mask;
    const void *a, *b;      // y = a + dropout(b), or if a is NULL, dropout(b)
    void *y;
} AddJob;

INLINE void drop(const Mask *m, At at, Pack *pack)
{
    const uint64_t stream = mask_stream(m, at.row);
    const uint32_t first = (uint32_t)at.column;
    FOR_LANES(k)
        pack->v[k] = masked(m, stream, first + k, pack->v[k]);
}

INLINE void add(const AddJob *j, Type type, At at)
{
    Pack y;
    load_at(type, j->b, at, &y);
    drop(&j->mask, at, &y);
    if (j->a)
        add_at(type, j->a, at, &y);
    store_at(type, j->y, at, &y);
}
CELLS(add, AddJob)

typedef struct AddGradientJob {
    Mask mask;
    const void *dy1, *dy2;
    void *da, *db;          // da: may be NULL
} AddGradientJob;

INLINE void add_gradient(const AddGradientJob *j, Type type, At at)
{
    Pack d;
    load_at(type, j->dy1, at, &d);
    if (j->dy2) {
        add_at(type, j->dy2, at, &d);
        FOR_LANES(k)
            d.v[k] = rounded(type, d.v[k]);
    }
    if (j->da)
        store_exact_at(type, j->da, at, &d);
    drop(&j->mask, at, &d);
    store_at(type, j->db, at, &d);
}
CELLS(add_gradient, AddGradientJob)

static Matrix samples_of(const OpSpec *s)
{
    return matrix_of(s->x.type, s->x.n / s->T, (size_t)s->T * s->x.c);
}

void add_forward(const Op *op, const OpArgs *a)
{
    AddJob job = { .mask = mask_of(op->spec.dropout, a->keys), .a = a->residual, .b = a->x,
                   .y = a->y };
    RUN_CELLS(add, compute(op->ops), samples_of(&op->spec), &job);
}

void add_backward(const Op *op, const OpArgs *a)
{
    AddGradientJob job = { .mask = mask_of(op->spec.dropout, a->keys), .dy1 = a->dy1,
                           .dy2 = a->dy2, .da = a->dresidual, .db = a->dx };
    RUN_CELLS(add_gradient, compute(op->ops), samples_of(&op->spec), &job);
}
