// cuda_runtime_api.h - as much of CUDA's runtime as a C program needs to use NCCL. Written from NVIDIA's documentation:
// names, arguments, values and rules are CUDA's. Without a GPU, the library that tests/fake_cuda/exercises.c describes
// takes its place.
#pragma once
#include <stddef.h>

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600,
} cudaError_t;
const char *cudaGetErrorString(cudaError_t error);

// cudaSetDevice chooses the GPU for memory, streams and communicators that this thread makes from now on.
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceSynchronize(void);    // the host waits for all streams

// The GPU's memory, at first with undefined contents. The host must not access it.
cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);         // waits for all streams
// Pinned host memory, which the GPU can access while the host continues.
cudaError_t cudaMallocHost(void **memory, size_t bytes);
cudaError_t cudaFreeHost(void *memory);

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef void (*cudaHostFn_t)(void *arg);
enum { cudaStreamDefault, cudaStreamNonBlocking };
enum { cudaEventDefault, cudaEventBlockingSync, cudaEventDisableTiming };
enum cudaMemcpyKind {
    cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault
};

// Work on a stream runs in order. Work on stream 0, the default stream, waits for earlier work on the other streams,
// and their later work waits for it. Streams made with cudaStreamNonBlocking do not wait for stream 0, nor it for
// them.
cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);   // does not wait: cudaErrorNotReady if the stream has work left

// Both work on the default stream. The host waits for cudaMemcpy, except for a copy on the device; from memory that
// is not pinned, only until CUDA has a copy of its own, so another stream may still see the old values. The host does
// not wait for cudaMemset of device memory.
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t cudaMemset(void *memory, int value, size_t bytes);
// The host does not wait for a copy between pinned memory and the GPU. For other host memory, it may wait.
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream);
// The host calls function(arg) after the stream's earlier work. The function must not call CUDA or NCCL.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *arg);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);    // everything so far on this stream
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);    // later work waits
cudaError_t cudaEventSynchronize(cudaEvent_t event);
