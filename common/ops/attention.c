// attention.c - causal self-attention. For each head, with matrices (T, T) in capitals:
//
//   forward    S = q k^T   P = softmax(S / sqrt(d))   H = dropout(P)   y = H v
//   backward   S, P and H again   dH = dy v^T   dP = dropout'(dH)
//              dS = P * (dP - sum(P * dP)) / sqrt(d)   dq = dS k   dk = dS^T q   dv = H^T dy
//
// S, P and dH are f32; H and dS, which are multiplied, have the activations' type. Nothing is kept
// from forward to backward, so all layers share this memory.
//
// A group of samples is computed at a time, in scratch memory (ops_together): there each head has
// matrices of its own, as products of matrices need them. T is rounded up to whole packs, for
// FOR_PACKS. The tokens beyond are zeros, and no other token sees them.
#include "ops/dropout.h"

#include <stdlib.h>

// The parts of scratch memory: first matrices (T, T), then matrices (T, d). Y is also dy.
enum { S, DH, H, DS, Q, K, V, Y, DQ, DK, DV, PARTS };

typedef struct HeadsJob {
    OpSpec spec;
    int T;                  // rounded up
    int first, count;       // samples of the group
    float scale;
    Mask mask;
    float *p;               // S, then P
    void *h;
    float *dp;              // dH, then dP
    void *ds;
    int parts;              // to copy: 3 (q, k and v) or 1 (y)
    const void *from;
    void *to;
} HeadsJob;

typedef struct Attention {
    HeadsJob job;
    Product *scores;        // (T, T) = a (T, d) times b (T, d) turned
    Product *rows;          // (T, d) = a (T, T) times b (T, d)
    Product *columns;       // (T, d) = a (T, T) turned, times b (T, d)
    size_t at[PARTS];       // in scratch memory
} Attention;

// --- copies between tokens (samples, T, parts, heads, d) and the group (parts, heads, T, d) ------

typedef struct Copy {
    At tokens, group;
    bool beyond;            // the last token
} Copy;

// Rows are in the order of the tokens, so that these are read or written one after the other.
INLINE Copy copy_at(const HeadsJob *j, At at)
{
    const OpSpec *s = &j->spec;
    const unsigned heads = s->heads, d = s->x.c / 3 / heads, row = (unsigned)at.row;
    const unsigned rest = row / heads, part = rest % j->parts, token = rest / j->parts;
    const unsigned sample = token / j->T, t = token % j->T, head = row % heads;
    Copy c = { at, at, t >= (unsigned)s->T };
    c.tokens.i = ((((size_t)j->first + sample) * s->T + t) * j->parts + part) * heads + head;
    c.tokens.i = c.tokens.i * d + at.column;
    c.group.i = (((size_t)part * j->count + sample) * heads + head) * j->T + t;
    c.group.i = c.group.i * d + at.column;
    return c;
}

INLINE void split_heads(const HeadsJob *j, Type type, At at)
{
    const Copy c = copy_at(j, at);
    Pack pack;
    FOR_LANES(k)
        pack.v[k] = 0;
    if (!c.beyond)
        load_at(type, j->from, c.tokens, &pack);
    store_exact_at(type, j->to, c.group, &pack);
}
CELLS(split_heads, HeadsJob)

INLINE void join_heads(const HeadsJob *j, Type type, At at)
{
    const Copy c = copy_at(j, at);
    Pack pack;
    load_at(type, j->from, c.group, &pack);
    if (!c.beyond)
        store_exact_at(type, j->to, c.tokens, &pack);
}
CELLS(join_heads, HeadsJob)

// --- a row of the group's matrices (T, T): a token's numbers for all tokens of its sample --------

typedef struct HeadRow {
    int token;
    size_t begin;           // in memory
    uint64_t stream;        // of dropout
    uint32_t position;
} HeadRow;

INLINE HeadRow head_row(const HeadsJob *j, size_t row)
{
    const OpSpec *s = &j->spec;
    const int head = (int)(row / j->T);
    HeadRow r;
    r.token = (int)(row % j->T);
    r.begin = row * j->T;
    r.stream = mask_stream(&j->mask, j->first + head / s->heads);
    r.position = (uint32_t)(head % s->heads * s->T + r.token) * s->T;
    return r;
}

// P up to the row's own token, then 0; and H.
INLINE void softmax(const HeadsJob *j, Type type, size_t row)
{
    const HeadRow r = head_row(j, row);
    float *p = j->p + r.begin, most[TEAM], sum[TEAM] = { 0 };
    for (int k = 0; k < TEAM; k++)
        most[k] = -INFINITY;
    FOR_PACKS(first, k, r.token + 1) {
        float score = p[first + k];
        score = first + k <= r.token ? score : -INFINITY;
        most[k] = score > most[k] ? score : most[k];
    }
    const float top = team_max(most);
    FOR_PACKS(first, k, r.token + 1) {
        float part = exp_of((p[first + k] - top) * j->scale);
        part = kept(first + k <= r.token, part);
        p[first + k] = part;
        sum[k] += part;
    }
    const float share = 1 / team_sum(sum);
    FOR_PACKS(first, k, j->T) {
        float part = kept(first + k <= r.token, p[first + k] * share);
        p[first + k] = part;
        store_one(type, j->h, r.begin + first + k,
                  masked(&j->mask, r.stream, r.position + first + k, part));
    }
}
ROWS(softmax, HeadsJob)

