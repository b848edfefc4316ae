// pool.c - max pooling, except its gradient, and the mean over an image.
#include "ops/pool.h"

// The largest value of a window and its position: the first, if several. NaN is the largest.
INLINE void maxpool(const PoolJob *j, Type type, At at)
{
    const PoolSpec *s = &j->s;
    Place p = place_of(&j->out, at);
    int h0 = p.h * s->stride - s->pad, w0 = p.w * s->stride - s->pad;
    Pack x, best, where;
    FOR_LANES(k) {
        best.v[k] = -INFINITY;
        where.v[k] = -1;
    }
    for (int h = h0 < 0 ? 0 : h0; h < h0 + s->kernel && h < s->x.h; h++)
        for (int w = w0 < 0 ? 0 : w0; w < w0 + s->kernel && w < s->x.w; w++) {
            float position = (h - h0) * s->kernel + w - w0;
            load_at(type, j->x, pixel_at(&s->x, &p, h, w, at), &x);
            for (int k = 0; k < LANES; k++) {
                if (k >= at.count)
                    continue;           // planes on a CPU have one lane: a fifth of the time
                bool larger = where.v[k] < 0 || x.v[k] > best.v[k] || x.v[k] != x.v[k];
                best.v[k] = larger ? x.v[k] : best.v[k];
                where.v[k] = larger ? position : where.v[k];
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

static PoolJob mean_job(Shape x)
{
    PoolJob job = { .s = { .x = x }, .out = x };
    job.out.h = job.out.w = 1;
    return job;
}

void maxpool_forward(Ops *ops, const PoolSpec *spec, const void *x, void *y, uint8_t *index)
{
    PoolJob job = { .s = *spec, .out = pool_output(spec), .x = x, .y = y, .index = index };
    RUN_CELLS(maxpool, compute(ops), planes_of(job.out), &job);
}

void avgpool_forward(Ops *ops, Shape x, const void *in, void *out)
{
    PoolJob job = mean_job(x);
    job.x = in;
    job.y = out;
    RUN_CELLS(avgpool, compute(ops), planes_of(job.out), &job);
}

void avgpool_backward(Ops *ops, Shape x, const void *dout, void *dx)
{
    PoolJob job = mean_job(x);
    job.dy1 = dout;
    job.dx = dx;
    RUN_CELLS(avgpool_gradient, compute(ops), planes_of(x), &job);
}
