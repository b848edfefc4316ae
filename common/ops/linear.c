// linear.c - convolutions that are one product of matrices: y = x w^T + bias, with a row of x for
//
//   each image    in a linear layer, and wherever the kernel's live taps cover the image once
//   each pixel    if the kernel is 1x1
#include "ops/loops.h"

#include <stdlib.h>

typedef struct Linear {
    Device *device;
    Product *forward, *backward_data, *backward_weights;
    void *short_dy;             // of logits: dy in the type of x
} Linear;

static int rows_of(const Op *op) { return op->y.n * op->y.h * op->y.w; }

//   y (rows, out) = x (rows, in) w^T    dx (rows, in) = dy (rows, out) w    dw (out, in) = dy^T x
void *linear_new(const Op *op, const void *like)
{
    const OpSpec *s = &op->spec;
    const Type type = s->x.type;
    const int rows = rows_of(op), out = op->y.c, in = (int)(shape_count(s->x) / rows);
    Linear *l = (Linear *)xcalloc(1, sizeof *l);
    ProductSpec forward = { .m = rows, .n = out, .k = in, .b_turned = true, .in = type,
                            .out = op->y.type, .bias = s->bias, .exact = s->f32_out };
    ProductSpec backward_data = { .m = rows, .n = in, .k = out, .in = type, .out = type,
                                  .exact = s->f32_out };
    ProductSpec backward_weights = { .m = out, .n = in, .k = rows, .a_turned = true, .in = type,
                                     .out = TYPE_F32, .exact = s->f32_out, .beside = true };
    l->device = op->ops->device;
    l->forward = product_new(op->ops, &forward);
    if (s->needs_dx)
        l->backward_data = product_new(op->ops, &backward_data);
    l->backward_weights = product_new(op->ops, &backward_weights);
    if (op->y.type != type)
        l->short_dy = device_alloc(l->device, shape_count(op->y) * type_size(type));
    return l;
}

void linear_free(void *own)
{
    Linear *l = (Linear *)own;
    product_free(l->forward);
    product_free(l->backward_data);
    product_free(l->backward_weights);
    device_free(l->device, l->short_dy);
    free(l);
}

void linear_forward(const Op *op, const OpArgs *a)
{
    const Linear *l = (const Linear *)op->own;
    product_run(l->forward, a->x, a->w, a->bias, a->y);
}

void linear_backward(const Op *op, const OpArgs *a)
{
    const Linear *l = (const Linear *)op->own;
    const void *dy = a->dy1;
    if (l->short_dy) {
        values_narrow(op->ops, compute(op->ops), op->spec.x.type, shape_count(op->y),
                      (const float *)dy, 1, l->short_dy);
        dy = l->short_dy;
    }
    Stream *beside = ops_fork(op->ops);
    product_run(l->backward_weights, dy, a->x, NULL, a->dw);
    if (op->spec.bias)
        bias_gradient(beside, op->y.type, rows_of(op), op->y.c, a->dy1, a->dbias);
    if (a->dx)
        product_run(l->backward_data, dy, a->w, NULL, a->dx);
}
