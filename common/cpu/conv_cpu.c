// conv_cpu.c - convolution on oneDNN.
//
// In f32, and if the type is emulated, the arena (model.h) has the weights in the order of oneDNN's
// forward pass. In bf16 the passes read a 16-bit copy of the weights, and the arena has the order
// of the gradients. If backward-data needs a different order than forward, it first reorders the
// weights. Some convolutions are matrix products, with weights in an order of their own
// (dense_cpu.h).
#include "check.h"
#include "cpu/dense_cpu.h"
#include "cpu/ops_cpu.h"
#include "ops/numbers.h"

#include <stdlib.h>
#include <string.h>

typedef struct Conv {
    Ops *ops;
    Type type;                  // of the activations that callers pass
    bool emulates;              // then spec and y are of the f32 convolution
    OpSpec spec;
    Shape y, output;            // output: as callers get it
    void *short_dy;             // if only the output is f32: its rounded gradient
    DnnPrimitive forward, backward_data, backward_weights;
    Dense *dense;               // not NULL: a matrix product; all fields below are empty
    DnnMd w;                    // order of the weights in the arena
    DnnMd copy;                 // order of the weights for forward: w, or 16-bit
    DnnPrimitive w_for_data;    // copy -> backward-data's order; empty if that is the same
    DnnPrimitive dy_to_planes;  // y's order -> planes for backward-weights; empty if not needed
    DnnPrimitive dw_to_arena;   // backward-weights' order -> arena; empty if that is the same
    DnnPrimitive import, export;
    DnnPrimitive cast;          // arena -> copy
} Conv;

static bool is_row(int h, int w) { return h == 1 && w == 1; }

// oneDNN's fastest code needs channels in blocks as wide as its vectors. A y of several pixels is
// planes (block 1) if its channels do not fill blocks, or if x is planes of more than 3 channels.
static int output_block(const Ops *ops, const OpSpec *s, int h, int w)
{
    bool in_blocked = s->x.block == ops->block || s->x.c <= 3 || is_row(s->x.h, s->x.w);
    if (ops->block > 1 && s->out_channels % ops->block == 0 && in_blocked)
        return ops->block;
    return is_row(h, w) ? s->out_channels : 1;
}

static dnnl_data_type_t type_of(Type type) { return type == TYPE_F32 ? dnnl_f32 : dnnl_bf16; }

static DnnMd activation_md(Shape s)
{
    dnnl_format_tag_t tag = s.block == 16 ? dnnl_nChw16c : s.block == 8 ? dnnl_nChw8c : dnnl_nchw;
    return dnn_md(4, (dnnl_dims_t){ s.n, s.c, s.h, s.w }, type_of(s.type), tag);
}

static DnnMd weights_md(const OpSpec *s, Type type, dnnl_format_tag_t tag)
{
    const dnnl_dims_t dims = { s->out_channels, s->x.c, s->kernel_h, s->kernel_w };
    return dnn_md(4, dims, type_of(type), tag);
}

static bool same(const_dnnl_memory_desc_t a, const_dnnl_memory_desc_t b)
{
    return dnnl_memory_desc_equal(a, b) != 0;
}

static size_t matrix_count(const Conv *c)
{
    return shape_count(c->y) / (size_t)c->y.n * (shape_count(c->spec.x) / (size_t)c->spec.x.n);
}

static size_t floats(const_dnnl_memory_desc_t md)
{
    return (dnnl_memory_desc_get_size(md) + sizeof(float) - 1) / sizeof(float);
}

static size_t live_count(const Conv *c)
{
    return c->dense ? dense_live_count(c->dense) : floats(c->w);
}

static void plan_forward(Conv *c, const DnnConv *d, dnnl_primitive_desc_t desc)
{
    int arguments[] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS };
    DnnMd mds[] = { d->x, c->copy, d->y, d->bias };
    c->forward = dnn_primitive(c->ops->engine, desc, c->spec.bias ? 4 : 3, arguments, mds);
}

