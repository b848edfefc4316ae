// ops_cuda.c - the operations of ops.h on a GPU: everything but convolution.
//
// An activation is NHWC, so a batch is a matrix: a row for each pixel, a column for each channel.
// Each call queues its kernels on the device's compute stream; none allocates or waits, so that a
// step can be recorded.
#include "cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

// --- one device's libraries and scratch memory ---------------------------------------------------

static const char *const hint_libraries =
    "the libraries must be those that this program was built for; ./ddp doctor lists them";

void cudnn_failed(cudnnStatus_t status, const char *call, const char *file, int line)
{
    char text[300] = "";
    cudnnGetLastErrorString(text, sizeof text);
    fail_at(file, line, EXIT_FAILED, status == CUDNN_STATUS_NOT_INITIALIZED ? hint_libraries : "",
            "%.*s: %s: %s", (int)strcspn(call, "("), call, cudnnGetErrorString(status), text);
}

void cublas_failed(cublasStatus_t status, const char *call, const char *file, int line)
{
    fail_at(file, line, EXIT_FAILED, status == CUBLAS_STATUS_NOT_INITIALIZED ? hint_libraries : "",
            "%.*s: %s", (int)strcspn(call, "("), call, cublasLtGetStatusString(status));
}

Ops *ops_new(Device *device, const OpsConfig *config)
{
    Ops *ops = xcalloc(1, sizeof *ops);
    device_use(device);
    ops->device = device;
    ops->config = *config;
    CUDNN(cudnnCreate(&ops->cudnn));
    CUDNN(cudnnSetStream(ops->cudnn, device->compute.handle));
    CUBLAS(cublasLtCreate(&ops->blas));
    ops->launch = (Launch){
        .stream = device->compute.handle,
        .partials = device_alloc(device, LAUNCH_PARTIAL_BYTES),
        .tickets = device_alloc(device, LAUNCH_TICKETS * sizeof(unsigned)),
    };
    return ops;
}

void ops_free(Ops *ops)
{
    if (!ops)
        return;
    stream_sync(&ops->device->compute);
    while (ops->scratch) {
        Scratch *scratch = ops->scratch;
        ops->scratch = scratch->outgrown;
        device_free(ops->device, scratch->memory);
        free(scratch);
    }
    device_free(ops->device, ops->launch.tickets);
    device_free(ops->device, ops->launch.partials);
    CUBLAS(cublasLtDestroy(ops->blas));
    CUDNN(cudnnDestroy(ops->cudnn));
    free(ops);
}

int ops_input_block(const Ops *ops, int channels)
{
    (void)ops;
    return channels;
}

// Grows at least twofold, so that all that is outgrown together is no larger than what is in use.
void ops_need_scratch(Ops *ops, size_t bytes)
{
    size_t now = ops->scratch ? ops->scratch->bytes : 0;
    if (bytes <= now)
        return;
    Scratch *scratch = xcalloc(1, sizeof *scratch);
    scratch->bytes = bytes > 2 * now ? bytes : 2 * now;
    scratch->memory = device_alloc(ops->device, scratch->bytes);
    scratch->outgrown = ops->scratch;
    ops->scratch = scratch;
}

void scalars_set(Ops *ops, Scalars *scalars, Scalars values)
{
    device_use(ops->device);
    CUDA(kernel_scalars_set(ops->launch.stream, scalars, values));
}

// --- batch normalisation -------------------------------------------------------------------------

struct Norm {
    Ops *ops;
    NormSpec spec;
    int64_t rows;
};

Norm *norm_new(Ops *ops, const NormSpec *spec)
{
    Norm *norm = xcalloc(1, sizeof *norm);
    CHECK(spec->x.c <= KERNEL_MAX_CHANNELS, "", "batch normalisation of %d channels, at most %d",
          spec->x.c, KERNEL_MAX_CHANNELS);
    norm->ops = ops;
    norm->spec = *spec;
    norm->rows = (int64_t)spec->x.n * spec->x.h * spec->x.w;
    return norm;
}

void norm_free(Norm *norm) { free(norm); }

