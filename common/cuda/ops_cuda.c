// ops_cuda.c - the operations of ops.h on a GPU: everything but convolution.
//
// Activations are NHWC, so a batch is a matrix with a row per pixel and a column per channel. Each
// call queues its kernels on the device's compute stream. None allocates or waits, so a step can be
// recorded.
#include "alive.h"
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
    alive_outside_begin();      // loading a gigabyte of libraries takes long
    CUDNN(cudnnCreate(&ops->cudnn));
    CUDNN(cudnnSetStream(ops->cudnn, device->compute.handle));
    CUBLAS(cublasLtCreate(&ops->blas));
    alive_outside_end();
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
    device_free(ops->device, ops->scratch);
    device_free(ops->device, ops->launch.tickets);
    device_free(ops->device, ops->launch.partials);
    CUBLAS(cublasLtDestroy(ops->blas));
    CUDNN(cudnnDestroy(ops->cudnn));
    free(ops);
}

int ops_input_block(const Ops *ops, int channels)
{
    return channels;
}

// Every supported GPU has tensor cores for both types; f16 has more digits.
Type ops_best_type(const Device *device)
{
    return TYPE_F16;
}

bool ops_emulates(const Device *device, Type type)
{
    return false;
}

// At least doubles, so that all old blocks together are no larger than the current one.
void ops_need_scratch(Ops *ops, size_t bytes)
{
    if (bytes <= ops->scratch_bytes)
        return;
    ops->scratch_bytes = bytes > 2 * ops->scratch_bytes ? bytes : 2 * ops->scratch_bytes;
    ops->scratch = device_alloc(ops->device, ops->scratch_bytes);
}

void scalars_set(Ops *ops, Scalars *scalars, Scalars values)
{
    device_use(ops->device);
    CUDA(kernel_scalars_set(ops->launch.stream, scalars, values));
}

void loss_scale_adapt(Ops *ops, Scalars *scalars, int interval)
{
    device_use(ops->device);
    CUDA(kernel_loss_scale_adapt(ops->launch.stream, scalars, interval));
}

// --- batch normalisation -------------------------------------------------------------------------

