// ops.h - the operations that a network is made of, forward and backward.
//
// Convolutions, products of matrices, attention and the gradient of max pooling are in cpu/, which
// uses oneDNN, and in cuda/, which uses cuDNN and cuBLASLt; you choose one when you link. All other
// operations are in ops/, once for both. Operations enqueue their work on the device's compute
// stream, or on the stream that is an argument (but see ops_beside). Arrays, Scalars and Stats are
// in device memory unless a comment has "host". Activations, parameters and gradients begin at
// multiples of 16 bytes.
#pragma once
#include "args.h"
#include "device.h"
#include "stats.h"
#include <stdint.h>

// bf16 is the upper half of an f32: the same exponents, 8 bits of precision. f16 is IEEE's: 11
// bits, but at most 65504, and less precision below 6e-5.
typedef enum { TYPE_F32, TYPE_BF16, TYPE_F16 } Type;

static inline size_t type_size(Type type) { return type == TYPE_F32 ? 4 : 2; }

// An activation is data[n][h][w][c]: a pixel's channels are neighbours (NHWC).
typedef struct Shape {
    int n, c, h, w;
    Type type;
} Shape;

static inline size_t shape_count(Shape s) { return (size_t)s.n * s.c * s.h * s.w; }
static inline size_t shape_bytes(Shape s) { return shape_count(s) * type_size(s.type); }

// --- one device's libraries and scratch memory --------------------------------------------------

typedef struct OpsConfig {
    bool tf32;           // CUDA: round f32 inputs of products to 11 bits, but not in the last layer
    bool deterministic;  // CUDA: use only bit-reproducible algorithms (the CPU always does)
} OpsConfig;
// Sets the defaults and adds the options.
void ops_options(Args *args, OpsConfig *config);

typedef struct Ops Ops;
Ops *ops_new(Device *device, const OpsConfig *config);
void ops_free(Ops *ops);

// The type in which this device is fastest.
Type ops_best_type(const Device *device);
// True if convolutions and attention of this type compute in f32 and then round, which is slower
// than f32.
bool ops_emulates(const Device *device, Type type);

// --- values kept on the device, so that a recorded step can be replayed --------------------------

typedef struct StepSettings {
    float lr, momentum, weight_decay;
    int32_t nesterov;
    float clip_norm;    // gradients with a larger norm are scaled down to it; 0: no clipping
    double betas[2];    // AdamW: how much of the mean gradient and the mean square each step keeps
    int64_t step;       // the step's number, from 1; skipped steps count
    int32_t rows_of_batch;  // divide losses by this number of rows; 0: by the rows of each call
} StepSettings;

typedef struct LossScale {
    float value;        // factor of the loss before backward; 1: no loss scale
    int32_t clean;      // steps in a row without an overflow; reset to 0 after `interval` steps
    int32_t skipped;    // steps with an overflow since the run began
} LossScale;

typedef struct Scalars {
    StepSettings set;
    LossScale scale;
    // Values of the current step:
    int32_t rows_done;  // rows whose loss has been computed; stays 0 if rows_of_batch is 0
    int32_t skip;       // not zero: the update changes nothing
    double over;        // number of rows in the mean of the loss
    double norm;        // norm of the gradients, set by gradients_norm
    double bias_corrections[2];     // AdamW: 1 - beta^updates
} Scalars;
// Call it before each step. It copies the settings, sets rows_done, skip and norm to 0, and
// computes bias_corrections.
void scalars_set(Ops *ops, Scalars *scalars, StepSettings settings);

// Call it after the update. A skipped step halves the loss scale, but not below LOSS_SCALE_LEAST.
// `interval` steps in a row without an overflow double the loss scale, if it stays finite.
#define LOSS_SCALE_LEAST 0x1p-24f
void loss_scale_adapt(Ops *ops, Scalars *scalars, int interval);

// --- the operations of layers --------------------------------------------------------------------
//
// x, y and their gradients have the type of the spec's x, but see f32_out. Biases, statistics and
// the gradients of parameters are always f32.

// Dropout zeroes some numbers and divides the others by 1 - rate. The choice depends only on the
// rate, the layer, the number's position in the sample, and the sample's key (a hash of seed, epoch
// and sample). So backward, and any rank or backend, zeroes the same numbers.
typedef struct Dropout {
    float rate;         // the fraction of numbers that become zero: 0 to below 1
    int layer;          // a different number for each dropout of a network
} Dropout;

#ifdef __CUDACC__
#define ALSO_ON_DEVICE __host__ __device__
#else
#define ALSO_ON_DEVICE
#endif

ALSO_ON_DEVICE static inline uint64_t dropout_stream(uint64_t key, int layer)
{
    uint64_t x = key + (uint64_t)(layer + 1) * 0x9e3779b97f4a7c15u;     // splitmix64
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// Does dropout keep the number at this position? limit: rate * 2^32.
ALSO_ON_DEVICE static inline bool dropout_keeps(uint64_t stream, uint32_t position, uint32_t limit)
{
    uint32_t x = position ^ (uint32_t)stream;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) + (uint32_t)(stream >> 32);
    x *= 0x846ca68bu;
    return (x ^ x >> 16) >= limit;
}

