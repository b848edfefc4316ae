// layers.c - ReLU.
#include "ops/loops.h"

typedef struct ReluJob {
    const void *y, *dy;
    void *dx;
} ReluJob;

// NaN in y lets the gradient through, as in PyTorch.
INLINE void relu(const ReluJob *j, Type type, At at)
{
    Pack y, d;
    load_at(type, j->y, at, &y);
    load_at(type, j->dy, at, &d);
    FOR_LANES(k)
        d.v[k] = y.v[k] <= 0 ? 0 : d.v[k];
    store_exact_at(type, j->dx, at, &d);
}
CELLS(relu, ReluJob)

static void run(const Op *op, const ReluJob *job)
{
    RUN_CELLS(relu, compute(op->ops), array_of(op->y.type, shape_count(op->y)), job);
}

// With y = dy = x, relu gives x <= 0 ? 0 : x.
void relu_forward(const Op *op, const OpArgs *a)
{
    ReluJob job = { .y = a->x, .dy = a->x, .dx = a->y };
    run(op, &job);
}

void relu_backward(const Op *op, const OpArgs *a)
{
    ReluJob job = { .y = a->y, .dy = a->dy1, .dx = a->dx };
    run(op, &job);
}
