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

void relu_backward(Ops *ops, Shape shape, const void *y, const void *dy, void *dx)
{
    ReluJob job = { .y = y, .dy = dy, .dx = dx };
    RUN_CELLS(relu, compute(ops), array_of(shape.type, shape_count(shape)), &job);
}

// relu_backward with y = dy = x gives max(x, 0).
void relu_forward(Ops *ops, Shape shape, const void *x, void *y)
{
    relu_backward(ops, shape, x, x, y);
}
