// dense_cpu.c - convolutions in which every output pixel sees every input pixel.
//
// Such a convolution is one matrix product over the batch, y = x W^T: a row of W for each output
// number of an image, a column for each input number. Linear layers are such, and so are
// ResNet-18's last two stages at 32x32, where a 3x3 kernel with padding 1 slides over 2x2 or 1x1
// pixels:
//
//        a 3x3 kernel on 2x2 pixels           on 1x1
//      out 00 reads taps  . . .   01: . . .    . . .
//                         . 4 5       3 4 .    . 4 .     the dots only ever meet padding
//                         . 7 8       6 7 .    . . .
//
// Multiplying the padding would be most of the work: on 1x1 pixels eight taps of nine are dead.
// They are left out, exactly: dead taps stand behind the live ones in the arena, their gradient is
// zero, and the optimizer still decays them, as PyTorch's does.
//
// In the arena W itself stands, if there is one output pixel, since each live tap is in it once.
// With more, the live taps stand there one after the other, [tap][o][i], and W is spread out for
// each use.
#include "cpu/dense_cpu.h"
#include "check.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TAPS = 1024 };

struct Dense {
    Ops *ops;
    ConvSpec spec;
    Shape y;
    int inputs, outputs;        // numbers of an image: columns and rows of W
    int in_pixels, out_pixels;
    int taps, live_taps;
    short live[MAX_TAPS];       // tap -> its number among the live ones, or -1
};

// The tap through which output pixel q sees input pixel p; -1 if it does not.
static int tap_between(const ConvSpec *s, Shape y, int q, int p)
{
    int row = p / s->x.w - q / y.w * s->stride + s->pad,
        col = p % s->x.w - q % y.w * s->stride + s->pad;
    bool inside = row >= 0 && row < s->kernel_h && col >= 0 && col < s->kernel_w;
    return inside ? row * s->kernel_w + col : -1;
}

bool dense_fits(const ConvSpec *s, Shape y)
{
    if (s->kernel_h * s->kernel_w > MAX_TAPS)
        return false;
    for (int q = 0; q < y.h * y.w; q++)
        for (int p = 0; p < s->x.h * s->x.w; p++)
            if (tap_between(s, y, q, p) < 0)
                return false;
    return true;
}

Dense *dense_new(Ops *ops, const ConvSpec *spec, Shape y)
{
    Dense *d = xcalloc(1, sizeof *d);
    d->ops = ops;
    d->spec = *spec;
    d->y = y;
    d->in_pixels = spec->x.h * spec->x.w;
    d->out_pixels = y.h * y.w;
    d->inputs = spec->x.c * d->in_pixels;
    d->outputs = y.c * d->out_pixels;
    d->taps = spec->kernel_h * spec->kernel_w;
    memset(d->live, -1, sizeof d->live);
    for (int q = 0; q < d->out_pixels; q++)
        for (int p = 0; p < d->in_pixels; p++)
            d->live[tap_between(spec, y, q, p)] = 0;
    for (int tap = 0; tap < d->taps; tap++)
        if (d->live[tap] == 0)
            d->live[tap] = (short)d->live_taps++;
    if (d->out_pixels > 1)
        ops_need_scratch(ops, (size_t)d->outputs * d->inputs);
    return d;
}

void dense_free(Dense *dense) { free(dense); }

// --- the weights' order --------------------------------------------------------------------------

// Where channel c of pixel p stands in an image of this many pixels.
static size_t place(int c, int p, int pixels, int block)
{
    return ((size_t)(c / block) * pixels + p) * block + c % block;
}

size_t dense_weight_count(const Dense *d) { return (size_t)d->y.c * d->spec.x.c * d->taps; }

// Copies every weight from torch's order to the arena's, or back.
static void reorder(const Dense *d, float *arena, float *oihw, bool back)
{
    int inputs = d->spec.x.c, outputs = d->y.c;
    float *dead = arena + (size_t)outputs * inputs * d->live_taps;
    size_t pixel_of[MAX_TAPS];
    for (int p = 0; p < d->in_pixels; p++)      // with one output pixel: each tap's input pixel
        pixel_of[tap_between(&d->spec, d->y, 0, p)] = (size_t)p;
    for (int o = 0; o < outputs; o++)
        for (int i = 0; i < inputs; i++)
            for (int tap = 0; tap < d->taps; tap++, oihw++) {
                float *at;
                if (d->live[tap] < 0)
                    at = dead++;
                else if (d->out_pixels == 1)
                    at = arena + (size_t)o * d->inputs +
                         place(i, (int)pixel_of[tap], d->in_pixels, d->spec.x.block);
                else
                    at = arena + ((size_t)d->live[tap] * outputs + o) * inputs + i;
                *(back ? oihw : at) = *(back ? at : oihw);
            }
}

