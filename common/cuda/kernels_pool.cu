// kernels_pool.cu - the gradient of max pooling for a GPU: see ops/pool.h.
#define ON_GPU
#include "ops/pool.h"

// Each pixel of x adds up the gradients of the windows whose maximum it was.
INLINE void maxpool_gradient(const PoolJob *j, Type type, At at)
{
    const PoolSpec *s = &j->s;
    Place p = place_of(&s->x, at);
    int bottom = p.h + s->pad, right = p.w + s->pad; // with padding, windows begin at 0, stride, ..
    int first_h = bottom < s->kernel ? 0 : (bottom - s->kernel) / s->stride + 1;
    int first_w = right < s->kernel ? 0 : (right - s->kernel) / s->stride + 1;
    Pack d, where, sum;
    FOR_LANES(k)
        sum.v[k] = 0;
    for (int h = first_h; h <= bottom / s->stride && h < j->out.h; h++)
        for (int w = first_w; w <= right / s->stride && w < j->out.w; w++) {
            At from = pixel_at(&j->out, &p, h, w, at);
            float position = (bottom - h * s->stride) * s->kernel + right - w * s->stride;
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

void maxpool_backward(Ops *ops, const PoolSpec *spec, const uint8_t *index, const void *dy1,
                      const void *dy2, void *dx)
{
    PoolJob job = { .s = *spec, .out = pool_output(spec), .dy1 = dy1, .dy2 = dy2, .dx = dx,
                    .index = (uint8_t *)index };
    RUN_CELLS(maxpool_gradient, compute(ops), planes_of(spec->x), &job);
}
