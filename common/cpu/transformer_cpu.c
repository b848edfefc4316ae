// transformer_cpu.c - the layers of a transformer. oneDNN multiplies; the rest are short loops.
#include "check.h"
#include "cpu/ops_cpu.h"
#include "cpu/short_types.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

// e^x, within two units in the last place. Without branches, so that loops become vector code.
SPECIALIZED float exp_of(float x)
{
    x = x < -87 ? -87 : x > 88 ? 88 : x;
    float shifted = x * 0x1.715476p0f + 0x1.8p23f;      // rounds x / ln 2: the last bits of shifted
    float n = shifted - 0x1.8p23f;
    float r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
    float p = 1 / 120.0f + r * (1 / 720.0f + r * (1 / 5040.0f));
    p = 1 + r * (1 + r * (0.5f + r * (1 / 6.0f + r * (1 / 24.0f + r * p))));
    return p * float_of((bits_of(shifted) + 127) << 23);
}

void one_hot(Ops *ops, const OneHotSpec *s, const int32_t *batch, void *out, uint64_t *keys)
{
    size_t width = (size_t)s->vocab + s->T;
#pragma omp parallel for schedule(static)
    for (int n = 0; n < s->samples; n++) {
        const int32_t *from = batch + (size_t)n * (2 + s->T);
        memcpy(&keys[n], from, sizeof *keys);
        memset(at(s->type, out, n * s->T * width), 0, s->T * width * type_size(s->type));
        for (int t = 0; t < s->T; t++) {
            size_t row = ((size_t)n * s->T + t) * width;
            store(s->type, out, row + from[2 + t], 1);
            store(s->type, out, row + s->vocab + t, 1);
        }
    }
}

// --- layer normalisation -------------------------------------------------------------------------

SPECIALIZED void row_forward(Type type, int c, const NormTensors *t, size_t row, const void *x,
                             void *y)
{
    float sum = 0, squares = 0;
    x = at(type, x, row * c);
    y = at(type, y, row * c);
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < c; i++)
        sum += load(type, x, i);
    float mean = sum / c;
#pragma omp simd reduction(+ : squares)
    for (int i = 0; i < c; i++)
        squares += (load(type, x, i) - mean) * (load(type, x, i) - mean);
    float inv_std = 1 / sqrtf(squares / c + 1e-5f);
#pragma omp simd
    for (int i = 0; i < c; i++)
        store(type, y, i, t->gamma[i] * (load(type, x, i) - mean) * inv_std + t->beta[i]);
    t->mean[row] = mean;
    t->inv_std[row] = inv_std;
}

void layer_norm_forward(Ops *ops, Shape s, const NormTensors *t, const void *x, void *y)
{
#pragma omp parallel for schedule(static)
    for (int row = 0; row < s.n; row++)
        BY_TYPE(s.type, row_forward, s.c, t, row, x, y);
}

// With g = gamma * dy and xhat = (x - mean) * inv_std:
//   dx = inv_std * (g - mean(g) - xhat * mean(g * xhat))
SPECIALIZED void row_backward(Type type, int c, const NormTensors *t, size_t row, const void *x,
                              const void *dy, void *dx)
{
    float sum = 0, dot = 0, mean = t->mean[row], inv_std = t->inv_std[row];
    x = at(type, x, row * c);
    dy = at(type, dy, row * c);
    dx = at(type, dx, row * c);
#pragma omp simd reduction(+ : sum, dot)
    for (int i = 0; i < c; i++) {
        float g = t->gamma[i] * load(type, dy, i);
        sum += g;
        dot += g * (load(type, x, i) - mean) * inv_std;
    }
#pragma omp simd
    for (int i = 0; i < c; i++) {
        float hat = (load(type, x, i) - mean) * inv_std;
        store(type, dx, i, inv_std * (t->gamma[i] * load(type, dy, i) - (sum + hat * dot) / c));
    }
}

void layer_norm_backward(Ops *ops, Shape s, const NormTensors *t, const void *x, const void *dy,
                         void *dx)
{
    ops_add_rows(s.type, s.n, s.c, dy, t->dbeta, x, t);
#pragma omp parallel for schedule(static)
    for (int row = 0; row < s.n; row++)
        BY_TYPE(s.type, row_backward, s.c, t, row, x, dy, dx);
}

// --- GELU ----------------------------------------------------------------------------------------

enum { CHUNK = 4096 };      // values that a thread takes at a time