static inline uint32_t dropout_limit(float rate) { return (uint32_t)(rate * 0x1p32f); }

// In a network for texts a value is a matrix, Shape{ rows, c, 1, 1 }, and each row is one token. A
// sample is a window of T tokens: T consecutive rows.
typedef enum OpKind {
    // A convolution, or a linear layer: a convolution whose kernel covers the whole image. Products
    // are added up in f32.
    OP_CONV,
    // Batch normalisation, and optionally the addition and the ReLU that follow in residual nets:
    //   y = relu(gamma * (x - mean) / sqrt(var + 1e-5) + beta + residual)
    // Training uses this batch's statistics and updates the running statistics; evaluation uses
    // the running statistics.
    OP_NORM,
    // y = x <= 0 ? 0 : x; dx = y <= 0 ? 0 : dy
    OP_RELU,
    OP_MAXPOOL,
    // The mean over each image's pixels: (n, c, h, w) -> (n, c, 1, 1).
    OP_AVGPOOL,
    // Layer normalisation of each row: y = gamma * (x - mean) / sqrt(var + 1e-5) + beta.
    OP_ROW_NORM,
    // With tanh, as in GPT-2: y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))).
    OP_GELU,
    // Causal self-attention: in each sample and head, with q, k, v and y (T, c / heads),
    //   y = dropout(softmax(q k^T / sqrt(c / heads))) v
    // where a token's softmax is over this token and the tokens before it. A row of x is q, k, v
    // of all heads, 3 * c numbers. For dropout, a position is (head * T + row) * T + column.
    OP_ATTENTION,
    // y = residual + dropout(x); if residual is NULL, y = dropout(x). For dropout, a position is
    // row * c + column, where `row` counts the rows of the sample.
    OP_ADD,
    OP_KINDS
} OpKind;

// If a field's comment names kinds, only these kinds use the field.
typedef struct OpSpec {
    OpKind kind;
    Shape x;
    int out_channels, kernel_h, kernel_w, stride, pad;  // OP_CONV; OP_MAXPOOL: square kernels
    bool bias;          // OP_CONV
    bool needs_dx;      // OP_CONV: false in the first layer
    bool f32_out;       // OP_CONV: y and dy are f32, for the loss
    bool relu;          // OP_NORM
    int heads;          // OP_ATTENTION
    int T;              // OP_ATTENTION, OP_ADD
    Dropout dropout;    // OP_ATTENTION, OP_ADD
} OpSpec;

// The number of positions of a kernel along one side of an image.
static inline int window_count(int size, int kernel, int stride, int pad)
{
    return (size + 2 * pad - kernel) / stride + 1;
}

// OP_ROW_NORM has no running statistics, and its mean and inv_std have a number for each row.
typedef struct NormTensors {
    const float *gamma, *beta;              // (c)
    float *running_mean, *running_var;      // (c) momentum 0.1, unbiased variance, as in PyTorch
    float *mean, *inv_std;                  // (c) of this batch: saved by forward for backward
    float *dgamma, *dbeta;                  // (c)
} NormTensors;

typedef struct OpArgs {
    bool training;                  // OP_NORM
    const void *x, *residual;       // residual: OP_NORM, OP_ADD; or NULL
    void *y;
    const void *dy1, *dy2;          // the gradient of y is dy1 + dy2. dy2 is NULL unless two layers
                                    // read y, the output of OP_NORM, OP_MAXPOOL or OP_ADD
    void *dx, *dresidual;           // NULL: not needed. Only OP_CONV may have dx NULL. In OP_RELU
                                    // and OP_GELU, dx may be the same memory as dy1
    const void *w;                  // OP_CONV: the live weights, in the type of x
    const float *bias;
    float *dw, *dbias;
    NormTensors norm;               // OP_NORM, OP_ROW_NORM
    uint8_t *index;                 // OP_MAXPOOL: each y's position in its window; saved by forward
    const uint64_t *keys;           // a key for each sample, for dropout; NULL: nothing is dropped
} OpArgs;

typedef struct Op Op;
Op *op_new(Ops *ops, const OpSpec *spec);
void op_free(Op *op);
Shape op_output(const Op *op);
void op_forward(const Op *op, const OpArgs *args);
void op_backward(const Op *op, const OpArgs *args);

// True: gradients of a convolution's weights are computed in parallel with later work of the
// device's stream. Then dw and dbias are complete, and x and dy1 may change, only after ops_join.
extern const bool ops_beside;
// Makes later work of the device's stream wait for all gradients of weights.
void ops_join(Ops *ops);