static void plan_backward_data(Conv *c, const DnnConv *d, dnnl_primitive_desc_t hint)
{
    dnnl_primitive_desc_t desc = dnn_conv_desc(c->ops->engine, d, DNN_BACKWARD_DATA, hint);
    DnnMd wanted = dnn_md_copy(dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0));
    if (!same(wanted, c->copy)) {
        c->w_for_data = dnn_reorder(c->ops->engine, c->copy, wanted);
        ops_need_scratch(c->ops, floats(wanted));
    }
    int arguments[] = { DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC };
    DnnMd mds[] = { d->y, wanted, d->x };
    c->backward_data = dnn_primitive(c->ops->engine, desc, 3, arguments, mds);
    dnn_md_free(wanted);
}

// Without AVX-512 and with images of one channel, this pass is fast only if y is planes.
static void plan_backward_weights(Conv *c, DnnConv d, dnnl_primitive_desc_t hint)
{
    Shape planes = c->y;
    planes.block = 1;
    DnnMd y = d.y, y_planes = activation_md(planes);
    dnnl_primitive_desc_t desc = dnn_conv_desc(c->ops->engine, &d, DNN_BACKWARD_WEIGHTS, hint);
    if (dnn_is_reference(desc) && c->y.block > 1) {
        DNN_CHECK(dnnl_primitive_desc_destroy(desc));
        d.y = y_planes;
        desc = dnn_conv_desc(c->ops->engine, &d, DNN_BACKWARD_WEIGHTS, hint);
        c->dy_to_planes = dnn_reorder(c->ops->engine, y, y_planes);
    }
    DnnMd given = dnn_md_copy(dnnl_primitive_desc_query_md(desc, dnnl_query_diff_weights_md, 0));
    if (!c->w)
        c->w = dnn_md_copy(given);
    if (!same(given, c->w))
        c->dw_to_arena = dnn_reorder(c->ops->engine, given, c->w);
    ops_need_scratch(c->ops, (c->dw_to_arena.primitive ? floats(given) : 0) +
                             (c->dy_to_planes.primitive ? shape_count(planes) : 0));
    int arguments[] = { DNNL_ARG_DIFF_DST, DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS,
                        DNNL_ARG_DIFF_BIAS };
    DnnMd mds[] = { d.y, d.x, given, d.bias };
    c->backward_weights = dnn_primitive(c->ops->engine, desc, c->spec.bias ? 4 : 3, arguments, mds);
    dnn_md_free(given);
    dnn_md_free(y_planes);
}

// oneDNN chooses the order of the weights for each pass, but forward has that of `like`, if given.
static void plan_convolution(Conv *c, const Conv *like)
{
    const OpSpec *s = &c->spec;
    Type type = s->x.type;
    DnnConv d = { .x = activation_md(s->x),
                  .y = activation_md(c->y),
                  .strides = { s->stride, s->stride },
                  .pad = { s->pad, s->pad } };
    DnnMd any = weights_md(s, type, dnnl_format_tag_any), oihw = weights_md(s, TYPE_F32, dnnl_oihw);
    DnnMd any_f32 = weights_md(s, TYPE_F32, dnnl_format_tag_any);
    if (s->bias)
        d.bias = dnn_md(1, (dnnl_dims_t){ s->out_channels }, dnnl_f32, dnnl_a);
    d.w = like ? like->copy : any;
    dnnl_primitive_desc_t hint, desc = dnn_conv_desc(c->ops->engine, &d, DNN_FORWARD, NULL);
    DNN_CHECK(dnnl_primitive_desc_clone(&hint, desc));
    c->copy = dnn_md_copy(dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0));
    if (like || type == TYPE_F32)
        c->w = dnn_md_copy(like ? like->w : c->copy);
    plan_forward(c, &d, desc);
    d.w = any;
    if (s->needs_dx)
        plan_backward_data(c, &d, hint);
    d.w = any_f32;
    plan_backward_weights(c, d, hint);
    if (type != TYPE_F32)
        c->cast = dnn_reorder(c->ops->engine, c->w, c->copy);
    c->import = dnn_reorder(c->ops->engine, oihw, c->w);
    c->export = dnn_reorder(c->ops->engine, c->w, oihw);
    DNN_CHECK(dnnl_primitive_desc_destroy(hint));
    DnnMd all[] = { d.x, d.y, d.bias, any, any_f32, oihw };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dnn_md_free(all[i]);
}

