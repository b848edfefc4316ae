#include "cpu/dense_cpu.h"
#include "check.h"

#include <string.h>

enum { MAX_TAPS = 1024 };

struct Dense {
    OpSpec spec;
    Shape y;
    int in_pixels, out_pixels;
    int taps, live_taps;
    short live[MAX_TAPS];       // tap -> its number among the live ones, or -1
};

// The tap through which output pixel q reads input pixel p, or -1.
static int tap_between(const OpSpec *s, Shape y, int q, int p)
{
    int row = p / s->x.w - q / y.w * s->stride + s->pad,
        col = p % s->x.w - q % y.w * s->stride + s->pad;
    bool inside = row >= 0 && row < s->kernel_h && col >= 0 && col < s->kernel_w;
    return inside ? row * s->kernel_w + col : -1;
}

// False with a bias and several output pixels: the bias would have to be repeated for each.
static bool is_product(const OpSpec *s, Shape y)
{
    if (s->kernel_h * s->kernel_w > MAX_TAPS || (s->bias && y.h * y.w > 1))
        return false;
    for (int q = 0; q < y.h * y.w; q++)
        for (int p = 0; p < s->x.h * s->x.w; p++)
            if (tap_between(s, y, q, p) < 0)
                return false;
    return true;
}

Dense *dense_new(const OpSpec *spec, Shape y)
{
    if (!is_product(spec, y))
        return NULL;
    Dense *d = xcalloc(1, sizeof *d);
    d->spec = *spec;
    d->y = y;
    d->in_pixels = spec->x.h * spec->x.w;
    d->out_pixels = y.h * y.w;
    d->taps = spec->kernel_h * spec->kernel_w;
    memset(d->live, -1, sizeof d->live);
    for (int q = 0; q < d->out_pixels; q++)
        for (int p = 0; p < d->in_pixels; p++)
            d->live[tap_between(spec, y, q, p)] = 0;
    for (int tap = 0; tap < d->taps; tap++)
        if (d->live[tap] == 0)
            d->live[tap] = (short)d->live_taps++;
    return d;
}

bool dense_is_matrix(const Dense *d) { return d->out_pixels == 1; }

static size_t weights_of(const Dense *d, int taps) { return (size_t)taps * d->y.c * d->spec.x.c; }

size_t dense_live_count(const Dense *d) { return weights_of(d, d->live_taps); }

size_t dense_dead_count(const Dense *d) { return weights_of(d, d->taps - d->live_taps); }

// The place in W: the row of output channel o at pixel q, and in that row the first block of input
// channels at pixel p. The row's next block for pixel p is d->in_pixels blocks later.
static size_t part_of_matrix(const Dense *d, int o, int q, int p)
{
    int block = d->y.block, in_block = d->spec.x.block;
    size_t row = ((size_t)(o / block) * d->out_pixels + q) * block + o % block;
    return row * d->spec.x.c * d->in_pixels + (size_t)p * in_block;
}

static size_t part_of_taps(const Dense *d, int o, int q, int p)
{
    int live = d->live[tap_between(&d->spec, d->y, q, p)];
    return ((size_t)live * d->y.c + o) * d->spec.x.c;
}

static size_t in_arena(const Dense *d, int o, int i, int tap)
{
    const OpSpec *s = &d->spec;
    int block = s->x.block;
    if (!dense_is_matrix(d))
        return ((size_t)d->live[tap] * d->y.c + o) * s->x.c + i;
    int p = (tap / s->kernel_w - s->pad) * s->x.w + tap % s->kernel_w - s->pad;
    return part_of_matrix(d, o, 0, p) + (size_t)(i / block) * d->in_pixels * block + i % block;
}

void dense_reorder(const Dense *d, float *live, float *dead, float *oihw, Direction direction)
{
    const bool out = direction == TO_TORCH;
    for (int o = 0; o < d->y.c; o++)
        for (int i = 0; i < d->spec.x.c; i++)
            for (int tap = 0; tap < d->taps; tap++, oihw++) {
                float *at = d->live[tap] < 0 ? dead++ : live + in_arena(d, o, i, tap);
                *(out ? oihw : at) = *(out ? at : oihw);
            }
}

void dense_expand(const Dense *d, size_t size, const void *taps, void *matrix)
{
    size_t inputs = d->spec.x.c, block = d->spec.x.block;
#pragma omp parallel for schedule(static)
    for (int o = 0; o < d->y.c; o++)
        for (int q = 0; q < d->out_pixels; q++)
            for (int p = 0; p < d->in_pixels; p++) {
                const char *from = (const char *)taps + part_of_taps(d, o, q, p) * size;
                char *to = (char *)matrix + part_of_matrix(d, o, q, p) * size;
                for (size_t i = 0; i < inputs; i += block)
                    memcpy(to + i * d->in_pixels * size, from + i * size, block * size);
            }
}

void dense_gather(const Dense *d, const float *matrix, float *taps)
{
    size_t inputs = d->spec.x.c, block = d->spec.x.block;
#pragma omp parallel for schedule(static)
    for (int o = 0; o < d->y.c; o++) {
        for (int tap = 0; tap < d->live_taps; tap++)
            memset(taps + ((size_t)tap * d->y.c + o) * inputs, 0, inputs * sizeof *taps);
        for (int q = 0; q < d->out_pixels; q++)
            for (int p = 0; p < d->in_pixels; p++) {
                const float *from = matrix + part_of_matrix(d, o, q, p);
                float *to = taps + part_of_taps(d, o, q, p);
                for (size_t i = 0; i < inputs; i += block)
                    for (size_t k = 0; k < block; k++)
                        to[i + k] += from[i * d->in_pixels + k];
            }
    }
}
