// ops.h - the operations that a convolutional network is made of, forward and backward.
//
// Two implementations, chosen when linking: cuda/ops_cuda.c (cuDNN, cuBLASLt, a few kernels) and
// cpu/ops_cpu.c (oneDNN, a few loops). Every call enqueues its work on the compute stream of the
// device and returns. Pointers are device memory unless a line says "host".
#pragma once
#include "args.h"
#include "device.h"
#include "stats.h"
#include <stdint.h>

// How a number of an activation is stored. bf16 is the upper half of an f32: its range, 8 bits of
// precision. f16 is IEEE's: 11 bits, but nothing beyond 65504, and little below 6e-5.
typedef enum { TYPE_F32, TYPE_BF16, TYPE_F16 } Type;

static inline size_t type_size(Type type) { return type == TYPE_F32 ? 4 : 2; }

// An activation is data[n][c / block][h][w][block]: block == c is NHWC, block == 1 is NCHW, and in
// between lies what vector units like (nChw16c). The backend chooses the block of every output.
typedef struct Shape {
    int n, c, h, w;
    int block;
    Type type;
} Shape;

static inline size_t shape_count(Shape s) { return (size_t)s.n * s.c * s.h * s.w; }
static inline size_t shape_bytes(Shape s) { return shape_count(s) * type_size(s.type); }

// --- one device's libraries and scratch memory --------------------------------------------------

typedef struct OpsConfig {
    bool tf32;           // CUDA: let tensor cores round f32 inputs of convolutions to 10 bits
    bool deterministic;  // CUDA: only algorithms that give the same bits twice (the CPU always does)
} OpsConfig;
void ops_options(Args *args, OpsConfig *config);

typedef struct Ops Ops;
Ops *ops_new(Device *device, const OpsConfig *config);
void ops_free(Ops *ops);
int ops_input_block(const Ops *ops, int channels); // the block in which images should arrive

// The type in which this device computes fastest: a short one where it has instructions for it.
Type ops_best_type(const Device *device);
// It has none for this type: convolutions then compute in f32, and round what they write. That is
// slower than f32, but gives the numbers that the type would.
bool ops_emulates(const Device *device, Type type);

// --- numbers that live on the device, so that a recorded step can be replayed --------------------

typedef struct Scalars {
    float lr, momentum, weight_decay;
    int32_t nesterov;
    float smoothing;    // the part of each label that all classes share when the loss trains
    float loss_scale;   // the loss is multiplied by it before backward, and gradients_scale undoes it
    float clip_norm;    // longer gradients are shortened to this; 0: they are left as they are
    int32_t window;     // rows of a batch whose loss comes in several calls; 0: in one
    // These the operations below write; scalars_set sets them to 0 with the rest.
    int32_t done;       // rows of the window so far
    int32_t skip;       // not zero: sgd_update leaves everything as it is
    double norm;        // of the gradients: gradients_norm
    // These outlive scalars_set, where its loss_scale is 0: then that stays, too.
    int32_t clean;      // steps without an overflow since the loss scale changed
    int32_t skipped;    // steps with one since the run began
} Scalars;
void scalars_set(Ops *ops, Scalars *scalars, Scalars values);

// After sgd_update: a step that was left out halves the loss scale (but not below LOSS_SCALE_LEAST),
// and `interval` others in a row double it, but not to infinity.
#define LOSS_SCALE_LEAST 0x1p-24f
void loss_scale_adapt(Ops *ops, Scalars *scalars, int interval);

// --- convolution, which a linear layer is too: its kernel covers the whole image -----------------
//
// x, w, y and their gradients are of the type of the spec's x; products are added up in f32. The
// gradients of parameters, and biases, are f32 always.

typedef struct ConvSpec {
    Shape x;
    int out_channels, kernel_h, kernel_w, stride, pad;
    bool bias;
    bool needs_dx;      // false in the first layer: nobody asks for the images' gradient
    bool f32_out;       // y and dy are f32 in any case, as the loss wants its logits
} ConvSpec;

