// kernels_attention.cu - the kernels of attention_cuda.c.
#define ON_GPU
#include "ops/attention.h"

typedef struct HeadsJob {
    OpSpec spec;
    int parts;
    bool split;
    const void *from;
    void *to;
} HeadsJob;

// Copies one pack of the heads' matrices, which together have (parts, samples, heads, T) rows.
INLINE void copy_heads(const HeadsJob *j, Type type, At at)
{
    const OpSpec *s = &j->spec;
    const unsigned d = s->x.c / 3 / s->heads, tokens = s->T, samples = s->x.n / s->T;
    const unsigned head = (unsigned)at.row / tokens, sample = head / s->heads;
    const unsigned token = sample % samples * tokens + (unsigned)at.row % tokens;
    const unsigned part = sample / samples;
    At other = at;
    other.i = (((size_t)token * j->parts + part) * s->heads + head % s->heads) * d + at.column;
    Pack pack;
    load_at(type, j->from, j->split ? other : at, &pack);
    store_exact_at(type, j->to, j->split ? at : other, &pack);
}
CELLS(copy_heads, HeadsJob)

ROWS(softmax, SoftmaxJob)

INLINE void softmax_backward(const SoftmaxJob *j, Type type, size_t row)
{
    softmax(j, type, row);
    softmax_gradient(j, type, row);
}
ROWS(softmax_backward, SoftmaxJob)

void heads_copy(Ops *ops, const OpSpec *s, int parts, bool split, const void *from, void *to)
{
    HeadsJob job = { .spec = *s, .parts = parts, .split = split, .from = from, .to = to };
    size_t rows = (size_t)parts * s->x.n * s->heads;
    RUN_CELLS(copy_heads, compute(ops), matrix_of(s->x.type, rows, s->x.c / 3 / s->heads),
              &job);
}

void softmax_rows(Ops *ops, const OpSpec *s, const uint64_t *keys, float *p, void *h,
                  float *dp, void *ds)
{
    SoftmaxJob job = softmax_job(s, keys, 0);
    job.p = p;
    job.h = h;
    job.dp = dp;
    job.ds = ds;
    Matrix rows = matrix_of(s->x.type, (size_t)s->x.n * s->heads, s->T);
    if (dp)
        RUN_ROWS(softmax_backward, compute(ops), rows, &job);
    else
        RUN_ROWS(softmax, compute(ops), rows, &job);
}