// Since (1 + tanh(u)) / 2 = 1 / (1 + e^-2u), y = x * sigmoid(2u) with u = a * (x + b x^3).
// dy NULL: out is y, else dx.
SPECIALIZED void gelu_chunk(Type type, size_t begin, size_t end, const void *x, const void *dy,
                            void *out)
{
    const float a = 0.7978845608f, b = 0.044715f;
#pragma omp simd
    for (size_t i = begin; i < end; i++) {
        float v = load(type, x, i), sigmoid = 1 / (1 + exp_of(-2 * a * (v + b * v * v * v)));
        float slope = 2 * a * (1 + 3 * b * v * v);
        float dydx = sigmoid + v * sigmoid * (1 - sigmoid) * slope;
        store(type, out, i, dy ? load(type, dy, i) * dydx : v * sigmoid);
    }
}

void gelu_backward(Ops *ops, Shape s, const void *x, const void *dy, void *dx)
{
    size_t count = shape_count(s);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < count; i += CHUNK) {
        size_t end = i + CHUNK < count ? i + CHUNK : count;
        if (dy)
            BY_TYPE(s.type, gelu_chunk, i, end, x, dy, dx);
        else
            BY_TYPE(s.type, gelu_chunk, i, end, x, NULL, dx);
    }
}

void gelu_forward(Ops *ops, Shape s, const void *x, void *y) { gelu_backward(ops, s, x, NULL, y); }

// --- addition and dropout ------------------------------------------------------------------------

// The dropout of one sample. limit 0: nothing is dropped.
typedef struct Mask {
    uint64_t stream;
    uint32_t limit;
    float scale;
} Mask;

static Mask mask_of(Dropout d, const uint64_t *keys, int sample)
{
    if (!keys || d.rate == 0)
        return (Mask){ .scale = 1 };
    return (Mask){ dropout_stream(keys[sample], d.layer), dropout_limit(d.rate), 1 / (1 - d.rate) };
}

SPECIALIZED float masked(Mask m, uint32_t position, float value)
{
    return m.limit == 0 || dropout_keeps(m.stream, position, m.limit) ? value * m.scale : 0;
}

SPECIALIZED void sample_forward(Type type, size_t begin, size_t count, Mask m, const void *a,
                                const void *b, void *y)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        store(type, y, begin + i, (a ? load(type, a, begin + i) : 0) +
                                      masked(m, (uint32_t)i, load(type, b, begin + i)));
}

void add_forward(Ops *ops, const AddSpec *s, const void *a, const void *b, const uint64_t *keys,
                 void *y)
{
    size_t each = (size_t)s->T * s->shape.c;
#pragma omp parallel for schedule(static)
    for (int n = 0; n < s->shape.n / s->T; n++)
        BY_TYPE(s->shape.type, sample_forward, n * each, each, mask_of(s->dropout, keys, n), a, b,
                y);
}

SPECIALIZED void sample_backward(Type type, size_t begin, size_t count, Mask m, const void *dy1,
                                 const void *dy2, void *da, void *db)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++) {
        float d = load(type, dy1, begin + i);
        d = dy2 ? rounded(type, d + load(type, dy2, begin + i)) : d;
        store(type, db, begin + i, masked(m, (uint32_t)i, d));
        if (da)
            store_exact(type, da, begin + i, d);
    }
}

void add_backward(Ops *ops, const AddSpec *s, const void *dy1, const void *dy2,
                  const uint64_t *keys, void *da, void *db)
{
    size_t each = (size_t)s->T * s->shape.c;
#pragma omp parallel for schedule(static)
    for (int n = 0; n < s->shape.n / s->T; n++)
        BY_TYPE(s->shape.type, sample_backward, n * each, each, mask_of(s->dropout, keys, n), dy1,
                dy2, da, db);
}

// --- attention -----------------------------------------------------------------------------------
//
// A thread takes a head of a sample at a time, so that its T x T matrices stay in the cache:
//
//   P = softmax(q k^T / sqrt(d))   H = dropout(P)   y = H v
//   dv = H^T dy   dH = dy v^T   dP = dropout'(dH)   dS = P * (dP - sum(P * dP)) / sqrt(d)
//   dq = dS k   dk = dS^T q
//
// Backward computes P again rather than keep it. P and dH are f32; H and dS, which are multiplied,
// have the activations' type.

enum { SCORES, VALUES, D_VALUES, D_PROBS, D_QUERIES, D_KEYS, PRODUCTS };

// One thread's.
typedef struct Head {
    DnnPrimitive product[PRODUCTS];
    float *probs, *dprobs;      // (T, T)
    void *factor;               // (T, T) H, then dS
    void *scratch;
} Head;

struct Attention {
    Ops *ops;
    AttentionSpec spec;         // type: f32 if the type is emulated
    Type type;                  // as callers see it
    int samples, c, d;          // d: numbers of a head
    int threads;
    Head *heads;
    void *memory;
};