// Weights lie in the arena in an order of the backend's own; `like` (or NULL) is a convolution of
// the same weights at another batch size, whose order the new one takes. Import and export
// translate from and to torch's OIHW, both in host memory, for weights, gradients and momentum
// alike.
typedef struct Conv Conv;
Conv *conv_new(Ops *ops, const ConvSpec *spec, const Conv *like);
void conv_free(Conv *conv);
Shape conv_output(const Conv *conv);
size_t conv_weight_count(const Conv *conv); // floats in the arena, at least O * I * H * W
void conv_weights_import(const Conv *conv, float *arena, const float *oihw);
void conv_weights_export(const Conv *conv, float *oihw, const float *arena);

// In f32, w below is the arena's. In a short type it is a copy of that, in an order of its own, which
// conv_weights_cast makes; or in the same order, where that has 0 bytes: then values_narrow makes it.
size_t conv_copy_bytes(const Conv *conv);
void conv_weights_cast(Conv *conv, const float *arena, void *copy);

void conv_forward(Conv *conv, const void *x, const void *w, const float *bias, void *y);
void conv_backward_data(Conv *conv, const void *dy, const void *w, void *dx);
void conv_backward_weights(Conv *conv, const void *x, const void *dy, float *dw, float *dbias);

// --- batch normalisation, with the addition and the ReLU that follow it in a residual net --------
//
//   y = relu(gamma * (x - mean) / sqrt(var + 1e-5) + beta + residual)     (relu and residual if asked)
//
// All activations and their gradients are of the type of x; what NormTensors names is f32.

typedef struct NormSpec {
    Shape x;
    bool add, relu;
} NormSpec;

typedef struct NormTensors {
    const float *gamma, *beta;              // (c)
    float *running_mean, *running_var;      // (c) momentum 0.1, unbiased variance, as in PyTorch
    float *mean, *inv_std;                  // (c) of this batch: forward saves them for backward
    float *dgamma, *dbeta;                  // (c)
} NormTensors;

typedef struct Norm Norm;
Norm *norm_new(Ops *ops, const NormSpec *spec);
void norm_free(Norm *norm);
// training: this batch's statistics, and the running ones move; else: the running statistics.
// The gradient sums of a batch that several processes share (below) are this process's part.
void norm_forward(Norm *norm, const NormTensors *t, const void *x, const void *residual, void *y,
                  bool training);
// The gradient of y is dy1 + dy2 (dy2 may be NULL): a value that two layers read gets two.
// dresidual (NULL unless `add`) may be dy1 or dy2.
void norm_backward(Norm *norm, const NormTensors *t, const void *x, const void *y, const void *dy1,
                   const void *dy2, void *dx, void *dresidual);

// From now on training takes its statistics over the batches of `size` processes, forward and
// backward: gather puts the `count` numbers of every process one after the other, by rank, in `all`,
// on the compute stream. Every process has to normalise the same layers in the same order.
typedef void (*OpsGather)(void *arg, const double *mine, double *all, size_t count);
void ops_share_norms(Ops *ops, int size, OpsGather gather, void *arg);

// --- the rest ------------------------------------------------------------------------------------

// y = max(x, 0); dx = y > 0 ? dy : 0. In place is fine.
void relu_forward(Ops *ops, Shape shape, const void *x, void *y);
void relu_backward(Ops *ops, Shape shape, const void *y, const void *dy, void *dx);

// Max pooling remembers where each maximum was (the first, if several). index: one byte an output.
typedef struct PoolSpec {
    Shape x;
    int kernel, stride, pad;
} PoolSpec;
static inline Shape pool_output(const PoolSpec *s)
{
    Shape y = s->x;
    y.h = (s->x.h + 2 * s->pad - s->kernel) / s->stride + 1;
    y.w = (s->x.w + 2 * s->pad - s->kernel) / s->stride + 1;
    return y;
}
void maxpool_forward(Ops *ops, const PoolSpec *spec, const void *x, void *y, uint8_t *index);
void maxpool_backward(Ops *ops, const PoolSpec *spec, const uint8_t *index, const void *dy1,
                      const void *dy2, void *dx);
// The mean of each image's plane: (n, c, h, w) -> (n, c, 1, 1), c plain.
void avgpool_forward(Ops *ops, Shape x, const void *in, void *out);
void avgpool_backward(Ops *ops, Shape x, const void *dout, void *dx);

// --- loss and optimizer --------------------------------------------------------------------------