struct Norm {
    Ops *ops;
    NormSpec spec;
    int64_t rows;
    NormShared shared;      // size 0 until processes share a batch
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

void norm_free(Norm *norm)
{
    if (!norm)
        return;
    device_free(norm->ops->device, norm->shared.mine);
    free(norm);
}

void ops_share_norms(Ops *ops, int size, OpsGather gather, void *arg)
{
    ops->norm_processes = size;
    ops->norm_gather = gather;
    ops->norm_gather_arg = arg;
}

// What the kernels need if processes share the batch, else NULL. The first batch allocates memory;
// that is possible because the first step is never recorded.
static const NormShared *shared_of(Norm *norm)
{
    size_t c = (size_t)norm->spec.x.c, size = (size_t)norm->ops->norm_processes, each = 1 + 2 * c;
    if (size <= 1)
        return NULL;
    if (norm->shared.size == 0) {
        size_t doubles = (1 + size) * each + 1 + c;
        double *memory = device_alloc(norm->ops->device, doubles * sizeof(double));
        float *floats = (float *)(memory + (1 + size) * each + 1);
        norm->shared = (NormShared){ (int)size, memory, memory + each,
                                     memory + (1 + size) * each, floats, floats + c };
    }
    return &norm->shared;
}

static void gather_all(const Norm *norm)
{
    const Ops *ops = norm->ops;
    ops->norm_gather(ops->norm_gather_arg, norm->shared.mine, norm->shared.all,
                     1 + 2 * (size_t)norm->spec.x.c);
}

static void batch_statistics(Norm *norm, const NormTensors *t, const void *x)
{
    const Launch *launch = &norm->ops->launch;
    const NormShared *shared = shared_of(norm);
    CUDA(kernel_norm_statistics(launch, norm->spec.x.type, norm->rows, norm->spec.x.c, t, x,
                                shared));
    if (shared) {
        gather_all(norm);
        device_use(norm->ops->device);
        CUDA(kernel_norm_merge_statistics(launch->stream, norm->spec.x.c, t, shared));
    }
}

void norm_forward(Norm *norm, const NormTensors *t, const void *x, const void *residual, void *y,
                  bool training)
{
    device_use(norm->ops->device);
    if (training)
        batch_statistics(norm, t, x);
    CUDA(kernel_norm_apply(norm->ops->launch.stream, norm->spec.x.type, norm->rows, norm->spec.x.c,
                           t, x, residual, y, norm->spec.relu, training));
}

void norm_backward(Norm *norm, const NormTensors *t, const void *x, const void *y, const void *dy1,
                   const void *dy2, void *dx, void *dresidual)
{
    const Launch *launch = &norm->ops->launch;
    const NormShared *shared = shared_of(norm);
    NormBackward b = { x, norm->spec.relu ? y : NULL, dy1, dy2, dx, dresidual };
    Type type = norm->spec.x.type;
    int channels = norm->spec.x.c;
    device_use(norm->ops->device);
    CUDA(kernel_norm_gradients(launch, type, norm->rows, channels, t, &b, shared));
    if (shared) {
        gather_all(norm);
        device_use(norm->ops->device);
        CUDA(kernel_norm_merge_gradients(launch->stream, channels, t, shared));
    }
    CUDA(kernel_norm_input_gradient(launch->stream, type, norm->rows, channels, t, &b, shared));
}

// --- the rest ------------------------------------------------------------------------------------

// Pooling uses 32-bit indices. An activation of 2^31 floats would take 8 GB.
static void check_count(const char *what, Shape s)
{
    CHECK(shape_count(s) < INT32_MAX, "a smaller batch (-b) needs less",
          "%s of (%d, %d, %d, %d): more than 2^31 elements", what, s.n, s.c, s.h, s.w);
}

void relu_forward(Ops *ops, Shape shape, const void *x, void *y)
{
    device_use(ops->device);
    CUDA(kernel_relu_forward(ops->launch.stream, shape.type, shape_count(shape), x, y));
}

void relu_backward(Ops *ops, Shape shape, const void *y, const void *dy, void *dx)
{
    device_use(ops->device);
    CUDA(kernel_relu_backward(ops->launch.stream, shape.type, shape_count(shape), y, dy, dx));
}

void maxpool_forward(Ops *ops, const PoolSpec *spec, const void *x, void *y, uint8_t *index)
{
    check_count("max pooling", spec->x);
    CHECK(spec->kernel <= 16, "",
          "max pooling over %dx%d pixels: the place of the maximum is a byte",
          spec->kernel, spec->kernel);
    device_use(ops->device);
    CUDA(kernel_maxpool_forward(ops->launch.stream, spec, x, y, index));
}

void maxpool_backward(Ops *ops, const PoolSpec *spec, const uint8_t *index, const void *dy1,
                      const void *dy2, void *dx)
{
    device_use(ops->device);
    CUDA(kernel_maxpool_backward(ops->launch.stream, spec, index, dy1, dy2, dx));
}

void avgpool_forward(Ops *ops, Shape x, const void *in, void *out)
{
    check_count("average pooling", x);
    device_use(ops->device);
    CUDA(kernel_avgpool_forward(ops->launch.stream, x, in, out));
}

void avgpool_backward(Ops *ops, Shape x, const void *dout, void *dx)
{
    device_use(ops->device);
    CUDA(kernel_avgpool_backward(ops->launch.stream, x, dout, dx));
}

void loss_cross_entropy(Ops *ops, int rows, int classes, const float *logits, const int32_t *labels,
                        Scalars *scalars, Stats *stats, float *dlogits)
{
    device_use(ops->device);
    CUDA(kernel_cross_entropy(&ops->launch, rows, classes, logits, labels, scalars, stats,
                              dlogits));
}

void judge_rows(Ops *ops, int rows, int classes, const float *logits, const int32_t *labels,
                Verdict *verdicts)
{
    device_use(ops->device);
    CUDA(kernel_judge_rows(ops->launch.stream, rows, classes, logits, labels, verdicts));
}

void sgd_update(Ops *ops, size_t count, float *params, const float *grads, float *velocity,
                const Scalars *scalars)
{
    device_use(ops->device);
    CUDA(kernel_sgd(ops->launch.stream, count, params, grads, velocity, scalars));
}

void add_into(Ops *ops, size_t count, float *values, const float *more)
{
    device_use(ops->device);
    CUDA(kernel_add_into(ops->launch.stream, count, values, more));
}

void gradients_scale(Ops *ops, Stream *stream, size_t count, float *grads, float factor,
                     Scalars *scalars, Stats *stats)
{
    device_use(ops->device);
    CUDA(kernel_gradients_scale(stream->handle, count, grads, factor, scalars, stats));
}

void gradients_norm(Ops *ops, size_t count, const float *grads, Scalars *scalars)
{
    device_use(ops->device);
    CUDA(kernel_gradients_norm(&ops->launch, count, grads, scalars));
}

void values_narrow(Ops *ops, Stream *stream, Type type, size_t count, const float *values,
                   float factor, void *narrow)
{
    device_use(ops->device);
    CUDA(kernel_values_narrow(stream->handle, type, count, values, factor, narrow));
}

void values_widen(Ops *ops, Stream *stream, Type type, size_t count, const void *narrow,
                  float *values)
{
    device_use(ops->device);
    CUDA(kernel_values_widen(stream->handle, type, count, narrow, values));
}

void images_load(Stream *stream, const uint8_t *images, int n, int channels, const float mean[3],
                 const float std[3], void *out, Shape shape)
{
    ImagesJob job = { .images = images, .n = n, .channels = channels, .out = out, .shape = shape };
    memcpy(job.mean, mean, sizeof job.mean);
    memcpy(job.std, std, sizeof job.std);
    CHECK(channels <= 3 && shape.c == channels && n <= shape.n, "",
          "images_load: %d images of %d channels into (%d, %d)", n, channels, shape.n, shape.c);
    if (shape.n == 0)
        return;
    device_use(stream->device);
    CUDA(kernel_images_load(stream->handle, &job));
}
