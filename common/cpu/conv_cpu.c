// conv_cpu.c - convolutions on oneDNN, except those of ops/linear.c.
//
// oneDNN prefers another order of the weights for each pass, and on each processor. So a pass
// reorders the weights of the arena (ops/op.h), or its gradient of them.
//
// Small images are different. If each output pixel reads every input pixel, as in the last two
// stages of ResNet-18 at 32x32, most of a convolution's work would be on padding. So these are
// products of matrices, y = x W^T, with an image in each row. W has the live taps once for each
// output pixel: see `expand`.
#include "check.h"
#include "cpu/ops_cpu.h"
#include "ops/numbers.h"

#include <stdlib.h>
#include <string.h>

// A pass. `reorder` brings weights to the pass's order, or their gradient to the arena's; it is
// empty if the orders are the same.
typedef struct Pass {
    DnnPrimitive run, reorder;
} Pass;

typedef struct Conv {
    Ops *ops;
    Type type;                  // of the activations that callers pass
    bool emulates;              // then spec and y are of the f32 convolution
    OpSpec spec;
    Shape y;
    LiveTaps live;
    size_t weights;             // number of live ones
    Pass passes[DNN_PASSES];
    bool is_small;
    Product *products[DNN_PASSES];      // of small images, instead of passes
} Conv;

// --- small images --------------------------------------------------------------------------------

// Does every output of this direction read every input?
static bool reads_all(int size, int outputs, int kernel, int stride, int pad)
{
    return pad >= (outputs - 1) * stride && size + pad <= kernel;
}

// Not with a bias: it would have to be repeated for each output pixel.
static bool is_small(const OpSpec *s, Shape y)
{
    return reads_all(s->x.h, y.h, s->kernel_h, s->stride, s->pad) &&
           reads_all(s->x.w, y.w, s->kernel_w, s->stride, s->pad) && !s->bias;
}

// In W, the part for input pixel p of the row for output pixel q and channel o is one tap.
static size_t tap_of(const Conv *c, int q, int o, int p)
{
    const Shape *x = &c->spec.x, *y = &c->y;
    int row = p / x->w - q / y->w * c->spec.stride + c->live.pad[0];
    int col = p % x->w - q % y->w * c->spec.stride + c->live.pad[1];
    return (((size_t)o * c->live.rows + row) * c->live.cols + col) * x->c;
}

// Makes W from the live taps.
static void expand(const Conv *c, const void *taps, void *matrix)
{
    const int pixels = c->spec.x.h * c->spec.x.w, outputs = c->y.h * c->y.w * c->y.c;
    const size_t each = c->spec.x.c * type_size(c->spec.x.type);
#pragma omp parallel for schedule(static)
    for (int row = 0; row < outputs; row++)
        for (int p = 0; p < pixels; p++) {
            size_t tap = tap_of(c, row / c->y.c, row % c->y.c, p) * type_size(c->spec.x.type);
            memcpy((char *)matrix + ((size_t)row * pixels + p) * each, (const char *)taps + tap,
                   each);
        }
}

// The reverse for gradients: a tap's gradient is the sum over its places in W.
static void gather(const Conv *c, const float *matrix, float *taps)
{
    const int pixels = c->spec.x.h * c->spec.x.w, channels = c->spec.x.c;
    const size_t each = c->weights / c->y.c;
#pragma omp parallel for schedule(static)
    for (int o = 0; o < c->y.c; o++) {
        memset(taps + o * each, 0, each * sizeof *taps);
        for (int q = 0; q < c->y.h * c->y.w; q++)
            for (int p = 0; p < pixels; p++) {
                const float *from = matrix + (((size_t)q * c->y.c + o) * pixels + p) * channels;
                float *to = taps + tap_of(c, q, o, p);
                for (int i = 0; i < channels; i++)
                    to[i] += from[i];
            }
    }
}

//   y (n, out) = x (n, in) W^T      dx (n, in) = dy (n, out) W      dW (out, in) = dy^T x
static void plan_small(Conv *c)
{
    const Type type = c->spec.x.type;
    const int n = c->y.n, in = (int)(shape_count(c->spec.x) / n);
    const int out = (int)(shape_count(c->y) / n);
    c->products[DNN_FORWARD] = product_new(
        c->ops, &(ProductSpec){ n, out, in, .b_turned = true, .in = type, .out = type });
    c->products[DNN_BACKWARD_DATA] = product_new(
        c->ops, &(ProductSpec){ n, in, out, .in = type, .out = type });
    c->products[DNN_BACKWARD_WEIGHTS] = product_new(
        c->ops, &(ProductSpec){ out, in, n, .a_turned = true, .in = type, .out = TYPE_F32 });
    ops_need_scratch(c->ops, (size_t)in * out * sizeof(float));
}

