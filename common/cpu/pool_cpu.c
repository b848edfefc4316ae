// pool_cpu.c - the gradient of max pooling for the CPU: see ops/pool.h.
#include "ops/pool.h"

#include <stdlib.h>

// Adds the gradients of an image's windows to dx, which is f32 and zero at first, for `count`
// channels from channel `c` on.
INLINE void scatter(const PoolJob *j, Type type, size_t image, int c, int count, float *dx)
{
    const OpSpec *s = &j->s;
    const int channels = s->x.c;
    size_t i = image * j->out.h * j->out.w * channels + c;
    for (int row = 0; row < j->out.h; row++)
        for (int col = 0; col < j->out.w; col++, i += channels) {
            int h0 = row * s->stride - s->pad, w0 = col * s->stride - s->pad;
            float d[LANES];
            int where[LANES];
            for (int k = 0; k < count; k++) {
                d[k] = load_one(type, j->dy1, i + k);
                d[k] += j->dy2 ? load_one(type, j->dy2, i + k) : 0;
                where[k] = j->index[i + k];
            }
            for (int h = h0 < 0 ? 0 : h0; h < h0 + s->kernel_h && h < s->x.h; h++)
                for (int w = w0 < 0 ? 0 : w0; w < w0 + s->kernel_h && w < s->x.w; w++) {
                    int position = (h - h0) * s->kernel_h + w - w0;
                    float *to = dx + ((size_t)h * s->x.w + w) * channels + c;
#pragma omp simd
                    for (int k = 0; k < count; k++)
                        to[k] += where[k] == position ? d[k] : 0;
                }
        }
}

INLINE void maxpool_gradient(const PoolJob *j, Type type, size_t image)
{
    const int channels = j->s.x.c;
    size_t count = (size_t)j->s.x.h * j->s.x.w * channels, first = image * count;
    float *wide = type == TYPE_F32 ? NULL : xmalloc(count * sizeof *wide);
    float *dx = wide ? wide : (float *)j->dx + first;
    memset(dx, 0, count * sizeof *dx);
    int c = 0;
    for (; c + LANES <= channels; c += LANES)
        scatter(j, type, image, c, LANES, dx);
    if (c < channels)
        scatter(j, type, image, c, channels - c, dx);
    for (size_t i = 0; wide && i < count; i++)
        store_one(type, j->dx, first + i, wide[i]);
    free(wide);
}
ROWS(maxpool_gradient, PoolJob)

void maxpool_backward(const Op *op, const OpArgs *a)
{
    const Shape x = op->spec.x;
    PoolJob job = pool_job(op, a);
    RUN_ROWS(maxpool_gradient, compute(op->ops), matrix_of(x.type, x.n, (size_t)x.h * x.w * x.c),
             &job);
}
