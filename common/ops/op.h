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

typedef Shape OpOutput(const OpSpec *spec);
typedef void *OpNew(const Op *op, const void *like);    // like: the other operation's own, or NULL
typedef void OpRun(const Op *op, const OpArgs *args);
typedef void OpFree(void *own);

OpOutput conv_output;
OpNew conv_new, linear_new, norm_new, attention_new;
OpFree conv_free, linear_free, norm_free, attention_free;
OpRun conv_forward, conv_backward, linear_forward, linear_backward, norm_forward, norm_backward,
    relu_forward, relu_backward, maxpool_forward, maxpool_backward, avgpool_forward,
    avgpool_backward, layer_norm_forward, layer_norm_backward, gelu_forward, gelu_backward,
    attention_forward, attention_backward, add_forward, add_backward;

// --- what operations share -----------------------------------------------------------------------

// Scratch memory, which the operations of the device's stream use in turn. Ask for it in op_new:
// the memory may move.
void ops_need_scratch(Ops *ops, size_t bytes);
void *ops_scratch(const Ops *ops);
// Of `count` equal parts of an operation, each of which needs `bytes` of scratch memory: how many
// to compute together. GPU: all. CPU: as many as its caches hold.
int ops_together(const Ops *ops, int count, size_t bytes);
// For gradients of weights (ops_beside): later work of the stream that it returns follows all work
// that the device's stream has so far. CPU: it is the device's stream.
Stream *ops_fork(Ops *ops);

// --- products of matrices: cpu/product_cpu.c, cuda/product_cuda.c --------------------------------

// c (m, n) = a (m, k) times b (k, n), plus a bias for each column; or `batch` such products, whose
// matrices follow each other. Matrices are stored row after row, without gaps. Sums are f32.
typedef struct ProductSpec {
    int m, n, k;
    int batch;                  // 0: one product
    bool a_turned, b_turned;    // a is stored as (k, m), b as (n, k)
    Type in, out;               // of a and b; of c
    bool bias;
    bool exact;                 // on a GPU, f32 stays f32, also with OpsConfig's tf32
    bool beside;                // it runs in the stream of ops_fork
} ProductSpec;

typedef struct Product Product;
Product *product_new(Ops *ops, const ProductSpec *spec);
void product_free(Product *product);
void product_run(const Product *product, const void *a, const void *b, const float *bias, void *c);

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
// processor. They are the kernel of a smaller convolution with this padding.
typedef struct LiveTaps {
    int row, col, rows, cols;
    int pad[2], pad_after[2];           // of rows and columns: above and left, below and right
} LiveTaps;

LiveTaps conv_live_taps(const OpSpec *spec);

// Is the convolution one product of matrices (linear.c)? If not, conv_new makes it.
bool conv_is_product(const OpSpec *spec);

// Matrices (rows, channels), row after row. y = x + bias. x is f32 or of `type`. If x is of `type`,
// x and y may be the same memory. dbias = the sums of dy's columns.
void bias_add(Ops *ops, Type type, size_t rows, int channels, const float *bias, Type x_type,
              const void *x, void *y);
void bias_gradient(Stream *stream, Type type, size_t rows, int channels, const void *dy,
                   float *dbias);
