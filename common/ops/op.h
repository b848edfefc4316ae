// op.h - an operation, and what each kind provides for the table in model/ops.c.
#pragma once
#include "ops.h"
#include "trace.h"

struct Op {
    Ops *ops;
    OpSpec spec;
    Shape y;
    void *own;              // what OpNew has returned, or NULL
};

typedef Shape OpOutput(const OpSpec *spec);
typedef void *OpNew(const Op *op);
typedef void OpRun(const Op *op, const OpArgs *args);
typedef void OpFree(void *own);

OpOutput conv_output;
OpNew conv_new, norm_new, attention_new;
OpFree conv_free, norm_free, attention_free;
OpRun conv_forward, conv_backward, norm_forward, norm_backward, relu_forward, relu_backward,
    maxpool_forward, maxpool_backward, avgpool_forward, avgpool_backward, layer_norm_forward,
    layer_norm_backward, gelu_forward, gelu_backward, attention_forward, attention_backward,
    add_forward, add_backward;

// --- for convolutions ----------------------------------------------------------------------------

// The part of a kernel that ever overlaps the image. The rest only ever multiplies padding, so its
// gradient is zero.
//
//        a 3x3 kernel on 2x2 pixels           on 1x1
//      out 00 reads taps  . . .   01: . . .    . . .
//                         . 4 5       3 4 .    . 4 .     a dot: the tap reads only padding
//                         . 7 8       6 7 .    . . .
//
// The arena has the live weights as (out_channels, rows, cols, x.c), on every backend and
// processor. They are the kernel of a smaller convolution with the padding `pad` and `pad_after`.
typedef struct LiveTaps {
    int row, col, rows, cols;           // the first live row and column, and how many are live
    int pad[2], pad_after[2];           // padding above and left; padding below and right
} LiveTaps;

LiveTaps conv_live_taps(const OpSpec *spec);

// Matrices (rows, channels), row after row. y = x + bias. x is f32 or of `type`. If x is of `type`,
// x and y may be the same memory. dbias = the sums of dy's columns.
void bias_add(Ops *ops, Type type, size_t rows, int channels, const float *bias, Type x_type,
              const void *x, void *y);
void bias_gradient(Stream *stream, Type type, size_t rows, int channels, const void *dy,
                   float *dbias);