static DnnMd matrix(int rows, int columns, bool transposed, Type type)
{
    return dnn_md(2, (dnnl_dims_t){ rows, columns }, type_of(type),
                  transposed ? dnnl_ba : dnnl_ab);
}

// c = a b (+ bias). Takes ownership of the descriptions.
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
static void plan_products(Conv *c)
{
    int n = c->y.n, in = (int)(shape_count(c->spec.x) / n), out = (int)(shape_count(c->y) / n);
    Type type = c->spec.x.type;
    c->forward = product(c, matrix(n, in, false, type), matrix(in, out, true, type),
                         matrix(n, out, false, c->y.type),
                         c->spec.bias ? matrix(1, out, false, TYPE_F32) : NULL);
    c->backward_data = product(c, matrix(n, out, false, type), matrix(out, in, false, type),
                               matrix(n, in, false, type), NULL);
    c->backward_weights = product(c, matrix(out, n, true, type), matrix(n, in, false, type),
                                  matrix(out, in, false, TYPE_F32), NULL);
    if (!dense_is_matrix(c->dense))
        ops_need_scratch(c->ops, matrix_count(c));
}

Shape conv_output(const Ops *ops, const OpSpec *s)
{
    int h = window_count(s->x.h, s->kernel_h, s->stride, s->pad);
    int w = window_count(s->x.w, s->kernel_w, s->stride, s->pad);
    return (Shape){ s->x.n, s->out_channels, h, w, output_block(ops, s, h, w),
                    s->f32_out ? TYPE_F32 : s->x.type };
}

void *conv_new(const Op *op, const void *like)
{
    Conv *c = xcalloc(1, sizeof *c);
    Ops *ops = c->ops = op->ops;
    const Shape *x = &op->spec.x;
    c->type = x->type;
    c->emulates = ops_emulates(ops->device, x->type);
    c->spec = op->spec;
    c->y = c->output = op->y;
    if (c->emulates)
        c->spec.x.type = c->y.type = TYPE_F32;
    if (c->output.type != c->type)
        c->short_dy = device_alloc(ops->device, shape_count(c->y) * type_size(c->type));
    c->dense = dense_new(&c->spec, c->y);
    if (c->dense)
        plan_products(c);
    else
        plan_convolution(c, like);
    if (c->emulates)
        ops_need_wide(ops, shape_count(*x) + shape_count(c->y) + live_count(c));
    return c;
}

void conv_free(void *own)
{
    Conv *c = own;
    DnnPrimitive *all[] = { &c->forward, &c->backward_data, &c->backward_weights, &c->w_for_data,
                            &c->dy_to_planes, &c->dw_to_arena, &c->import, &c->export, &c->cast };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        dnn_primitive_free(all[i]);
    dnn_md_free(c->w);
    dnn_md_free(c->copy);
    device_free(c->ops->device, c->short_dy);
    free(c->dense);
    free(c);
}

size_t conv_live_count(const Op *op) { return live_count(op->own); }

size_t conv_dead_count(const Op *op)
{
    const Conv *c = op->own;
    return c->dense ? dense_dead_count(c->dense) : 0;
}

void conv_weights_move(const Op *op, float *live, float *dead, float *oihw, Direction direction)
{
    const Conv *c = op->own;
    if (c->dense) {
        dense_reorder(c->dense, live, dead, oihw, direction);
    } else if (direction == TO_TORCH) {
        dnn_run(&c->export, c->ops->stream, (void *[]){ live, oihw });
    } else {
        memset(live, 0, floats(c->w) * sizeof *live);   // padding stays zero
        dnn_run(&c->import, c->ops->stream, (void *[]){ oihw, live });
    }
}

// For a matrix product, the copy is the whole W (dense_cpu.h), not only the live taps.
size_t conv_copy_bytes(const Op *op)
{
    const Conv *c = op->own;
    Type type = c->spec.x.type;
    if (type == TYPE_F32)
        return 0;
    return c->dense ? matrix_count(c) * type_size(type) : dnnl_memory_desc_get_size(c->copy);
}

