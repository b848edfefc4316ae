// dense_cpu.c - convolutions in which every output pixel depends on every input pixel.
//
// Such a convolution is one matrix product over the batch, y = x W^T: a row of W for each output
// number of an image, a column for each input number. Examples are linear layers and ResNet-18's
// last two stages at 32x32, where a 3x3 kernel with padding 1 slides over 2x2 or 1x1
// pixels:
//
//        a 3x3 kernel on 2x2 pixels           on 1x1
//      out 00 reads taps  . . .   01: . . .    . . .
//                         . 4 5       3 4 .    . 4 .     the dots read only padding
//                         . 7 8       6 7 .    . . .
//
// Multiplying the padding would be most of the work: on 1x1 pixels eight taps of nine are dead.
// Skipping them is exact: dead taps are stored after the live ones in the arena, their gradient is
// zero, and the optimizer still decays them, as in PyTorch.
//
// With one output pixel, each live tap occurs once in W, and the arena holds W itself.
// With more, the arena holds the live taps one after the other, [tap][o][i], and each use expands
// them to W. The copy in a 16-bit type is W itself.
#include "cpu/dense_cpu.h"
#include "check.h"
#include "cpu/short_types.h"

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
    Type type, y_type;          // of x and w; of y
    DnnPrimitive forward, backward_data, backward_weights;  // the products in 16 bits; else empty
    void *short_dy;             // if only y is f32: the rounded gradient of y
};

// The tap through which output pixel q reads input pixel p, or -1.
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

// --- products in bf16, each with its own plan ----------------------------------------------------

// c (m, n) = a (m, k) b (k, n); a_tag, b_tag: dnnl_ba if the matrix in memory is transposed.
static DnnPrimitive product(const Dense *d, int m, int n, int k, dnnl_format_tag_t a_tag,
                            dnnl_format_tag_t b_tag, dnnl_data_type_t c_type)
{
    DnnMd mds[] = { dnn_md(2, (dnnl_dims_t){ m, k }, dnnl_bf16, a_tag),
                    dnn_md(2, (dnnl_dims_t){ k, n }, dnnl_bf16, b_tag),
                    dnn_md(2, (dnnl_dims_t){ m, n }, c_type, dnnl_ab) };
    int arguments[] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST };
    dnnl_primitive_desc_t desc = dnn_product_desc(d->ops->engine, mds[0], mds[1], mds[2]);
    DnnPrimitive p = dnn_primitive(d->ops->engine, desc, 3, arguments, mds);
    for (int i = 0; i < 3; i++)
        dnn_md_free(mds[i]);
    return p;
}

// A bias must be added before y is rounded, so the product goes to scratch memory.
static void plan_short(Dense *d)
{
    int n = d->y.n, in = d->inputs, out = d->outputs;
    bool wide = d->y_type == TYPE_F32 || d->spec.bias;
    d->forward = product(d, n, out, in, dnnl_ab, dnnl_ba, wide ? dnnl_f32 : dnnl_bf16);
    d->backward_data = product(d, n, in, out, dnnl_ab, dnnl_ab, dnnl_bf16);
    d->backward_weights = product(d, out, in, n, dnnl_ba, dnnl_ab, dnnl_f32);
    if (d->spec.bias)
        ops_need_scratch(d->ops, (size_t)n * out);
    if (d->y_type == TYPE_F32)
        d->short_dy = device_alloc(d->ops->device, (size_t)n * out * type_size(d->type));
}

static void multiply_short(const Dense *d, const DnnPrimitive *p, const void *a, const void *b,
                           void *c)
{
    dnn_run(p, d->ops->stream, (void *[]){ (void *)a, (void *)b, c });
}

// --- creating and freeing ------------------------------------------------------------------------

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
    d->type = spec->x.type;
    d->y_type = y.type;
    if (d->out_pixels > 1)
        ops_need_scratch(ops, (size_t)d->outputs * d->inputs);
    if (d->type != TYPE_F32)
        plan_short(d);
    return d;
}

void dense_free(Dense *d)
{
    if (!d)
        return;
    dnn_primitive_free(&d->forward);
    dnn_primitive_free(&d->backward_data);
    dnn_primitive_free(&d->backward_weights);
    device_free(d->ops->device, d->short_dy);
    free(d);
}

// --- the weights' order --------------------------------------------------------------------------

// The index of channel c of pixel p in an image of this many pixels.
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

// In the row of W for output channel o at pixel q: where input pixel p's channels begin, a
// block at a time.
static size_t matrix_row(const Dense *d, int o, int q)
{
    return place(o, q, d->out_pixels, d->y.block) * d->inputs;
}