static void small_backward(const Conv *c, const OpArgs *a)
{
    void *matrix = ops_scratch(c->ops);
    product_run(c->products[DNN_BACKWARD_WEIGHTS], a->dy1, a->x, NULL, matrix);
    gather(c, matrix, a->dw);
    if (!a->dx)
        return;
    expand(c, a->w, matrix);
    product_run(c->products[DNN_BACKWARD_DATA], a->dy1, matrix, NULL, a->dx);
}

// --- other convolutions --------------------------------------------------------------------------

static DnnMd activation_md(Shape s)
{
    return dnn_md(4, (dnnl_dims_t){ s.n, s.c, s.h, s.w }, dnn_type(s.type), dnnl_nhwc);
}

static DnnMd weights_md(const Conv *c, Type type, dnnl_format_tag_t order)
{
    const dnnl_dims_t dims = { c->y.c, c->spec.x.c, c->live.rows, c->live.cols };
    return dnn_md(4, dims, dnn_type(type), order);
}

// Takes ownership of the description.
static void plan_pass(Conv *c, DnnPass pass, const DnnConv *d, dnnl_primitive_desc_t desc)
{
    static const int arguments[DNN_PASSES][4] = {
        { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS },
        { DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC },
        { DNNL_ARG_DIFF_DST, DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS },
    };
    const bool gives = pass == DNN_BACKWARD_WEIGHTS;
    Pass *p = &c->passes[pass];
    dnnl_query_t order = gives ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    DnnMd w = dnn_md_copy(dnnl_primitive_desc_query_md(desc, order, 0));
    DnnMd arena = weights_md(c, gives ? TYPE_F32 : c->spec.x.type, dnnl_ohwi);
    if (!dnnl_memory_desc_equal(w, arena)) {
        p->reorder = dnn_reorder(c->ops->engine, gives ? w : arena, gives ? arena : w);
        ops_need_scratch(c->ops, dnnl_memory_desc_get_size(w));
    }
    DnnMd mds[DNN_PASSES][4] = { { d->x, w, d->y, d->bias }, { d->y, w, d->x }, { d->y, d->x, w } };
    bool bias = pass == DNN_FORWARD && d->bias;
    p->run = dnn_primitive(c->ops->engine, desc, bias ? 4 : 3, arguments[pass], mds[pass]);
    dnn_md_free(w);
    dnn_md_free(arena);
}

// brgemm code (onednn.h) multiplies matrices with x.c columns, and a row for each pixel of a row of
// y. The limits of 4 pixels and 32 channels were measured in 35 shapes on an AMD EPYC.
static void plan_convolution(Conv *c)
{
    const OpSpec *s = &c->spec;
    const LiveTaps *t = &c->live;
    dnnl_engine_t engine = c->ops->engine;
    DnnMd any = weights_md(c, s->x.type, dnnl_format_tag_any);
    DnnMd any_f32 = weights_md(c, TYPE_F32, dnnl_format_tag_any);
    DnnConv d = { .x = activation_md(s->x), .y = activation_md(c->y), .w = any,
                  .strides = { s->stride, s->stride },
                  .pad = { t->pad[0], t->pad[1] },
                  .pad_after = { t->pad_after[0], t->pad_after[1] },
                  .avoid_brgemm = s->kernel_h == 1 || c->y.h * c->y.w <= 4 || s->x.c <= 32 };
    if (s->bias)
        d.bias = dnn_md(1, (dnnl_dims_t){ s->out_channels }, dnnl_f32, dnnl_a);
    dnnl_primitive_desc_t hint, desc = dnn_conv_desc(engine, &d, DNN_FORWARD, NULL);
    DNN_CHECK(dnnl_primitive_desc_clone(&hint, desc));
    plan_pass(c, DNN_FORWARD, &d, desc);
    if (s->needs_dx)
        plan_pass(c, DNN_BACKWARD_DATA, &d,
                  dnn_conv_desc(engine, &d, DNN_BACKWARD_DATA, hint));
    d.w = any_f32;
    plan_pass(c, DNN_BACKWARD_WEIGHTS, &d,
              dnn_conv_desc(engine, &d, DNN_BACKWARD_WEIGHTS, hint));
    DNN_CHECK(dnnl_primitive_desc_destroy(hint));
    DnnMd all[] = { d.x, d.y, d.bias, any, any_f32 };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dnn_md_free(all[i]);
}

