// attention.h - dropout, and the softmax of a row of attention scores, with its gradient.
// softmax and softmax_gradient compute one row; attention_cpu.c and kernels_attention.cu call them
// for all rows.
#pragma once
#include "ops/loops.h"

// The dropout of a layer. limit 0: nothing is dropped.
typedef struct Mask {
    const uint64_t *keys;   // (samples)
    int layer;
    uint32_t limit;
    float scale;
} Mask;

static inline Mask mask_of(Dropout d, const uint64_t *keys)
{
    bool drops = keys && d.rate > 0;
    Mask mask = { .keys = keys, .layer = d.layer, .limit = drops ? dropout_limit(d.rate) : 0,
                  .scale = drops ? 1 / (1 - d.rate) : 1 };
    return mask;
}

// A sample's argument `stream` for dropout_keeps.
INLINE uint64_t mask_stream(const Mask *m, size_t sample)
{
    return m->limit ? dropout_stream(m->keys[sample], m->layer) : 0;
}

INLINE float masked(const Mask *m, uint64_t stream, uint32_t position, float value)
{
    return kept(m->limit == 0 || dropout_keeps(stream, position, m->limit), value * m->scale);
}

// A job on the (T, T) matrices of all heads of all samples; on a CPU, of one head of one sample.
typedef struct SoftmaxJob {
    int T, heads;
    int stride;             // row stride in elements; on a CPU, a multiple of TEAM
    float scale;
    Mask mask;
    size_t first;           // index of the first row, counted over all heads of all samples
    float *p;               // at first q k^T, then P
    void *h;
    float *dp;              // at first dH, then dP
    void *ds;
} SoftmaxJob;

static inline SoftmaxJob softmax_job(const OpSpec *s, const uint64_t *keys, size_t first)
{
    SoftmaxJob job = { .T = s->T, .heads = s->heads, .stride = s->T,
                       .scale = 1 / sqrtf((float)(s->x.c / 3 / s->heads)),
                       .mask = mask_of(s->dropout, keys), .first = first };
    return job;
}

// A row of a (T, T) matrix: a token's values for all tokens of its sample.
typedef struct HeadRow {
    int token;
    size_t begin;           // index of the row's first element in memory
    uint64_t stream;        // the sample's stream, for dropout_keeps
    uint32_t position;      // position of the row's first element, for dropout_keeps
} HeadRow;

INLINE HeadRow head_row(const SoftmaxJob *j, size_t row)
{
    HeadRow r;
    r.token = (int)(row % j->T);
    r.begin = (row - j->first) * j->stride;
    r.stream = mask_stream(&j->mask, row / j->T / j->heads);
    r.position = (uint32_t)(row % ((size_t)j->heads * j->T) * j->T);
    return r;
}

// P = softmax(scale * q k^T) up to the row's own token, then 0; H = dropout(P).
INLINE void softmax(const SoftmaxJob *j, Type type, size_t row)
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

// dS = P * (dP - sum(P * dP)) * scale, with dP = dropout'(dH).
INLINE void softmax_gradient(const SoftmaxJob *j, Type type, size_t row)
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
