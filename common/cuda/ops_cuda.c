// ops_cuda.c - one GPU's libraries and scratch memory.
#include "progress.h"
#include "cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

// --- errors --------------------------------------------------------------------------------------

static const char hint_libraries[] =
    "check that the GPU has free memory (nvidia-smi), and that the libraries are those that this "
    "program was built for (./ddp doctor)";

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

// --- ops.h ---------------------------------------------------------------------------------------

static void lane_open(Lane *lane, Stream *stream)
{
    lane->stream = stream;
    CUDNN(cudnnCreate(&lane->cudnn));
    CUDNN(cudnnSetStream(lane->cudnn, stream->handle));
}

static void lane_close(Lane *lane)
{
    stream_sync(lane->stream);
    device_free(lane->stream->device, lane->scratch);
    CUDNN(cudnnDestroy(lane->cudnn));
}

Ops *ops_new(Device *device, const OpsConfig *config)
{
    Ops *ops = xcalloc(1, sizeof *ops);
    device_use(device);
    ops->device = device;
    ops->config = *config;
    device->deterministic = config->deterministic;
    PROGRESS_DOING("loading", "cuDNN and cuBLAS");   // together a gigabyte
    lane_open(&ops->main, &device->compute);
    lane_open(&ops->beside, stream_new(device, "weight gradients"));
    CUBLAS(cublasLtCreate(&ops->blas));
    ops->forked = event_new(device);
    ops->joined = event_new(device);
    ops->beside_is_done = true;
    return ops;
}

void ops_free(Ops *ops)
{
    conv_plans_free(ops);
    fused_plans_free(ops);
    lane_close(&ops->main);
    lane_close(&ops->beside);
    stream_free(ops->beside.stream);
    event_free(ops->forked);
    event_free(ops->joined);
    CUBLAS(cublasLtDestroy(ops->blas));
    free(ops);
}

// bf16 and fp16 are equally fast, and bf16 needs no loss scale. GPUs below compute capability 8.0
// have only fp16.
Type ops_best_type(const Device *device)
{
    return device->major >= 8 ? TYPE_BF16 : TYPE_F16;
}

bool ops_emulates(const Device *device, Type type) { return false; }

// Old blocks stay allocated: queued or recorded work may use them. The size at least doubles, so
// the old blocks together are no larger than the current one.
void lane_need_scratch(Lane *lane, size_t bytes)
{
    if (bytes <= lane->scratch_bytes)
        return;
    lane->scratch_bytes = bytes > 2 * lane->scratch_bytes ? bytes : 2 * lane->scratch_bytes;
    lane->scratch = device_alloc(lane->stream->device, lane->scratch_bytes);
}

const bool ops_beside = true;

void ops_fork(Ops *ops)
{
    event_record(ops->forked, ops->main.stream);
    stream_wait(ops->beside.stream, ops->forked);
    ops->beside_is_done = false;
}

void ops_join(Ops *ops)
{
    if (ops->beside_is_done)
        return;
    event_record(ops->joined, ops->beside.stream);
    stream_wait(ops->main.stream, ops->joined);
    ops->beside_is_done = true;
}