// c = a b. Makes *scratch at least as large as the product needs.
static DnnPrimitive head_product(Ops *ops, DnnMd a, DnnMd b, DnnMd c, size_t *scratch)
{
    dnnl_primitive_attr_t attr = dnn_own_scratch();
    dnnl_primitive_desc_t desc = dnn_product_desc(ops->engine, a, b, NULL, c, attr);
    DnnMd own = dnn_md_copy(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
    size_t bytes = dnnl_memory_desc_get_size(own);
    DnnPrimitive p = dnn_primitive(
        ops->engine, desc, 4,
        (int[]){ DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD },
        (DnnMd[]){ a, b, c, own });
    dnn_md_free(own);
    DNN_CHECK(dnnl_primitive_attr_destroy(attr));
    *scratch = bytes > *scratch ? bytes : *scratch;
    return p;
}

static void plan_head(Attention *a, Head *head, size_t *scratch)
{
    const int T = a->spec.T, d = a->d, c = a->c;
    const dnnl_data_type_t type = a->spec.qkv.type == TYPE_F32 ? dnnl_f32 : dnnl_bf16;
    DnnMd in = dnn_matrix(T, d, 3 * c, 1, type), in_turned = dnn_matrix(d, T, 1, 3 * c, type);
    DnnMd square = dnn_matrix(T, T, T, 1, type), square_turned = dnn_matrix(T, T, 1, T, type);
    DnnMd out = dnn_matrix(T, d, c, 1, type), sums = dnn_matrix(T, T, T, 1, dnnl_f32);
    const DnnMd factors[PRODUCTS][3] = {
        [SCORES] = { in, in_turned, sums },      [VALUES] = { square, in, out },
        [D_VALUES] = { square_turned, out, in }, [D_PROBS] = { out, in_turned, sums },
        [D_QUERIES] = { square, in, in },        [D_KEYS] = { square_turned, in, in },
    };
    for (int i = 0; i < PRODUCTS; i++)
        head->product[i] = head_product(a->ops, factors[i][0], factors[i][1], factors[i][2],
                                        scratch);
    DnnMd all[] = { in, in_turned, square, square_turned, out, sums };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dnn_md_free(all[i]);
}

Attention *attention_new(Ops *ops, const AttentionSpec *spec)
{
    Attention *a = xcalloc(1, sizeof *a);
    *a = (Attention){ .ops = ops, .spec = *spec, .type = spec->qkv.type,
                      .samples = spec->qkv.n / spec->T, .c = spec->qkv.c / 3,
                      .d = spec->qkv.c / 3 / spec->heads,
                      .threads = device_threads(ops->device) };
    if (ops_emulates(ops->device, a->type)) {
        a->spec.qkv.type = TYPE_F32;
        ops_need_wide(ops, 2 * shape_count(spec->qkv) + (size_t)spec->qkv.n * a->c);
    }
    size_t scratch = 0, square = round_up((size_t)spec->T * spec->T * sizeof(float), 64);
    a->heads = xcalloc(a->threads, sizeof *a->heads);
    omp_set_num_threads(1);     // each product runs in one thread
    for (int i = 0; i < a->threads; i++)
        plan_head(a, &a->heads[i], &scratch);
    omp_set_num_threads(a->threads);
    size_t each = 3 * square + round_up(scratch, 64);
    char *at = a->memory = device_alloc(ops->device, a->threads * each);
    for (int i = 0; i < a->threads; i++, at += each) {
        a->heads[i].probs = (float *)at;
        a->heads[i].dprobs = (float *)(at + square);
        a->heads[i].factor = at + 2 * square;
        a->heads[i].scratch = at + 3 * square;
    }
    return a;
}

void attention_free(Attention *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->threads; i++)
        for (int k = 0; k < PRODUCTS; k++)
            dnn_primitive_free(&a->heads[i].product[k]);
    device_free(a->ops->device, a->memory);
    free(a->heads);
    free(a);
}

static void multiply(const Attention *a, const Head *head, int product, const void *x,
                     const void *y, void *z)
{
    dnn_run(&head->product[product], a->ops->stream,
            (void *[]){ (void *)x, (void *)y, z, head->scratch });
}

// Row t of P in place of q k^T, and of H. position: of the row's first number.
SPECIALIZED void softmax_row(Type type, int t, int T, float scale, Mask m, uint32_t position,
                             float *p, void *h)
{
    float most = p[0], sum = 0;
#pragma omp simd reduction(max : most)
    for (int s = 0; s <= t; s++)
        most = p[s] > most ? p[s] : most;
#pragma omp simd reduction(+ : sum)
    for (int s = 0; s <= t; s++) {
        p[s] = exp_of((p[s] - most) * scale);
        sum += p[s];
    }
    float share = 1 / sum;
#pragma omp simd
    for (int s = 0; s < T; s++) {
        p[s] = s <= t ? p[s] * share : 0;
        store(type, h, s, masked(m, position + s, p[s]));
    }
}

