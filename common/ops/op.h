// op.h - an operation, and what each kind provides for the table in model/ops.c.
#pragma once
#include "ops.h"
#include "trace.h"

struct Op {
    Ops *ops;
    OpSpec spec;
    Shape y;
    void *own;              // what the kind keeps, if anything
};

typedef Shape OpOutput(const Ops *ops, const OpSpec *spec);
typedef void *OpNew(const Op *op, const void *like);    // like: the other operation's own, or NULL
typedef void OpRun(const Op *op, const OpArgs *args);
typedef void OpFree(void *own);

OpOutput conv_output;
OpNew conv_new, norm_new, attention_new;
OpFree conv_free, norm_free, attention_free;
OpRun conv_forward, conv_backward, norm_forward, norm_backward, relu_forward, relu_backward,
    maxpool_forward, maxpool_backward, avgpool_forward, avgpool_backward, layer_norm_forward,
    layer_norm_backward, gelu_forward, gelu_backward, attention_forward, attention_backward,
    add_forward, add_backward;

// For convolutions: matrices (rows, channels), row after row. y = x + bias. x is f32 or of `type`.
// If x is of `type`, x and y may be the same memory. dbias = the sums of dy's columns.
void bias_add(Ops *ops, Type type, size_t rows, int channels, const float *bias, Type x_type,
              const void *x, void *y);
void bias_gradient(Stream *stream, Type type, size_t rows, int channels, const void *dy,
                   float *dbias);
