// kernels.h - our own kernels: everything that is neither a convolution nor a matrix product.
//
// Each function queues one or two kernels on a stream and returns at once. It allocates nothing and
// waits for nothing, so a step can be recorded. All activations are NHWC. ops.h says what the
// operations mean; kernels_*.cu shows how they are computed. A void pointer points to numbers of
// `type`, or of the Shape's type.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#define _Noreturn [[noreturn]]  // C's word, in the headers below
extern "C" {
#endif

#include "ops.h"

// Where kernels run, and the memory in which the blocks of one kernel exchange results. Kernels on
// one stream run one after another, so they share this memory.
typedef struct Launch {
    cudaStream_t stream;
    void *partials;         // LAUNCH_PARTIAL_BYTES: one result for each block
    unsigned *tickets;      // (LAUNCH_TICKETS) zero between kernels
} Launch;

enum { LAUNCH_TICKETS = 1024, LAUNCH_PARTIAL_BYTES = 12 * 32 * 1024 };
enum { KERNEL_MAX_CHANNELS = 32 * LAUNCH_TICKETS };

// cudaSuccess if this program contains code for the current device.
cudaError_t kernels_present(void);

// x is (rows, channels), of `type` or f32: y = x + bias, and y may be x; dbias = the sums of dy's
// columns.
cudaError_t kernel_bias_add(cudaStream_t stream, Type type, int64_t rows, int channels,
                            const float *bias, Type x_type, const void *x, void *y);
cudaError_t kernel_bias_gradient(const Launch *launch, Type type, int64_t rows, int channels,
                                 const void *dy, float *dbias);

// Batch normalisation of (rows, channels); a row is a pixel. If processes share the batch, this
// one's statistics go to shared->mine instead of t. Once all processes' are in shared->all,
// kernel_norm_merge_statistics finishes the job. Otherwise shared is NULL.
typedef struct NormShared {
    int size;               // processes
    double *mine;           // (1 + 2 * channels) count, means, squares; or 0 and two sums
    double *all;            // (size, 1 + 2 * channels), by rank
    double *count;          // of the rows of all
    float *dgamma, *dbeta;  // (channels) of all
} NormShared;

cudaError_t kernel_norm_statistics(const Launch *launch, Type type, int64_t rows, int channels,
                                   const NormTensors *t, const void *x, const NormShared *shared);
cudaError_t kernel_norm_merge_statistics(cudaStream_t stream, int channels, const NormTensors *t,
                                         const NormShared *shared);
cudaError_t kernel_norm_apply(cudaStream_t stream, Type type, int64_t rows, int channels,
                              const NormTensors *t, const void *x, const void *residual, void *y,
                              bool relu, bool training);

// The arguments of norm_backward in ops.h; y is NULL without ReLU.
typedef struct NormBackward {
    const void *x, *y, *dy1, *dy2;
    void *dx, *dresidual;
} NormBackward;
// Two passes: dgamma and dbeta, then dx. kernel_norm_merge_gradients runs between them.
cudaError_t kernel_norm_gradients(const Launch *launch, Type type, int64_t rows, int channels,
                                  const NormTensors *t, const NormBackward *b,
                                  const NormShared *shared);
cudaError_t kernel_norm_merge_gradients(cudaStream_t stream, int channels, const NormTensors *t,
                                        const NormShared *shared);
cudaError_t kernel_norm_input_gradient(cudaStream_t stream, Type type, int64_t rows, int channels,
                                       const NormTensors *t, const NormBackward *b,
                                       const NormShared *shared);

cudaError_t kernel_relu_forward(cudaStream_t stream, Type type, size_t count, const void *x,
                                void *y);
cudaError_t kernel_relu_backward(cudaStream_t stream, Type type, size_t count, const void *y,
                                 const void *dy, void *dx);
cudaError_t kernel_maxpool_forward(cudaStream_t stream, const PoolSpec *spec, const void *x,
                                   void *y, uint8_t *index);
cudaError_t kernel_maxpool_backward(cudaStream_t stream, const PoolSpec *spec, const uint8_t *index,
                                    const void *dy1, const void *dy2, void *dx);
cudaError_t kernel_avgpool_forward(cudaStream_t stream, Shape x, const void *in, void *out);
cudaError_t kernel_avgpool_backward(cudaStream_t stream, Shape x, const void *dout, void *dx);

// The arguments of images_load in ops.h.
typedef struct ImagesJob {
    const uint8_t *images;      // (n, channels, h, w)
    int n, channels;
    float mean[3], std[3];
    void *out;
    Shape shape;
} ImagesJob;
cudaError_t kernel_images_load(cudaStream_t stream, const ImagesJob *job);

cudaError_t kernel_scalars_set(cudaStream_t stream, Scalars *to, Scalars values);
cudaError_t kernel_loss_scale_adapt(cudaStream_t stream, Scalars *scalars, int interval);
cudaError_t kernel_cross_entropy(const Launch *launch, int rows, int classes, const float *logits,
                                 const int32_t *labels, Scalars *scalars, Stats *stats,
                                 float *dlogits);
cudaError_t kernel_judge_rows(cudaStream_t stream, int rows, int classes, const float *logits,
                              const int32_t *labels, Verdict *verdicts);
cudaError_t kernel_sgd(cudaStream_t stream, size_t count, float *params, const float *grads,
                       float *velocity, const Scalars *scalars);
cudaError_t kernel_add_into(cudaStream_t stream, size_t count, float *values, const float *more);
cudaError_t kernel_gradients_scale(cudaStream_t stream, size_t count, float *grads, float factor,
                                   Scalars *scalars, Stats *stats);
cudaError_t kernel_gradients_norm(const Launch *launch, size_t count, const float *grads,
                                  Scalars *scalars);
cudaError_t kernel_values_narrow(cudaStream_t stream, Type type, size_t count, const float *values,
                                 float factor, void *narrow);
cudaError_t kernel_values_widen(cudaStream_t stream, Type type, size_t count, const void *narrow,
                                float *values);

#ifdef __cplusplus
}
#undef _Noreturn
#endif
