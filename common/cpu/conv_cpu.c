// conv_cpu.c - convolutions and linear layers on oneDNN.
//
// oneDNN prefers a different order of the weights in each pass, and on each processor. So a pass
// may reorder the weights of the arena (ops/op.h), or the gradient of the weights.
//
// But many convolutions are matrix products, y = x W^T, with a row of W for each column of y:
//
//   1x1, stride 1   x and y have a row for each pixel. W is the weights of the arena.
//   linear layers   x and y have a row for each image. W is the weights of the arena.
//   small images    A row for each image, if each output pixel reads every input pixel, as in most
//                   of ResNet-18's last two stages at 32x32. W has the live taps once for each
//                   output pixel (`expand`). A convolution would mostly work on padding.
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
    Type type, y_type;          // the types of the caller's x and y
    bool emulates;              // true: computes in f32, so spec and y are f32 (ops_emulates)
    OpSpec spec;
    Shape y;
    LiveTaps live;
    size_t weights;             // number of live weights
    bool expands;
    Pass forward, backward_data, backward_weights;
    void *short_dy;             // dy rounded to `type`, if y is f32 and x is not; else NULL
} Conv;

static dnnl_data_type_t type_of(Type type) { return type == TYPE_F32 ? dnnl_f32 : dnnl_bf16; }

// --- products ------------------------------------------------------------------------------------

// Along one axis, height or width: does every output read every input?
static bool reads_all(int size, int outputs, int kernel, int stride, int pad)
{
    return pad >= (outputs - 1) * stride && size + pad <= kernel;
}

// Does every output pixel read every input pixel? False with a bias and several output pixels: the
// bias would have to be repeated for each pixel.
static bool is_dense(const OpSpec *s, Shape y)
{
    return reads_all(s->x.h, y.h, s->kernel_h, s->stride, s->pad) &&
           reads_all(s->x.w, y.w, s->kernel_w, s->stride, s->pad) &&
           !(s->bias && y.h * y.w > 1);
}

static bool is_pointwise(const OpSpec *s)
{
    return s->kernel_h == 1 && s->kernel_w == 1 && s->stride == 1 && s->pad == 0;
}

static DnnMd matrix(int rows, int columns, bool transposed, Type type)
{
    return dnn_md(2, (dnnl_dims_t){ rows, columns }, type_of(type),
                  transposed ? dnnl_ba : dnnl_ab);
}

// c = a b (+ bias). Takes ownership of the descriptors.
static DnnPrimitive product(const Conv *conv, DnnMd a, DnnMd b, DnnMd c, DnnMd bias)
{
    int arguments[] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS };
    DnnMd mds[] = { a, b, c, bias };
    dnnl_primitive_desc_t desc = dnn_product_desc(conv->ops->engine, a, b, bias, c, NULL);
    DnnPrimitive p = dnn_primitive(conv->ops->engine, desc, bias ? 4 : 3, arguments, mds);
    for (int i = 0; i < 4; i++)
        dnn_md_free(mds[i]);
    return p;
}

//   y (n, out) = x (n, in) W^T + bias      dx (n, in) = dy (n, out) W      dW (out, in) = dy^T x
static void plan_products(Conv *c, int n)
{
    int in = (int)(shape_count(c->spec.x) / n), out = (int)(shape_count(c->y) / n);
    Type type = c->spec.x.type;
    c->forward.run = product(c, matrix(n, in, false, type), matrix(in, out, true, type),
                             matrix(n, out, false, c->y.type),
                             c->spec.bias ? matrix(1, out, false, TYPE_F32) : NULL);
    c->backward_data.run = product(c, matrix(n, out, false, type), matrix(out, in, false, type),
                                   matrix(n, in, false, type), NULL);
    c->backward_weights.run = product(c, matrix(out, n, true, type), matrix(n, in, false, type),
                                      matrix(out, in, false, TYPE_F32), NULL);
    c->expands = c->weights < (size_t)in * out || out > c->y.c;     // y's rows have several pixels
    if (c->expands)
        ops_need_scratch(c->ops, (size_t)in * out);
}

