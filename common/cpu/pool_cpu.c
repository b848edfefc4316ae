// pool_cpu.c - the gradient of max pooling for the CPU: see ops/pool.h.
#include "ops/pool.h"

#include <stdlib.h>

// Adds the gradients of a plane's windows to dx, which is f32 and zero at first.
INLINE void scatter(const PoolJob *j, Type type, size_t plane, int block, float *dx)
{
    const OpSpec *s = &j->s;
    size_t i = plane * j->out.h * j->out.w * block;
    for (int row = 0; row < j->out.h; row++)
        for (int col = 0; col < j->out.w; col++, i += block) {
            int h0 = row * s->stride - s->pad, w0 = col * s->stride - s->pad;
            float d[LANES];
            int where[LANES];
            for (int k = 0; k < block; k++) {
                d[k] = load_one(type, j->dy1, i + k);
                d[k] += j->dy2 ? load_one(type, j->dy2, i + k) : 0;
                where[k] = j->index[i + k];
            }
            for (int h = h0 < 0 ? 0 : h0; h < h0 + s->kernel_h && h < s->x.h; h++)
                for (int w = w0 < 0 ? 0 : w0; w < w0 + s->kernel_h && w < s->x.w; w++) {
                    int position = (h - h0) * s->kernel_h + w - w0;
                    float *to = dx + ((size_t)h * s->x.w + w) * block;
#pragma omp simd
                    for (int k = 0; k < block; k++)
                        to[k] += where[k] == position ? d[k] : 0;
                }
        }
}

INLINE void maxpool_gradient(const PoolJob *j, Type type, size_t plane)
{
    const int block = j->s.x.block;
    size_t count = (size_t)j->s.x.h * j->s.x.w * block, first = plane * count;
    float *wide = type == TYPE_F32 ? NULL : xmalloc(count * sizeof *wide);
    float *dx = wide ? wide : (float *)j->dx + first;
    memset(dx, 0, count * sizeof *dx);
    if (block == LANES)
        scatter(j, type, plane, LANES, dx);
    else if (block == 1)
        scatter(j, type, plane, 1, dx);
    else
        scatter(j, type, plane, block, dx);
    for (size_t i = 0; wide && i < count; i++)
        store_one(type, j->dx, first + i, wide[i]);
    free(wide);
}
ROWS(maxpool_gradient, PoolJob)

void maxpool_backward(const Op *op, const OpArgs *a)
{
    const Shape x = op->spec.x;
    PoolJob job = pool_job(op, a);
    size_t planes = (size_t)x.n * (x.c / x.block);
    Matrix m = matrix_of(x.type, planes, shape_count(x) / planes);
    RUN_ROWS(maxpool_gradient, compute(op->ops), m, &job);
}