// Weights that only ever multiply padding are dead: they are elsewhere in the arena, and no product
// reads them. conv_weights_move copies all weights to torch's OIHW order, or back, in host memory.
typedef enum Direction { TO_TORCH, FROM_TORCH } Direction;
size_t conv_live_count(const Op *conv);     // number of live weights in the arena
size_t conv_dead_count(const Op *conv);
void conv_weights_move(const Op *conv, float *live, float *dead, float *oihw, Direction direction);

// From now on the statistics of OP_NORM in training are over the batches of `size` processes, and
// dgamma and dbeta are this process's part of the sums. gather collects the `count` numbers of
// every process in `all`, in rank order, on the compute stream. All processes must normalise the
// same layers in the same order.
typedef void (*OpsGather)(void *arg, const double *mine, double *all, size_t count);
void ops_share_norms(Ops *ops, int size, OpsGather gather, void *arg);

// --- texts ---------------------------------------------------------------------------------------

// Turns each token into a row of vocab + T numbers: 1 at the token and at vocab + its position, 0
// elsewhere. A linear layer then gives the sum of the token's and the position's embeddings. With a
// vocabulary of thousands, this would be slow.
typedef struct OneHotSpec {
    int samples, T, vocab;
    Type type;
} OneHotSpec;
// batch: (samples, 2 + T): each sample's key, low word first, then its tokens. Copies the keys.
void one_hot(Ops *ops, const OneHotSpec *spec, const int32_t *batch, void *out, uint64_t *keys);

// --- loss and optimizer --------------------------------------------------------------------------

// Cross-entropy over rows of logits (rows, classes). Rows whose label is negative do not count.
// Adds to stats; dlogits (NULL when only evaluating) = loss_scale * d(mean loss) / d(logits). The
// mean is over the rows that count. But with dlogits and rows_of_batch, the sum of this call's
// losses is divided by rows_of_batch, so that the gradients of several calls add up. The batch_
// fields of stats then cover all calls since scalars_set.
void loss_cross_entropy(Ops *ops, int rows, int classes, const float *logits, const int32_t *labels,
                        Scalars *scalars, Stats *stats, float *dlogits);

typedef struct Verdict {
    int32_t label;          // negative: the row does not count, and the other fields are 0
    int32_t prediction;     // the first class with the largest logit; a NaN is larger than any
                            // number (as in torch.argmax)
    int32_t before;         // how many classes rank above the label; top 5: fewer than 5
    float loss;
} Verdict;
// Fills verdicts[0] to verdicts[rows - 1]. If the loss is not finite, `before` is INT32_MAX, so the
// row counts as wrong.
void judge_rows(Ops *ops, int rows, int classes, const float *logits, const int32_t *labels,
                Verdict *verdicts);

// torch.optim.SGD over the whole arena at once:
//   g += weight_decay * p;  v = momentum * v + g;  p -= lr * (nesterov ? g + momentum * v : v)
// Before that, if set.clip_norm is not 0, as in torch.nn.utils.clip_grad_norm_:
//   g *= min(1, clip_norm / (norm + 1e-6))
// grads has the gradients of the first grad_count parameters; the gradients of the others are 0.
void sgd_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                float *velocity, const Scalars *scalars);

enum { PARAM_ALIGN = 16 };  // weights, biases, gamma and beta begin at multiples of 16 floats

// torch.optim.AdamW likewise:
//   p *= 1 - lr * weight_decay, if it decays
//   mean = beta1 * mean + (1 - beta1) * g;  square = beta2 * square + (1 - beta2) * g * g
//   p -= lr * mean / bias_corrections[0] / (sqrt(square / bias_corrections[1]) + 1e-8)
// count is a multiple of PARAM_ALIGN. decays: for each PARAM_ALIGN parameters, 1 if they decay.
void adamw_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                  float *mean, float *square, const uint8_t *decays, const Scalars *scalars);

// values += more
void add_into(Ops *ops, size_t count, float *values, const float *more);

// If a gradient is infinite or NaN: sets scalars->skip, and adds 1 to stats->bad_gradients.
void gradients_check(Ops *ops, size_t count, const float *grads, Scalars *scalars, Stats *stats);
// grads /= the loss scale.
void gradients_unscale(Ops *ops, size_t count, float *grads, const Scalars *scalars);
// scalars->norm = the square root of the sum of squares, in f64. The order of the sum does not
// depend on the number of threads.
void gradients_norm(Ops *ops, size_t count, const float *grads, Scalars *scalars);

// On any stream of the device: narrow = values * factor, rounded to the type.
void values_narrow(Stream *stream, Type type, size_t count, const float *values, float factor,
                   void *narrow);
// On any stream of the device: values = narrow.
void values_widen(Stream *stream, Type type, size_t count, const void *narrow, float *values);

// --- images --------------------------------------------------------------------------------------

// out = (images / 255 - mean) / std, rounded to the type of the shape. images: (n, channels,
// shape.h, shape.w). In out, images n to shape.n - 1 are zeros. mean and std: host.
void images_load(Stream *stream, const uint8_t *images, int n, int channels, const float mean[3],
                 const float std[3], void *out, Shape shape);