// Makes W from the live taps, numbers of `size` bytes.
static void spread_taps(const Dense *d, size_t size, const char *w, char *matrix)
{
    int inputs = d->spec.x.c, block = d->spec.x.block;
#pragma omp parallel for schedule(static)
    for (int o = 0; o < d->y.c; o++)
        for (int q = 0; q < d->out_pixels; q++)
            for (int p = 0; p < d->in_pixels; p++) {
                int tap = d->live[tap_between(&d->spec, d->y, q, p)];
                const char *from = w + ((size_t)tap * d->y.c + o) * inputs * size;
                char *to = matrix + (matrix_row(d, o, q) + (size_t)p * block) * size;
                for (size_t i = 0; i < (size_t)inputs; i += block)
                    memcpy(to + i * d->in_pixels * size, from + i * size, block * size);
            }
}

static const float *spread_out(const Dense *d, const float *w)
{
    if (d->out_pixels == 1)
        return w;
    spread_taps(d, sizeof *w, (const char *)w, (char *)d->ops->scratch);
    return d->ops->scratch;
}

size_t dense_copy_bytes(const Dense *d)
{
    return d->type == TYPE_F32 ? 0 : (size_t)d->outputs * d->inputs * type_size(d->type);
}

void dense_weights_cast(const Dense *d, const float *arena, void *copy)
{
    bool as_it_is = d->out_pixels == 1;
    void *taps = as_it_is ? copy : d->ops->scratch;
    ops_narrow(d->type, (size_t)d->live_taps * d->y.c * d->spec.x.c, arena, 1, taps);
    if (!as_it_is)
        spread_taps(d, type_size(d->type), taps, copy);
}

// The reverse for gradients: a tap's gradient is the sum over its places in W.
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
                const float *from = matrix + matrix_row(d, o, q) + (size_t)p * block;
                float *to = dw + ((size_t)tap * d->y.c + o) * inputs;
                for (int i = 0; i < inputs; i += block)
                    for (int k = 0; k < block; k++)
                        to[i + k] += from[(size_t)i * d->in_pixels + k];
            }
    }
}

// --- the three products --------------------------------------------------------------------------

// c (m, n) = a (m, k) b (k, n), all row by row; ta, tb: 'T' if the matrix in memory is
// transposed.
static void multiply(char ta, char tb, int m, int n, int k, const float *a, const float *b,
                     float *c)
{
    DNN_CHECK(dnnl_sgemm(ta, tb, m, n, k, 1, a, ta == 'T' ? m : k, b, tb == 'T' ? k : n, 0, c, n));
}

// y = rows + bias, in y's type; rows may be y.
static void add_bias(const Dense *d, const float *rows, const float *bias, void *y)
{
    for (int n = 0; n < d->y.n; n++)
        for (int o = 0; o < d->y.c; o++)
            for (int q = 0; q < d->out_pixels; q++) {
                size_t i = (size_t)n * d->outputs + place(o, q, d->out_pixels, d->y.block);
                store(d->y_type, y, i, rows[i] + bias[o]);
            }
}

void dense_forward(const Dense *d, const void *x, const void *w, const float *bias, void *y)
{
    void *rows = d->spec.bias && d->y_type != TYPE_F32 ? d->ops->scratch : y;
    if (d->type == TYPE_F32)
        multiply('N', 'T', d->y.n, d->outputs, d->inputs, x, spread_out(d, w), rows);
    else
        multiply_short(d, &d->forward, x, w, rows);
    if (d->spec.bias)
        add_bias(d, rows, bias, y);
}

// The gradient of y, in the type in which it is multiplied.
static const void *gradient(const Dense *d, const void *dy)
{
    if (d->y_type == d->type)
        return dy;
    ops_narrow(d->type, (size_t)d->y.n * d->outputs, dy, 1, d->short_dy);
    return d->short_dy;
}

void dense_backward_data(const Dense *d, const void *dy, const void *w, void *dx)
{
    if (d->type == TYPE_F32)
        multiply('N', 'N', d->y.n, d->inputs, d->outputs, dy, spread_out(d, w), dx);
    else
        multiply_short(d, &d->backward_data, gradient(d, dy), w, dx);
}

// The gradients of dead taps are zero from the start and are never written.
void dense_backward_weights(const Dense *d, const void *x, const void *dy, float *dw, float *dbias)
{
    float *matrix = d->out_pixels == 1 ? dw : d->ops->scratch;
    if (d->type == TYPE_F32)
        multiply('T', 'N', d->outputs, d->inputs, d->y.n, dy, x, matrix);
    else
        multiply_short(d, &d->backward_weights, gradient(d, dy), x, matrix);
    if (matrix != dw)
        gather(d, matrix, dw);
    if (!d->spec.bias)
        return;
    for (int o = 0; o < d->y.c; o++) {
        double sum = 0;
        for (int n = 0; n < d->y.n; n++)
            for (int q = 0; q < d->out_pixels; q++)
                sum += load(d->y_type, dy,
                            (size_t)n * d->outputs + place(o, q, d->out_pixels, d->y.block));
        dbias[o] = (float)sum;
    }
}