// --- op.h ----------------------------------------------------------------------------------------

void *conv_new(const Op *op, const void *like)
{
    Conv *c = xcalloc(1, sizeof *c);
    Ops *ops = c->ops = op->ops;
    c->spec = op->spec;
    c->y = op->y;
    c->type = c->spec.x.type;
    c->live = conv_live_taps(&c->spec);
    c->weights = conv_live_count(op);
    c->is_small = is_small(&c->spec, c->y);
    if (c->is_small) {
        plan_small(c);
        return c;
    }
    c->emulates = ops_emulates(ops->device, c->type);
    if (c->emulates) {
        c->spec.x.type = c->y.type = TYPE_F32;
        ops_need_wide(ops, shape_count(c->spec.x) + shape_count(c->y) + c->weights);
    }
    plan_convolution(c);
    return c;
}

void conv_free(void *own)
{
    Conv *c = own;
    for (int i = 0; i < DNN_PASSES; i++) {
        product_free(c->products[i]);
        dnn_primitive_free(&c->passes[i].run);
        dnn_primitive_free(&c->passes[i].reorder);
    }
    free(c);
}

static const void *widened(const Conv *c, size_t count, const void *values, float **room)
{
    return ops_widened(c->ops, c->emulates, c->type, count, values, room);
}

// The weights in the pass's order.
static const void *weights_for(const Conv *c, DnnPass pass, const void *w, float **room)
{
    const DnnPrimitive *reorder = &c->passes[pass].reorder;
    w = widened(c, c->weights, w, room);
    if (!reorder->primitive)
        return w;
    dnn_run(reorder, c->ops->stream, (void *[]){ (void *)w, ops_scratch(c->ops) });
    return ops_scratch(c->ops);
}

static void forward(const Conv *c, const OpArgs *a)
{
    float *room = c->ops->wide.memory;
    const void *x = widened(c, shape_count(c->spec.x), a->x, &room);
    const void *w = weights_for(c, DNN_FORWARD, a->w, &room);
    void *y = c->emulates ? room : a->y;
    dnn_run(&c->passes[DNN_FORWARD].run, c->ops->stream,
            (void *[]){ (void *)x, (void *)w, y, (void *)a->bias });
    if (c->emulates)
        values_narrow(c->ops, compute(c->ops), c->type, shape_count(c->y), y, 1, a->y);
}

static void backward_data(const Conv *c, const OpArgs *a)
{
    float *room = c->ops->wide.memory;
    const void *dy = widened(c, shape_count(c->y), a->dy1, &room);
    const void *w = weights_for(c, DNN_BACKWARD_DATA, a->w, &room);
    void *dx = c->emulates ? room : a->dx;
    dnn_run(&c->passes[DNN_BACKWARD_DATA].run, c->ops->stream,
            (void *[]){ (void *)dy, (void *)w, dx });
    if (c->emulates)
        values_narrow(c->ops, compute(c->ops), c->type, shape_count(c->spec.x), dx, 1, a->dx);
}

static void backward_weights(const Conv *c, const OpArgs *a)
{
    float *room = c->ops->wide.memory;
    const void *x = widened(c, shape_count(c->spec.x), a->x, &room);
    const void *dy = widened(c, shape_count(c->y), a->dy1, &room);
    const Pass *pass = &c->passes[DNN_BACKWARD_WEIGHTS];
    float *dw = pass->reorder.primitive ? ops_scratch(c->ops) : a->dw;
    dnn_run(&pass->run, c->ops->stream, (void *[]){ (void *)dy, (void *)x, dw });
    if (pass->reorder.primitive)
        dnn_run(&pass->reorder, c->ops->stream, (void *[]){ dw, a->dw });
    if (c->spec.bias)
        bias_gradient(compute(c->ops), c->type, shape_count(c->y) / c->y.c, c->y.c, a->dy1,
                      a->dbias);
}

void conv_forward(const Op *op, const OpArgs *a)
{
    const Conv *c = op->own;
    if (c->is_small) {
        expand(c, a->w, ops_scratch(c->ops));
        product_run(c->products[DNN_FORWARD], a->x, ops_scratch(c->ops), NULL, a->y);
    } else {
        forward(c, a);
    }
}

void conv_backward(const Op *op, const OpArgs *a)
{
    const Conv *c = op->own;
    if (c->is_small) {
        small_backward(c, a);
        return;
    }
    backward_weights(c, a);
    if (a->dx)
        backward_data(c, a);
}
