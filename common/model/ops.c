// ops.c - the options of ops.h, and the table of the kinds of operations.
#include "ops.h"
#include "check.h"
#include "ops/op.h"

#include <stdlib.h>

void ops_options(Args *args, OpsConfig *config)
{
    *config = (OpsConfig){ .tf32 = true };
    args_add(args, ARGS_ROWS(
        { "tf32", 0, ARG_FLAG, &config->tf32, NULL,
          "GPU: round the inputs of f32 products to TF32, except in the last layer" },
        { "deterministic", 0, ARG_FLAG, &config->deterministic, NULL,
          "GPU: make runs bit-identical, but slower (CPU: always bit-identical)" }));
}

static Shape same(const OpSpec *spec) { return spec->x; }

static Shape windows(const OpSpec *s)
{
    return (Shape){ s->x.n, s->x.c, window_count(s->x.h, s->kernel_h, s->stride, s->pad),
                    window_count(s->x.w, s->kernel_h, s->stride, s->pad), s->x.type };
}

// A row of c values for each image or token.
static Shape row(Shape x, int c) { return (Shape){ x.n, c, 1, 1, x.type }; }
static Shape mean_row(const OpSpec *spec) { return row(spec->x, spec->x.c); }
static Shape heads_row(const OpSpec *spec) { return row(spec->x, spec->x.c / 3); }

static const struct {
    OpOutput *output;
    OpRun *forward, *backward;
    OpNew *new;
    OpFree *free;
} kinds[OP_KINDS] = {
    [OP_CONV] = { conv_output, conv_forward, conv_backward, conv_new, conv_free },
    [OP_NORM] = { same, norm_forward, norm_backward, norm_new, norm_free },
    [OP_RELU] = { same, relu_forward, relu_backward },
    [OP_MAXPOOL] = { windows, maxpool_forward, maxpool_backward },
    [OP_AVGPOOL] = { mean_row, avgpool_forward, avgpool_backward },
    [OP_ROW_NORM] = { same, layer_norm_forward, layer_norm_backward },
    [OP_GELU] = { same, gelu_forward, gelu_backward },
    [OP_ATTENTION] = { heads_row, attention_forward, attention_backward, attention_new,
                       attention_free },
    [OP_ADD] = { same, add_forward, add_backward },
};

Op *op_new(Ops *ops, const OpSpec *spec)
{
    Op *op = xcalloc(1, sizeof *op);
    *op = (Op){ ops, *spec, kinds[spec->kind].output(spec) };
    if (kinds[spec->kind].new)
        op->own = kinds[spec->kind].new(op);
    return op;
}

void op_free(Op *op)
{
    if (op && op->own)
        kinds[op->spec.kind].free(op->own);
    free(op);
}

Shape op_output(const Op *op) { return op->y; }

void op_forward(const Op *op, const OpArgs *args) { kinds[op->spec.kind].forward(op, args); }

void op_backward(const Op *op, const OpArgs *args) { kinds[op->spec.kind].backward(op, args); }