INLINE void softmax_gradient(const HeadsJob *j, Type type, size_t row)
{
    const HeadRow r = head_row(j, row);
    float *p = j->p + r.begin, *dp = j->dp + r.begin, sum[TEAM] = { 0 };
    FOR_PACKS(first, k, r.token + 1) {
        float d = masked(&j->mask, r.stream, r.position + first + k, dp[first + k]);
        d = kept(first + k <= r.token, d);
        dp[first + k] = d;
        sum[k] += p[first + k] * d;
    }
    const float dot = team_sum(sum);
    FOR_PACKS(first, k, j->T) {
        float d = p[first + k] * (dp[first + k] - dot) * j->scale;
        store_one(type, j->ds, r.begin + first + k, kept(first + k <= r.token, d));
    }
}

INLINE void softmax_backward(const HeadsJob *j, Type type, size_t row)
{
    softmax(j, type, row);
    softmax_gradient(j, type, row);
}
ROWS(softmax_backward, HeadsJob)

// --- op.h ----------------------------------------------------------------------------------------

static int samples_of(const OpSpec *s) { return s->x.n / s->T; }

static int head_width(const OpSpec *s) { return s->x.c / 3 / s->heads; }

void *attention_new(const Op *op, const void *like)
{
    const OpSpec *s = &op->spec;
    const Type type = s->x.type;
    const int T = (int)round_up(s->T, TEAM), d = head_width(s);
    const size_t square = (size_t)T * T, narrow = (size_t)T * d * type_size(type);
    const size_t each = 2 * square * (sizeof(float) + type_size(type)) + (PARTS - Q) * narrow;
    Attention *a = (Attention *)xcalloc(1, sizeof *a);
    HeadsJob *j = &a->job;
    j->spec = *s;
    j->T = T;
    j->count = (ops_together(op->ops, samples_of(s) * s->heads, each) + s->heads - 1) / s->heads;
    j->scale = 1 / sqrtf((float)d);
    size_t next = 0;
    for (int i = 0; i < PARTS; i++) {
        next = i <= Q ? round_up(next, 256) : next;     // the parts from Q on have no gaps
        a->at[i] = next;
        next += (size_t)j->count * s->heads * (i < H   ? square * sizeof(float)
                                               : i < Q ? square * type_size(type)
                                                       : narrow);
    }
    ops_need_scratch(op->ops, next);
    const int batch = j->count * s->heads;
    ProductSpec scores = { .m = T, .n = T, .k = d, .batch = batch, .b_turned = true,
                           .in = type, .out = TYPE_F32 };
    ProductSpec rows = { .m = T, .n = d, .k = T, .batch = batch, .in = type, .out = type };
    ProductSpec columns = rows;
    columns.a_turned = true;
    a->scores = product_new(op->ops, &scores);
    a->rows = product_new(op->ops, &rows);
    a->columns = product_new(op->ops, &columns);
    return a;
}

void attention_free(void *own)
{
    Attention *a = (Attention *)own;
    product_free(a->scores);
    product_free(a->rows);
    product_free(a->columns);
    free(a);
}

static void *part(const Op *op, int which)
{
    const Attention *a = (const Attention *)op->own;
    return (char *)ops_scratch(op->ops) + a->at[which];
}

// c = a b, all three in scratch memory.
static void multiply(const Op *op, const Product *product, int a, int b, int c)
{
    product_run(product, part(op, a), part(op, b), NULL, part(op, c));
}

// The job of the group that begins with this sample. A last group of fewer samples begins earlier
// instead, and computes some again.
static HeadsJob group_job(const Op *op, const OpArgs *args, int sample)
{
    const OpSpec *s = &op->spec;
    HeadsJob job = ((const Attention *)op->own)->job;
    const int last = samples_of(s) - job.count;
    job.first = sample < last ? sample : last;
    job.mask = mask_of(s->dropout, args->keys);
    job.p = (float *)part(op, S);
    job.h = part(op, H);
    job.dp = (float *)part(op, DH);
    job.ds = part(op, DS);
    return job;
}

static Matrix rows_of(const HeadsJob *j, int parts, int columns)
{
    return matrix_of(j->spec.x.type, (size_t)parts * j->count * j->spec.heads * j->T, columns);
}

static void split(const Op *op, HeadsJob *j, int parts, const void *from, int to)
{
    j->parts = parts, j->from = from, j->to = part(op, to);
    RUN_CELLS(split_heads, compute(op->ops), rows_of(j, parts, head_width(&j->spec)), j);
}

static void join(const Op *op, HeadsJob *j, int parts, int from, void *to)
{
    j->parts = parts, j->from = part(op, from), j->to = to;
    RUN_CELLS(join_heads, compute(op->ops), rows_of(j, parts, head_width(&j->spec)), j);
}

void attention_forward(const Op *op, const OpArgs *args)
{
    const Attention *a = (const Attention *)op->own;
    for (int n = 0; n < samples_of(&op->spec); n += a->job.count) {
        HeadsJob job = group_job(op, args, n);
        split(op, &job, 3, args->x, Q);
        multiply(op, a->scores, Q, K, S);
        RUN_ROWS(softmax, compute(op->ops), rows_of(&job, 1, job.T), &job);
        multiply(op, a->rows, H, V, Y);
        join(op, &job, 1, Y, args->y);
    }
}

void attention_backward(const Op *op, const OpArgs *args)
{
    const Attention *a = (const Attention *)op->own;
    for (int n = 0; n < samples_of(&op->spec); n += a->job.count) {
        HeadsJob job = group_job(op, args, n);
        split(op, &job, 3, args->x, Q);
        split(op, &job, 1, args->dy1, Y);
        multiply(op, a->scores, Q, K, S);
        multiply(op, a->scores, Y, V, DH);
        RUN_ROWS(softmax_backward, compute(op->ops), rows_of(&job, 1, job.T), &job);
        multiply(op, a->rows, DS, K, DQ);
        multiply(op, a->columns, DS, Q, DK);
        multiply(op, a->columns, H, Y, DV);
        join(op, &job, 3, DQ, args->dx);
    }
}