void dense_weights_import(const Dense *d, float *arena, const float *oihw)
{
    reorder(d, arena, (float *)oihw, false);
}

void dense_weights_export(const Dense *d, float *oihw, const float *arena)
{
    reorder(d, (float *)arena, oihw, true);
}

// The row of W for output channel o at pixel q, and in it where input pixel p's channels begin, a
// block at a time.
static float *matrix_row(const Dense *d, float *matrix, int o, int q)
{
    return matrix + place(o, q, d->out_pixels, d->y.block) * d->inputs;
}

static const float *spread_out(const Dense *d, const float *w)
{
    if (d->out_pixels == 1)
        return w;
    float *matrix = d->ops->scratch;
    int inputs = d->spec.x.c, block = d->spec.x.block;
#pragma omp parallel for schedule(static)
    for (int o = 0; o < d->y.c; o++)
        for (int q = 0; q < d->out_pixels; q++)
            for (int p = 0; p < d->in_pixels; p++) {
                int tap = d->live[tap_between(&d->spec, d->y, q, p)];
                const float *from = w + ((size_t)tap * d->y.c + o) * inputs;
                float *to = matrix_row(d, matrix, o, q) + (size_t)p * block;
                for (int i = 0; i < inputs; i += block)
                    memcpy(to + (size_t)i * d->in_pixels, from + i, (size_t)block * sizeof *to);
            }
    return matrix;
}

// The other way for gradients: a tap's is the sum over all places of W where it stands.
static void gather(const Dense *d, float *matrix, float *dw)
{
    int inputs = d->spec.x.c, block = d->spec.x.block;
#pragma omp parallel for schedule(static)
    for (int o = 0; o < d->y.c; o++) {
        for (int tap = 0; tap < d->live_taps; tap++)
            memset(dw + ((size_t)tap * d->y.c + o) * inputs, 0, (size_t)inputs * sizeof *dw);
        for (int q = 0; q < d->out_pixels; q++)
            for (int p = 0; p < d->in_pixels; p++) {
                int tap = d->live[tap_between(&d->spec, d->y, q, p)];
                const float *from = matrix_row(d, matrix, o, q) + (size_t)p * block;
                float *to = dw + ((size_t)tap * d->y.c + o) * inputs;
                for (int i = 0; i < inputs; i += block)
                    for (int k = 0; k < block; k++)
                        to[i + k] += from[(size_t)i * d->in_pixels + k];
            }
    }
}

// --- the three products --------------------------------------------------------------------------

// c (m, n) = a (m, k) b (k, n), all row by row; ta, tb: 'T' where the matrix in memory is the other
// way.
static void multiply(char ta, char tb, int m, int n, int k, const float *a, const float *b,
                     float *c)
{
    DNN_CHECK(dnnl_sgemm(ta, tb, m, n, k, 1, a, ta == 'T' ? m : k, b, tb == 'T' ? k : n, 0, c, n));
}

void dense_forward(const Dense *d, const float *x, const float *w, const float *bias, float *y)
{
    multiply('N', 'T', d->y.n, d->outputs, d->inputs, x, spread_out(d, w), y);
    if (!d->spec.bias)
        return;
    for (int n = 0; n < d->y.n; n++)
        for (int o = 0; o < d->y.c; o++)
            for (int q = 0; q < d->out_pixels; q++)
                y[(size_t)n * d->outputs + place(o, q, d->out_pixels, d->y.block)] += bias[o];
}

void dense_backward_data(const Dense *d, const float *dy, const float *w, float *dx)
{
    multiply('N', 'N', d->y.n, d->inputs, d->outputs, dy, spread_out(d, w), dx);
}

// The gradients of dead taps are zero from the start and nobody writes them.
void dense_backward_weights(const Dense *d, const float *x, const float *dy, float *dw,
                            float *dbias)
{
    float *matrix = d->out_pixels == 1 ? dw : d->ops->scratch;
    multiply('T', 'N', d->outputs, d->inputs, d->y.n, dy, x, matrix);
    if (matrix != dw)
        gather(d, matrix, dw);
    if (!d->spec.bias)
        return;
    for (int o = 0; o < d->y.c; o++) {
        double sum = 0;
        for (int n = 0; n < d->y.n; n++)
            for (int q = 0; q < d->out_pixels; q++)
                sum += dy[(size_t)n * d->outputs + place(o, q, d->out_pixels, d->y.block)];
        dbias[o] = (float)sum;
    }
}
