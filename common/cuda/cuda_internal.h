// cuda_internal.h - what the files of the CUDA backend share.
#pragma once
#include "check.h"
#include "cuda/kernels.h"
#include "device.h"
#include "ops.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <pthread.h>

// --- every call is checked; an error names the call and gives its text ---------------------------

_Noreturn void cuda_failed(cudaError_t status, const char *call, const char *file, int line);
_Noreturn void cudnn_failed(cudnnStatus_t status, const char *call, const char *file, int line);
_Noreturn void cublas_failed(cublasStatus_t status, const char *call, const char *file, int line);

#define CUDA(call)                                                     \
    do {                                                               \
        cudaError_t status_ = (call);                                  \
        if (status_ != cudaSuccess)                                    \
            cuda_failed(status_, #call, __FILE__, __LINE__);           \
    } while (0)
#define CUDNN(call)                                                    \
    do {                                                               \
        cudnnStatus_t status_ = (call);                                \
        if (status_ != CUDNN_STATUS_SUCCESS)                           \
            cudnn_failed(status_, #call, __FILE__, __LINE__);          \
    } while (0)
#define CUBLAS(call)                                                   \
    do {                                                               \
        cublasStatus_t status_ = (call);                               \
        if (status_ != CUBLAS_STATUS_SUCCESS)                          \
            cublas_failed(status_, #call, __FILE__, __LINE__);         \
    } while (0)

// --- devices -------------------------------------------------------------------------------------

struct Stream {
    Device *device;
    cudaStream_t handle;
};

struct Device {
    int index;                  // as CUDA numbers the devices that this process may see
    char name[256];
    Stream compute;
    bool never_record;          // replay_run just calls the step
    void (*while_waiting)(void); // now and then while the host waits for it; or NULL
    cudaStream_t fills;         // zeroes new memory: never captured, and in nobody's way
    pthread_mutex_t lock;       // of what follows
    struct Block *blocks;       // what device_alloc has given out
    size_t bytes, peak_bytes;
};

// --- one device's libraries and scratch memory ---------------------------------------------------

struct Ops {
    Device *device;
    OpsConfig config;
    cudnnHandle_t cudnn;
    cublasLtHandle_t blas;
    void *scratch;              // for one operation at a time: all run on one stream
    size_t scratch_bytes;
    Launch launch;              // what our own kernels need
    int norm_processes;         // that share the batches of normalisations; 0, 1: each has its own
    OpsGather norm_gather;
    void *norm_gather_arg;
};

// Sees to it that ops->scratch holds as many bytes. While setting up, never while computing. What was
// outgrown stays until the device is closed: a recorded step may hold its address.
void ops_need_scratch(Ops *ops, size_t bytes);

// --- matrix products, for convolutions that are one ----------------------------------------------

// D (m, n) = op(A) op(B), all column-major: element (i, j) of a matrix stands at i + j * ld.
typedef struct GemmProblem {
    int m, n, k;
    bool transpose_a, transpose_b;
    int ld_a, ld_b, ld_d;
    cudaDataType_t dtype, result;   // of A and B; of D
    cublasComputeType_t compute;
} GemmProblem;

typedef struct Gemm {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;           // bytes of scratch that it needs
} Gemm;

void gemm_new(Gemm *gemm, cublasLtHandle_t blas, const GemmProblem *problem);
void gemm_free(Gemm *gemm);
void gemm_run(const Gemm *gemm, const Ops *ops, const void *a, const void *b, void *d);
