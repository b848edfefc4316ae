// cuda_internal.h - shared in the CUDA backend: error checks, Device, Ops.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <pthread.h>

#ifdef __cplusplus
#define _Noreturn [[noreturn]]  // C's word, in the headers below
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
    int index;                  // CUDA's number of the device, of those that this process may see
    char name[256];
    int major;                  // its compute capability, without the part after the point
    Stream compute;
    bool never_record;          // replay_run calls the step each time
    bool takes_turns;           // with other processes
    void (*while_waiting)(void); // called while the host waits for the device; or NULL
    cudaStream_t fills;         // zeroes new memory; never recorded
    pthread_mutex_t lock;       // of blocks
    struct Block *blocks;
    size_t bytes, peak_bytes;
};

// --- one device's libraries and scratch memory ---------------------------------------------------

// Memory that grows.
typedef struct Room {
    void *memory;
    size_t bytes;
} Room;

// A stream for operations. They run one after another, so they share memory.
typedef struct Lane {
    Stream *stream;
    cudnnHandle_t cudnn;
    Room workspace;             // for the libraries
    Room scratch;               // for us
} Lane;

struct Ops {
    Device *device;
    OpsConfig config;
    cublasLtHandle_t blas;
    Lane main, beside;          // beside: gradients of weights, while main continues with backward
    Event *forked, *joined;     // main's work when beside begins, beside's when main waits
    bool beside_is_done;
    struct TunedPlan *plans;
    int norm_processes;         // processes that share a BatchNorm batch; 0, 1: none do
    OpsGather norm_gather;
    void *norm_gather_arg;
};

static inline Stream *compute(const Ops *ops) { return &ops->device->compute; }

// Makes a room of the lane at least `bytes` large. Call it only in op_new.
void lane_need(Lane *lane, Room *room, size_t bytes);
void conv_plans_free(Ops *ops);

// Fails if the GPU has no instructions for the type.
void cuda_check_type(const Device *device, Type type);
// What libraries read and write must begin at multiples of this many bytes.
enum { CUDA_ALIGNMENT = 16 };
void cuda_check_aligned(const void *a, const void *b, const void *c);

cudaError_t kernels_present(void);      // kernels_present.cu

#ifdef __cplusplus
}
#undef _Noreturn
#endif
