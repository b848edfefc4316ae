// pool.h - places in the activations of pooling. The gradient of max pooling has two versions. On a
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

// A pixel's image, and its place in the image.
typedef struct Place {
    size_t image;
    int h, w;
} Place;

INLINE Place place_of(const Shape *s, At at)
{
    unsigned pixel = (unsigned)at.row, row = pixel / s->w, image = row / s->h;
    Place p = { image, (int)(row - image * s->h), (int)(pixel - row * s->w) };
    return p;
}

// The place of the same channels in another pixel, or in another activation of as many images.
INLINE At pixel_at(const Shape *s, const Place *p, int h, int w, At at)
{
    at.row = (p->image * s->h + h) * s->w + w;
    at.i = at.row * s->c + at.column;
    return at;
}
