// cuda_internal.h - for all files of the CUDA backend: error checks, Device, Ops, matrix products.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <pthread.h>

#ifdef __cplusplus
#define _Noreturn [[noreturn]]  // C's keyword, which the headers below use
extern "C" {
#endif

#include "check.h"
#include "device.h"
#include "ops/op.h"

// --- errors: the message names the call ----------------------------------------------------------

_Noreturn void cuda_failed(cudaError_t status, const char *call, const char *file, int line);
_Noreturn void cudnn_failed(cudnnStatus_t status, const char *call, const char *file, int line);
_Noreturn void cublas_failed(cublasStatus_t status, const char *call, const char *file, int line);

#define CHECKED(Status, call, text, failed)                            \
    do {                                                               \
        Status status_ = (call);                                       \
        if (status_ != 0)                                              \
            failed(status_, text, __FILE__, __LINE__);                 \
    } while (0)
#define CUDA(call) CHECKED(cudaError_t, call, #call, cuda_failed)
#define CUDNN(call) CHECKED(cudnnStatus_t, call, #call, cudnn_failed)
#define CUBLAS(call) CHECKED(cublasStatus_t, call, #call, cublas_failed)

// --- devices -------------------------------------------------------------------------------------

struct Stream {
    Device *device;
    cudaStream_t handle;
    void *scratch;
    size_t scratch_bytes;
};

struct Device {
    int index;                  // CUDA's index of the device among those that this process sees
    char name[256];
    int major;                  // first number of the compute capability: 9 for 9.0
    Stream compute;
    bool never_record;          // replay_run calls the step each time
    bool takes_turns;           // other processes compute on this GPU, too
    bool deterministic;         // as in OpsConfig
    void (*while_waiting)(void); // called while the host waits for the device; or NULL
    cudaStream_t fills;         // zeroes new memory; never recorded
    pthread_mutex_t lock;       // guards blocks and bytes
    struct Block *blocks;
    size_t bytes;               // total size of all blocks
};

// --- one device's libraries and scratch memory ---------------------------------------------------

// A stream for the libraries' calls, which run one after another and so can share scratch memory.
typedef struct Lane {
    Stream *stream;
    cudnnHandle_t cudnn;
    void *scratch;
    size_t scratch_bytes;
} Lane;

struct Ops {
    Device *device;
    OpsConfig config;
    cublasLtHandle_t blas;
    Lane main, beside;          // beside: gradients of weights, while main continues with backward
    Event *forked, *joined;     // beside waits for main's `forked`, and main for beside's `joined`
    bool beside_is_done;
    struct TunedPlan *plans;
    struct FusedPlans *fused;
    const char *attention;      // what the log last printed about attention
    int norm_processes;         // processes that share a BatchNorm batch; 0 or 1: it is not shared
    OpsGather norm_gather;
    void *norm_gather_arg;
};

static inline Stream *compute(const Ops *ops) { return &ops->device->compute; }

// Makes the lane's scratch memory at least `bytes` long. Call it only in op_new.
void lane_need_scratch(Lane *lane, size_t bytes);
// Makes later work on `beside` wait for all work that `main` has so far.
void ops_fork(Ops *ops);
void conv_plans_free(Ops *ops);

// --- our own kernels: kernels_*.cu ---------------------------------------------------------------

// For attention: copies from rows of tokens (samples, T, parts, heads, d) to matrices of heads
// (parts, samples, heads, T, d), or, if `split` is false, back.
void heads_copy(Ops *ops, const OpSpec *s, int parts, bool split, const void *from,
                void *to);
// The rows of (samples, heads, T, T): scores become P, their causal softmax (ops/attention.h), and
// h becomes dropout(P). Unless dh is NULL, dh becomes dP, and ds the gradient of the scores.
void softmax_rows(Ops *ops, const OpSpec *s, const uint64_t *keys, float *scores, void *h,
                  float *dh, void *ds);

// --- fused attention: attention_fused.c ----------------------------------------------------------

typedef struct Fused Fused;
// Returns NULL if attention_cuda.c must compute this attention: without DDP_ATTENTION=fused, or if
// cuDNN cannot. With DDP_ATTENTION=fused, rank 0 prints whether cuDNN computes attention.
Fused *fused_new(const Op *op);
void fused_free(Fused *fused);
void fused_forward(const Fused *fused, const OpArgs *args);
void fused_backward(const Fused *fused, const OpArgs *args);
void fused_plans_free(Ops *ops);

// --- matrix products -----------------------------------------------------------------------------

// D (m, n) = op(A) op(B), column-major and without gaps. The matrices of `batch` products (0: one)
// follow each other.
typedef struct GemmProblem {
    int m, n, k;
    bool transpose_a, transpose_b;
    int batch;
    cudaDataType_t dtype, result;   // dtype: of A and B; result: of D
    cublasComputeType_t compute;
} GemmProblem;

static inline cudaDataType_t cuda_type(Type type)
{
    return type == TYPE_F32 ? CUDA_R_32F : type == TYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

typedef struct Gemm {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;           // bytes
} Gemm;

void gemm_new(Gemm *gemm, cublasLtHandle_t blas, const GemmProblem *problem);
void gemm_free(Gemm *gemm);
void gemm_run(const Gemm *gemm, cublasLtHandle_t blas, const Lane *lane, const void *a,
              const void *b, void *d);

#ifdef __cplusplus
}
#undef _Noreturn
#endif