void conv_weights_cast(const Op *op, const float *live, void *copy)
{
    const Conv *c = op->own;
    if (!c->dense) {
        dnn_run(&c->cast, c->ops->stream, (void *[]){ (void *)live, copy });
        return;
    }
    Type type = c->spec.x.type;
    void *taps = dense_is_matrix(c->dense) ? copy : c->ops->scratch;
    values_narrow(c->ops, compute(c->ops), type, dense_live_count(c->dense), live, 1, taps);
    if (taps != copy)
        dense_expand(c->dense, type_size(type), taps, copy);
}

// If w is the live taps of a matrix product, makes W from them.
static const void *expanded(const Conv *c, const void *w)
{
    if (!c->dense || dense_is_matrix(c->dense) || c->spec.x.type != TYPE_F32)
        return w;
    dense_expand(c->dense, sizeof(float), w, c->ops->scratch);
    return c->ops->scratch;
}

// If only y is f32 (the logits), returns dy rounded to the type of x, else dy.
static const void *rounded_gradient(const Conv *c, const void *dy)
{
    if (!c->short_dy)
        return dy;
    values_narrow(c->ops, compute(c->ops), c->type, shape_count(c->y), dy, 1, c->short_dy);
    return c->short_dy;
}

static const void *widened(const Conv *c, size_t count, const void *values, float **room)
{
    return ops_widened(c->ops, c->emulates, c->type, count, values, room);
}

void conv_forward(const Op *op, const OpArgs *a)
{
    const Conv *c = op->own;
    float *room = c->ops->wide;
    const void *x = widened(c, shape_count(c->spec.x), a->x, &room);
    const void *w = expanded(c, widened(c, live_count(c), a->w, &room));
    void *to = c->emulates ? room : a->y;
    dnn_run(&c->forward, c->ops->stream, (void *[]){ (void *)x, (void *)w, to, (void *)a->bias });
    if (c->emulates)
        values_narrow(c->ops, compute(c->ops), c->output.type, shape_count(c->y), room, 1, a->y);
}

static void backward_data(const Conv *c, const OpArgs *a)
{
    float *room = c->ops->wide;
    const void *dy = widened(c, shape_count(c->y), rounded_gradient(c, a->dy1), &room);
    const void *w = expanded(c, widened(c, live_count(c), a->w, &room));
    void *to = c->emulates ? room : a->dx;
    if (c->w_for_data.primitive) {
        dnn_run(&c->w_for_data, c->ops->stream, (void *[]){ (void *)w, c->ops->scratch });
        w = c->ops->scratch;
    }
    dnn_run(&c->backward_data, c->ops->stream, (void *[]){ (void *)dy, (void *)w, to });
    if (c->emulates)
        values_narrow(c->ops, compute(c->ops), c->type, shape_count(c->spec.x), room, 1, a->dx);
}

static void backward_weights(const Conv *c, const OpArgs *a)
{
    float *room = c->ops->wide, *dw = a->dw;
    const void *x = widened(c, shape_count(c->spec.x), a->x, &room);
    const void *dy = widened(c, shape_count(c->y), rounded_gradient(c, a->dy1), &room);
    bool expands = c->dense && !dense_is_matrix(c->dense);
    float *scratch = c->ops->scratch;
    if (c->dy_to_planes.primitive) {
        dnn_run(&c->dy_to_planes, c->ops->stream, (void *[]){ (void *)dy, scratch });
        dy = scratch;
        scratch += shape_count(c->y);
    }
    float *to = expands || c->dw_to_arena.primitive ? scratch : dw;
    dnn_run(&c->backward_weights, c->ops->stream,
            (void *[]){ (void *)dy, (void *)x, to, a->dbias });
    if (expands)
        dense_gather(c->dense, to, dw);
    else if (to != dw)
        dnn_run(&c->dw_to_arena, c->ops->stream, (void *[]){ to, dw });
    if (c->dense && c->spec.bias)
        bias_gradient(compute(c->ops), c->spec.x.type, c->y.n, c->y.c, dy, a->dbias);
}

void conv_backward(const Op *op, const OpArgs *a)
{
    backward_weights(op->own, a);
    if (a->dx)
        backward_data(op->own, a);
}
