// pool.h - places in pooling's activations. The gradient of max pooling has two versions. On a
// GPU each pixel gathers from the windows that it is in, so that no two threads add to one number.
// On a CPU each window scatters to its pixels, which is faster there.
#pragma once
#include "ops/loops.h"

typedef struct PoolJob {
    OpSpec s;
    Shape out;
    const void *x, *dy1, *dy2;
    void *y, *dx;
    uint8_t *index;
} PoolJob;

static inline PoolJob pool_job(const Op *op, const OpArgs *a)
{
    PoolJob job = { .s = op->spec, .out = op->y, .x = a->x, .dy1 = a->dy1, .dy2 = a->dy2,
                    .y = a->y, .dx = a->dx, .index = a->index };
    return job;
}

// A pack's plane (a block of channels of an image), its pixel, and its place in the pixel's block.
typedef struct Place {
    size_t plane;
    int h, w, channel;
} Place;

INLINE Place place_of(const Shape *s, At at)
{
    unsigned i = (unsigned)at.i, block = s->block, pixel = i / block;
    unsigned row = pixel / s->w, plane = row / s->h;
    Place p = { plane, (int)(row - plane * s->h), (int)(pixel - row * s->w),
                (int)(i - pixel * block) };
    return p;
}

// The place of the same pack in another pixel, or in another activation with as many planes.
INLINE At pixel_at(const Shape *s, const Place *p, int h, int w, At at)
{
    at.i = ((p->plane * s->h + h) * s->w + w) * s->block + p->channel;
    return at;
}

// The matrix of an activation, which must be small enough for place_of's 32 bits.
static inline Matrix planes_of(Shape s)
{
    Matrix m = { s.type, (size_t)s.n * s.h * s.w, (size_t)s.c, (size_t)s.block,
                 (size_t)s.h * s.w };
    CHECK(shape_count(s) <= UINT32_MAX, "choose a smaller batch (-b)",
          "pooling reads or writes (%d, %d, %d, %d) numbers: 2^32 or more, too many", s.n, s.c,
          s.h, s.w);
    return m;
}
