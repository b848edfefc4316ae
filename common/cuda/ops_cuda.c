// ops_cuda.c - one GPU's libraries and scratch memory, for ops.h. The operations are in conv_cuda.c
// and, with their kernels, in kernels_*.cu.
#include "alive.h"
#include "cuda/cuda_internal.h"

#include <stdlib.h>
#include <string.h>

// --- errors --------------------------------------------------------------------------------------

static const char *const hint_libraries =
    "the libraries must be those that this program was built for; ./ddp doctor lists them";
static const char *const hint_mixed =
    "cuDNN's libraries are of two installations: LD_LIBRARY_PATH should name only one of them";
static const char *const hint_arch =
    "this cuBLAS has no code for this GPU: install that of a CUDA that knows it";

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

Ops *ops_new(Device *device, const OpsConfig *config)
{
    Ops *ops = xcalloc(1, sizeof *ops);
    device_use(device);
    ops->device = device;
    ops->config = *config;
    alive_system_wait_begin();      // loading a gigabyte of libraries takes long
    CUDNN(cudnnCreate(&ops->cudnn));
    CUDNN(cudnnSetStream(ops->cudnn, device->compute.handle));
    CUBLAS(cublasLtCreate(&ops->blas));
    alive_system_wait_end();
    ops->partials = (Partials){
        .results = device_alloc(device, PARTIALS_BYTES),
        .tickets = device_alloc(device, PARTIALS_TICKETS * sizeof(unsigned)),
    };
    return ops;
}

void ops_free(Ops *ops)
{
    stream_sync(&ops->device->compute);
    device_free(ops->device, ops->scratch);
    device_free(ops->device, ops->partials.tickets);
    device_free(ops->device, ops->partials.results);
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
