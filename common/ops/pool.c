// pool.c - max pooling (for its gradient see pool.h), and the mean over an image.
#include "ops/pool.h"

// The largest value of a window and its position: the first, if several. NaN is the largest; of
// several NaNs, the last.
INLINE void maxpool(const PoolJob *j, Type type, At at)
{
    const OpSpec *s = &j->s;
    Place p = place_of(&j->out, at);
    int h0 = p.h * s->stride - s->pad, w0 = p.w * s->stride - s->pad;
    const float first = (h0 < 0 ? -h0 : 0) * s->kernel_h + (w0 < 0 ? -w0 : 0);
    Pack x, best, where, new_best, new_where;
    FOR_LANES(k) {
        best.v[k] = -INFINITY;
        where.v[k] = first;
    }
    for (int h = h0 < 0 ? 0 : h0; h < h0 + s->kernel_h && h < s->x.h; h++)
        for (int w = w0 < 0 ? 0 : w0; w < w0 + s->kernel_h && w < s->x.w; w++) {
            float position = (h - h0) * s->kernel_h + w - w0;
            load_at(type, j->x, pixel_at(&s->x, &p, h, w, at), &x);
            // Two loops: in one, gcc 14 would keep `best` and `where` in memory, not in registers.
            FOR_LANES(k) {
                bool larger = x.v[k] > best.v[k] || x.v[k] != x.v[k];
                new_best.v[k] = larger ? x.v[k] : best.v[k];
                new_where.v[k] = larger ? position : where.v[k];
            }
            FOR_LANES(k) {
                best.v[k] = new_best.v[k];
                where.v[k] = new_where.v[k];
            }
        }
    store_exact_at(type, j->y, at, &best);
    store_bytes(j->index, at, &where);
}
CELLS(maxpool, PoolJob)

INLINE void avgpool(const PoolJob *j, Type type, At at)
{
    const Shape *x = &j->s.x;
    Place p = place_of(&j->out, at);
    Pack sum;
    FOR_LANES(k)
        sum.v[k] = 0;
    for (int h = 0; h < x->h; h++)
        for (int w = 0; w < x->w; w++)
            add_at(type, j->x, pixel_at(x, &p, h, w, at), &sum);
    FOR_LANES(k)
        sum.v[k] /= x->h * x->w;
    store_at(type, j->y, at, &sum);
}
CELLS(avgpool, PoolJob)

INLINE void avgpool_gradient(const PoolJob *j, Type type, At at)
{
    const Shape *x = &j->s.x;
    Place p = place_of(x, at);
    Pack d;
    load_at(type, j->dy1, pixel_at(&j->out, &p, 0, 0, at), &d);
    FOR_LANES(k)
        d.v[k] /= x->h * x->w;
    store_at(type, j->dx, at, &d);
}
CELLS(avgpool_gradient, PoolJob)

void maxpool_forward(const Op *op, const OpArgs *a)
{
    PoolJob job = pool_job(op, a);
    RUN_CELLS(maxpool, compute(op->ops), pixels_of(op->y), &job);
}

void avgpool_forward(const Op *op, const OpArgs *a)
{
    PoolJob job = pool_job(op, a);
    RUN_CELLS(avgpool, compute(op->ops), pixels_of(op->y), &job);
}

void avgpool_backward(const Op *op, const OpArgs *a)
{
    PoolJob job = pool_job(op, a);
    RUN_CELLS(avgpool_gradient, compute(op->ops), pixels_of(op->spec.x), &job);
}