// Cross-entropy over rows of logits (rows, classes). Rows whose label is negative do not count.
// Adds to stats; dlogits (NULL when only evaluating) = loss_scale * d(mean loss) / d(logits). The
// mean is over the rows that count; where scalars->window is set, over so many, of several calls,
// and what stats says of the last batch is of them all. Training smooths labels as PyTorch's
// label_smoothing does: the target is (1 - smoothing) * onehot(label) + smoothing / classes.
void loss_cross_entropy(Ops *ops, int rows, int classes, const float *logits, const int32_t *labels,
                        Scalars *scalars, Stats *stats, float *dlogits);

// What the network says of one row.
typedef struct Verdict {
    int32_t label;          // negative: the row does not count, and the rest is 0
    int32_t prediction;     // the class with the largest logit, of several the first; a NaN is
                            // larger than any number (as torch.argmax has it)
    int32_t before;         // classes that come before the label: 0 if it is right, below 5 if it
                            // is in the top 5
    float loss;
    float margin;           // from the largest logit to the next (infinite if there is none), over
                            // the largest absolute one (1 at least): where that is almost nothing,
                            // other rounding has another result
} Verdict;
// Row by row, what loss_cross_entropy adds up; in verdicts[0] to verdicts[rows - 1]. A loss that is
// not finite counts as wrong, whatever the prediction: then before is INT32_MAX, and margin is 0.
void judge_rows(Ops *ops, int rows, int classes, const float *logits, const int32_t *labels,
                Verdict *verdicts);

// torch.optim.SGD over the whole arena at once:
//   g += weight_decay * p;  v = momentum * v + g;  p -= lr * (nesterov ? g + momentum * v : v)
// Before that, where scalars->clip_norm is set, as torch.nn.utils.clip_grad_norm_ does it:
//   g *= min(1, clip_norm / (norm + 1e-6))
void sgd_update(Ops *ops, size_t count, float *params, const float *grads, float *velocity,
                const Scalars *scalars);

// values += more, on the compute stream.
void add_into(Ops *ops, size_t count, float *values, const float *more);

// grads *= factor / loss_scale, on any stream of the device. If one of them is then infinite or not
// a number, sgd_update will leave this step out (scalars->skip), and stats->bad_gradients counts the
// step, however many calls it takes.
void gradients_scale(Ops *ops, Stream *stream, size_t count, float *grads, float factor,
                     Scalars *scalars, Stats *stats);
// scalars->norm = the square root of the sum of squares, in f64, and in an order that depends on
// nothing but count: ranks with as many gradients, but other numbers of threads, get the same bits.
void gradients_norm(Ops *ops, size_t count, const float *grads, Scalars *scalars);

// What travels short, on any stream of the device: short = values * factor, rounded; and back.
void values_narrow(Ops *ops, Stream *stream, Type type, size_t count, const float *values,
                   float factor, void *narrow);
void values_widen(Ops *ops, Stream *stream, Type type, size_t count, const void *narrow,
                  float *values);

// --- images --------------------------------------------------------------------------------------

// From bytes to what the network reads. The canvas (h, w of the output shape) may be larger than
// the image, which is then centred in black; a random crop moves it by up to `padding` pixels
// either way, black behind the edges; a flip mirrors the canvas; then x / 255, minus mean, over
// deviation.
//
//   canvas (y, x) shows image (y - top, x - left)      (in a mirrored canvas x counts from the right)
//   top = (canvas height - image height) / 2 + padding - jitter.y, and left likewise
typedef struct Augment {
    bool crop, flip;
    int padding;
    uint64_t seed;
    float mean[3], std[3];
} Augment;

// out[i] = image ids[i] of images (count, c, h, w bytes), rounded to the type of out_shape, and
// labels_out[i] = labels[ids[i]], for i < n; rows from n to out_shape.n become zeros with label -1.
// The crop and flip of a sample depend on seed, epoch and id alone, so neither on the batch it is in
// nor on who loads it. Called from loader threads.
void images_load(Stream *stream, const uint8_t *images, const int32_t *labels, int c, int h, int w,
                 const int32_t *ids, int n, int64_t epoch, const Augment *augment,
                 void *out, Shape out_shape, int32_t *labels_out);