// The index of the live tap that connects input pixel p with channel o of output pixel q.
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

// The reverse of `expand` for gradients: a tap's gradient is the sum over the tap's copies in W.
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

// --- other convolutions --------------------------------------------------------------------------

static DnnMd activation_md(Shape s)
{
    return dnn_md(4, (dnnl_dims_t){ s.n, s.c, s.h, s.w }, type_of(s.type), dnnl_nhwc);
}

static DnnMd weights_md(const Conv *c, Type type, dnnl_format_tag_t order)
{
    const dnnl_dims_t dims = { c->y.c, c->spec.x.c, c->live.rows, c->live.cols };
    return dnn_md(4, dims, type_of(type), order);
}

// Takes ownership of `desc`.
static void plan_pass(Conv *c, Pass *p, DnnPass pass, const DnnConv *d, dnnl_primitive_desc_t desc)
{
    static const int arguments[][4] = {
        { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS },
        { DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC },
        { DNNL_ARG_DIFF_DST, DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS },
    };
    const bool gives = pass == DNN_BACKWARD_WEIGHTS;
    dnnl_query_t order = gives ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    DnnMd w = dnn_md_copy(dnnl_primitive_desc_query_md(desc, order, 0));
    DnnMd arena = weights_md(c, gives ? TYPE_F32 : c->spec.x.type, dnnl_ohwi);
    if (!dnnl_memory_desc_equal(w, arena)) {
        p->reorder = dnn_reorder(c->ops->engine, gives ? w : arena, gives ? arena : w);
        ops_need_scratch(c->ops, dnnl_memory_desc_get_size(w) / sizeof(float) + 1);
    }
    DnnMd mds[][4] = { { d->x, w, d->y, d->bias }, { d->y, w, d->x }, { d->y, d->x, w } };
    bool bias = pass == DNN_FORWARD && d->bias;
    p->run = dnn_primitive(c->ops->engine, desc, bias ? 4 : 3, arguments[pass], mds[pass]);
    dnn_md_free(w);
    dnn_md_free(arena);
}

// brgemm code (onednn.h) multiplies matrices with x.c columns and a row for each pixel in a row of
// y. The limits, 4 pixels of y and 32 channels of x, were measured with 35 shapes on an AMD EPYC.
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
    plan_pass(c, &c->forward, DNN_FORWARD, &d, desc);
    if (s->needs_dx)
        plan_pass(c, &c->backward_data, DNN_BACKWARD_DATA, &d,
                  dnn_conv_desc(engine, &d, DNN_BACKWARD_DATA, hint));
    d.w = any_f32;
    plan_pass(c, &c->backward_weights, DNN_BACKWARD_WEIGHTS, &d,
              dnn_conv_desc(engine, &d, DNN_BACKWARD_WEIGHTS, hint));
    DNN_CHECK(dnnl_primitive_desc_destroy(hint));
    DnnMd all[] = { d.x, d.y, d.bias, any, any_f32 };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dnn_md_free(all[i]);
}

// --- op.h ----------------------------------------------------------------------------------------

void *conv_new(const Op *op)
{
    Conv *c = xcalloc(1, sizeof *c);
    Ops *ops = c->ops = op->ops;
    c->spec = op->spec;
    c->y = op->y;
    c->type = c->spec.x.type;
    c->y_type = c->y.type;
    c->live = conv_live_taps(&c->spec);
    c->weights = conv_live_count(op);
    c->emulates = ops_emulates(ops->device, c->type);
    if (c->emulates) {
        c->spec.x.type = c->y.type = TYPE_F32;
        ops_need_wide(ops, shape_count(c->spec.x) + shape_count(c->y) + c->weights);
    }
    if (c->y_type != c->type)
        c->short_dy = device_alloc(ops->device, shape_count(c->y) * type_size(c->type));
    if (is_pointwise(&c->spec))
        plan_products(c, c->y.n * c->y.h * c->y.w);
    else if (is_dense(&c->spec, c->y))
        plan_products(c, c->y.n);
    else
        plan_convolution(c);
    return c;
}