// Row t of dS.
SPECIALIZED void softmax_gradient(Type type, int t, int T, float scale, Mask m, uint32_t position,
                                  const float *p, float *dp, void *ds)
{
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int s = 0; s <= t; s++) {
        dp[s] = masked(m, position + s, dp[s]);
        dot += p[s] * dp[s];
    }
#pragma omp simd
    for (int s = 0; s < T; s++)
        store(type, ds, s, s <= t ? p[s] * (dp[s] - dot) * scale : 0);
}

// The parts of head h of sample n in qkv (and dqkv), and in y (and dy).
static void *head_in(const Attention *a, const void *qkv, int n, int h, int part)
{
    return at(a->spec.qkv.type, qkv, (size_t)n * a->spec.T * 3 * a->c + part * a->c + h * a->d);
}

static void *head_out(const Attention *a, const void *y, int n, int h)
{
    return at(a->spec.qkv.type, y, (size_t)n * a->spec.T * a->c + h * a->d);
}

// P and H.
static void head_probabilities(const Attention *a, const Head *head, const void *qkv, int n, int h,
                               Mask m)
{
    const int T = a->spec.T;
    const Type type = a->spec.qkv.type;
    multiply(a, head, SCORES, head_in(a, qkv, n, h, 0), head_in(a, qkv, n, h, 1), head->probs);
    for (int t = 0; t < T; t++)
        BY_TYPE(type, softmax_row, t, T, 1 / sqrtf(a->d), m, (uint32_t)((h * T + t) * T),
                head->probs + t * T, at(type, head->factor, t * T));
}

static void head_backward(const Attention *a, const Head *head, const void *qkv, const void *dy,
                          int n, int h, Mask m, void *dqkv)
{
    const int T = a->spec.T;
    const Type type = a->spec.qkv.type;
    const void *q = head_in(a, qkv, n, h, 0), *k = head_in(a, qkv, n, h, 1);
    const void *v = head_in(a, qkv, n, h, 2), *d = head_out(a, dy, n, h);
    head_probabilities(a, head, qkv, n, h, m);
    multiply(a, head, D_VALUES, head->factor, d, head_in(a, dqkv, n, h, 2));
    multiply(a, head, D_PROBS, d, v, head->dprobs);
    for (int t = 0; t < T; t++)
        BY_TYPE(type, softmax_gradient, t, T, 1 / sqrtf(a->d), m, (uint32_t)((h * T + t) * T),
                head->probs + t * T, head->dprobs + t * T, at(type, head->factor, t * T));
    multiply(a, head, D_QUERIES, head->factor, k, head_in(a, dqkv, n, h, 0));
    multiply(a, head, D_KEYS, head->factor, q, head_in(a, dqkv, n, h, 1));
}

// Where an emulated attention begins its f32 copies; else NULL.
static float *wide(const Attention *a)
{
    return a->type != a->spec.qkv.type ? a->ops->wide : NULL;
}

void attention_forward(Attention *a, const void *qkv, const uint64_t *keys, void *y)
{
    size_t count = shape_count(a->spec.qkv);
    float *next = wide(a);
    qkv = ops_widened(a->ops, a->type, count, qkv, &next);
    void *to = next ? next : y;
#pragma omp parallel for schedule(static) num_threads(a->threads)
    for (int i = 0; i < a->samples * a->spec.heads; i++) {
        const Head *head = &a->heads[omp_get_thread_num()];
        int n = i / a->spec.heads, h = i % a->spec.heads;
        head_probabilities(a, head, qkv, n, h, mask_of(a->spec.dropout, keys, n));
        multiply(a, head, VALUES, head->factor, head_in(a, qkv, n, h, 2), head_out(a, to, n, h));
    }
    if (next)
        values_narrow(a->ops, compute(a->ops), a->type, count / 3, next, 1, y);
}

void attention_backward(Attention *a, const void *qkv, const uint64_t *keys, const void *dy,
                        void *dqkv)
{
    size_t count = shape_count(a->spec.qkv);
    float *next = wide(a);
    qkv = ops_widened(a->ops, a->type, count, qkv, &next);
    dy = ops_widened(a->ops, a->type, count / 3, dy, &next);
    void *to = next ? next : dqkv;
#pragma omp parallel for schedule(static) num_threads(a->threads)
    for (int i = 0; i < a->samples * a->spec.heads; i++) {
        int n = i / a->spec.heads, h = i % a->spec.heads;
        head_backward(a, &a->heads[omp_get_thread_num()], qkv, dy, n, h,
                      mask_of(a->spec.dropout, keys, n), to);
    }
    if (next)
        values_narrow(a->ops, compute(a->ops), a->type, count, next, 1, dqkv);
}
