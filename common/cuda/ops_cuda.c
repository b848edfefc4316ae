// ops_cuda.c - one GPU's libraries and scratch memory.
#include "progress.h"
#include "cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

// --- errors --------------------------------------------------------------------------------------

static const char *const hint_libraries =
    "the GPU needs free memory (see nvidia-smi), and the libraries must be those that this program "
    "was built for (see ./ddp doctor)";
static const char *const hint_mixed =
    "cuDNN's libraries come from two installations, or some are missing: LD_LIBRARY_PATH should "
    "name one complete installation";
static const char *const hint_arch =
    "this cuBLAS has no code for this GPU: install the cuBLAS of a CUDA version that supports it";

void cudnn_failed(cudnnStatus_t status, const char *call, const char *file, int line)
{
    char text[300] = "";
    const char *hint = "";
    if (status == CUDNN_STATUS_NOT_INITIALIZED)
        hint = hint_libraries;
    else if (status == CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH ||
             status == CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED)
        hint = hint_mixed;
    cudnnGetLastErrorString(text, sizeof text);
    fail_at(file, line, EXIT_FAILED, hint, "%.*s: %s: %s", (int)strcspn(call, "("), call,
            cudnnGetErrorString(status), text);
}

void cublas_failed(cublasStatus_t status, const char *call, const char *file, int line)
{
    const char *hint = "";
    if (status == CUBLAS_STATUS_NOT_INITIALIZED)
        hint = hint_libraries;
    else if (status == CUBLAS_STATUS_ARCH_MISMATCH)
        hint = hint_arch;
    fail_at(file, line, EXIT_FAILED, hint, "%.*s: %s", (int)strcspn(call, "("), call,
            cublasLtGetStatusString(status));
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
    device_free(lane->stream->device, lane->workspace.memory);
    device_free(lane->stream->device, lane->scratch.memory);
    CUDNN(cudnnDestroy(lane->cudnn));
}

Ops *ops_new(Device *device, const OpsConfig *config)
{
    Ops *ops = xcalloc(1, sizeof *ops);
    device_use(device);
    ops->device = device;
    ops->config = *config;
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

// Old memory stays allocated: queued or recorded work may use it. The size at least doubles, so the
// old memory together is no larger than the current one.
void lane_need(Lane *lane, Room *room, size_t bytes)
{
    if (bytes <= room->bytes)
        return;
    room->bytes = bytes > 2 * room->bytes ? bytes : 2 * room->bytes;
    room->memory = device_alloc(lane->stream->device, room->bytes);
}

void ops_need_scratch(Ops *ops, size_t bytes) { lane_need(&ops->main, &ops->main.scratch, bytes); }

void *ops_scratch(const Ops *ops) { return ops->main.scratch.memory; }

int ops_together(const Ops *ops, int count, size_t bytes) { return count; }

void cuda_check_type(const Device *device, Type type)
{
    CHECK(type != TYPE_BF16 || device->major >= 8, "--amp fp16 works on this GPU",
          "GPU %d (%s) has no instructions for bf16: they need compute capability 8.0",
          device->index, device->name);
}

void cuda_check_aligned(const void *a, const void *b, const void *c)
{
    CHECK(((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % CUDA_ALIGNMENT == 0, "",
          "the arrays of an operation must be aligned to %d bytes: %p, %p, %p", CUDA_ALIGNMENT, a,
          b, c);
}

const bool ops_beside = true;

Stream *ops_fork(Ops *ops)
{
    event_record(ops->forked, ops->main.stream);
    stream_wait(ops->beside.stream, ops->forked);
    ops->beside_is_done = false;
    return ops->beside.stream;
}

void ops_join(Ops *ops)
{
    if (ops->beside_is_done)
        return;
    event_record(ops->joined, ops->beside.stream);
    stream_wait(ops->main.stream, ops->joined);
    ops->beside_is_done = true;
}
