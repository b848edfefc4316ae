// kernels_pool.cu - the gradient of max pooling for a GPU: see ops/pool.h.
#define ON_GPU
#include "ops/pool.h"

INLINE void maxpool_gradient(const PoolJob *j, Type type, At at)
{
    const OpSpec *s = &j->s;
    Place p = place_of(&s->x, at);
    int bottom = p.h + s->pad, right = p.w + s->pad; // in padded x: windows begin at 0, stride, ..
    int first_h = bottom < s->kernel_h ? 0 : (bottom - s->kernel_h) / s->stride + 1;
    int first_w = right < s->kernel_h ? 0 : (right - s->kernel_h) / s->stride + 1;
    Pack d, where, sum;
    FOR_LANES(k)
        sum.v[k] = 0;
    for (int h = first_h; h <= bottom / s->stride && h < j->out.h; h++)
        for (int w = first_w; w <= right / s->stride && w < j->out.w; w++) {
            At from = pixel_at(&j->out, &p, h, w, at);
            float position = (bottom - h * s->stride) * s->kernel_h + right - w * s->stride;
            load_at(type, j->dy1, from, &d);
            if (j->dy2)
                add_at(type, j->dy2, from, &d);
            load_bytes(j->index, from, &where);
            FOR_LANES(k)
                sum.v[k] += where.v[k] == position ? d.v[k] : 0;
        }
    store_at(type, j->dx, at, &sum);
}
CELLS(maxpool_gradient, PoolJob)

void maxpool_backward(const Op *op, const OpArgs *a)
{
    PoolJob job = pool_job(op, a);
    RUN_CELLS(maxpool_gradient, compute(op->ops), pixels_of(op->spec.x), &job);
}