void norm_forward(Norm *norm, const NormTensors *t, const float *x, const float *residual, float *y,
                  bool training)
{
    const Launch *launch = &norm->ops->launch;
    device_use(norm->ops->device);
    if (training)
        CUDA(kernel_norm_statistics(launch, norm->rows, norm->spec.x.c, t, x));
    CUDA(kernel_norm_apply(launch->stream, norm->rows, norm->spec.x.c, t, x, residual, y,
                           norm->spec.relu, training));
}

void norm_backward(Norm *norm, const NormTensors *t, const float *x, const float *y,
                   const float *dy1, const float *dy2, float *dx, float *dresidual)
{
    device_use(norm->ops->device);
    CUDA(kernel_norm_backward(&norm->ops->launch, norm->rows, norm->spec.x.c, t, x,
                              norm->spec.relu ? y : NULL, dy1, dy2, dx, dresidual));
}

// --- the rest ------------------------------------------------------------------------------------

// Pooling counts pixels in 32 bits: an activation of 2^31 floats takes 8 GB.
static void check_count(const char *what, Shape s)
{
    CHECK(shape_count(s) < INT32_MAX, "a smaller batch (-b) needs less",
          "%s of (%d, %d, %d, %d): more than 2^31 elements", what, s.n, s.c, s.h, s.w);
}

void relu_forward(Ops *ops, size_t count, const float *x, float *y)
{
    device_use(ops->device);
    CUDA(kernel_relu_forward(ops->launch.stream, count, x, y));
}

void relu_backward(Ops *ops, size_t count, const float *y, const float *dy, float *dx)
{
    device_use(ops->device);
    CUDA(kernel_relu_backward(ops->launch.stream, count, y, dy, dx));
}

void maxpool_forward(Ops *ops, const PoolSpec *spec, const float *x, float *y, uint8_t *index)
{
    check_count("max pooling", spec->x);
    CHECK(spec->kernel <= 16, "",
          "max pooling over %dx%d pixels: the place of the maximum is a byte",
          spec->kernel, spec->kernel);
    device_use(ops->device);
    CUDA(kernel_maxpool_forward(ops->launch.stream, spec, x, y, index));
}

void maxpool_backward(Ops *ops, const PoolSpec *spec, const uint8_t *index, const float *dy1,
                      const float *dy2, float *dx)
{
    device_use(ops->device);
    CUDA(kernel_maxpool_backward(ops->launch.stream, spec, index, dy1, dy2, dx));
}

void avgpool_forward(Ops *ops, Shape x, const float *in, float *out)
{
    check_count("average pooling", x);
    device_use(ops->device);
    CUDA(kernel_avgpool_forward(ops->launch.stream, x, in, out));
}

void avgpool_backward(Ops *ops, Shape x, const float *dout, float *dx)
{
    device_use(ops->device);
    CUDA(kernel_avgpool_backward(ops->launch.stream, x, dout, dx));
}

void loss_cross_entropy(Ops *ops, int rows, int classes, const float *logits, const int32_t *labels,
                        const Scalars *scalars, Stats *stats, float *dlogits)
{
    device_use(ops->device);
    CUDA(kernel_cross_entropy(&ops->launch, rows, classes, logits, labels, scalars, stats,
                              dlogits));
}

void sgd_update(Ops *ops, size_t count, float *params, const float *grads, float *velocity,
                const Scalars *scalars)
{
    device_use(ops->device);
    CUDA(kernel_sgd(ops->launch.stream, count, params, grads, velocity, scalars));
}

void images_load(Stream *stream, const uint8_t *images, const int32_t *labels, int c, int h, int w,
                 const int32_t *ids, int n, int64_t epoch, const Augment *augment,
                 float *out, Shape out_shape, int32_t *labels_out)
{
    ImagesJob job = { images, labels,   c,   h,         w,         ids, n,
                      epoch,  *augment, out, out_shape, labels_out };
    CHECK(c <= 3 && out_shape.c == c && n <= out_shape.n && out_shape.h >= h && out_shape.w >= w,
          "", "images_load: %d images (%d, %d, %d) into (%d, %d, %d, %d)", n, c, h, w, out_shape.n,
          out_shape.c, out_shape.h, out_shape.w);
    if (out_shape.n == 0)
        return;
    device_use(stream->device);
    CUDA(kernel_images_load(stream->handle, &job));
}