void conv_free(void *own)
{
    Conv *c = own;
    Pass *all[] = { &c->forward, &c->backward_data, &c->backward_weights };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dnn_primitive_free(&all[i]->run);
        dnn_primitive_free(&all[i]->reorder);
    }
    device_free(c->ops->device, c->short_dy);
    free(c);
}

static const void *widened(const Conv *c, size_t count, const void *values, float **room)
{
    return ops_widened(c->ops, c->emulates, c->type, count, values, room);
}

// Returns the weights in the order that the pass reads.
static const void *weights_for(const Conv *c, const Pass *pass, const void *w, float **room)
{
    w = widened(c, c->weights, w, room);
    if (c->expands)
        expand(c, w, c->ops->scratch);
    else if (pass->reorder.primitive)
        dnn_run(&pass->reorder, c->ops->stream, (void *[]){ (void *)w, c->ops->scratch });
    else
        return w;
    return c->ops->scratch;
}

// Returns dy in the type that the passes read. If only y is f32 (the logits), rounds dy.
static const void *gradient(const Conv *c, const void *dy, float **room)
{
    if (c->short_dy) {
        values_narrow(compute(c->ops), c->type, shape_count(c->y), dy, 1, c->short_dy);
        dy = c->short_dy;
    }
    return widened(c, shape_count(c->y), dy, room);
}

void conv_forward(const Op *op, const OpArgs *a)
{
    const Conv *c = op->own;
    float *room = c->ops->wide;
    const void *x = widened(c, shape_count(c->spec.x), a->x, &room);
    const void *w = weights_for(c, &c->forward, a->w, &room);
    void *y = c->emulates ? room : a->y;
    dnn_run(&c->forward.run, c->ops->stream,
            (void *[]){ (void *)x, (void *)w, y, (void *)a->bias });
    if (c->emulates)
        values_narrow(compute(c->ops), c->y_type, shape_count(c->y), y, 1, a->y);
}

static void backward_data(const Conv *c, const OpArgs *a)
{
    float *room = c->ops->wide;
    const void *dy = gradient(c, a->dy1, &room);
    const void *w = weights_for(c, &c->backward_data, a->w, &room);
    void *dx = c->emulates ? room : a->dx;
    dnn_run(&c->backward_data.run, c->ops->stream, (void *[]){ (void *)dy, (void *)w, dx });
    if (c->emulates)
        values_narrow(compute(c->ops), c->type, shape_count(c->spec.x), dx, 1, a->dx);
}

static void backward_weights(const Conv *c, const OpArgs *a)
{
    float *room = c->ops->wide;
    const void *x = widened(c, shape_count(c->spec.x), a->x, &room);
    const void *dy = gradient(c, a->dy1, &room);
    const DnnPrimitive *reorder = &c->backward_weights.reorder;
    float *dw = c->expands || reorder->primitive ? c->ops->scratch : a->dw;
    dnn_run(&c->backward_weights.run, c->ops->stream, (void *[]){ (void *)dy, (void *)x, dw });
    if (c->expands)
        gather(c, dw, a->dw);
    else if (reorder->primitive)
        dnn_run(reorder, c->ops->stream, (void *[]){ dw, a->dw });
    if (c->spec.bias)
        bias_gradient(compute(c->ops), c->spec.x.type, shape_count(c->y) / c->y.c, c->y.c, dy,
                      a->dbias);
}

void conv_backward(const Op *op, const OpArgs *a)
{
    backward_weights(op->own, a);
    if (a->dx)
        backward_data(op->own, a);
}
