// gpu_shim.c - uses the mock of the exercises as textbook programs use CUDA and NCCL, and checks what gpu-1 to gpu-4 do
// not need. It also compiles with NVIDIA's headers.
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static ncclComm_t comm;

#define MUST(call) \
    do { \
        int status = (int)(call); \
        if (status != 0) { \
            printf("line %d: %s returns %d\n", __LINE__, #call, status); \
            exit(1); \
        } \
    } while (0)
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: not so: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static void *on_gpu(size_t bytes)
{
    void *memory;
    MUST(cudaMalloc(&memory, bytes));
    return memory;
}

static void sleep_ms(void *ms) { usleep((useconds_t)(1000 * (intptr_t)ms)); }

// A copy on the default stream waits for all streams but non-blocking ones. Pageable memory may be overwritten as soon
// as cudaMemcpyAsync returns.
static void test_cuda(void)
{
    float *host, pageable[4] = { 1, 2, 3, 4 }, *gpu = on_gpu(16), *other = on_gpu(16);
    cudaStream_t stream;
    MUST(cudaStreamCreate(&stream));
    MUST(cudaMallocHost((void **)&host, 16));
    MUST(cudaLaunchHostFunc(stream, sleep_ms, (void *)20));
    MUST(cudaMemcpyAsync(gpu, pageable, 16, cudaMemcpyHostToDevice, stream));
    pageable[3] = 5;
    MUST(cudaMemcpyAsync(other, gpu, 16, cudaMemcpyDefault, stream));
    MUST(cudaMemcpy(pageable, other, 16, cudaMemcpyDeviceToHost));
    CHECK(pageable[0] == 1 && pageable[3] == 4);

    host[0] = 6;                    // the default stream's work runs between `stream`'s earlier and later work
    MUST(cudaLaunchHostFunc(stream, sleep_ms, (void *)20));
    MUST(cudaMemcpyAsync(gpu, host, 4, cudaMemcpyHostToDevice, stream));
    MUST(cudaLaunchHostFunc(0, sleep_ms, (void *)20));
    MUST(cudaMemcpyAsync(other, gpu, 4, cudaMemcpyDeviceToDevice, 0));
    MUST(cudaMemsetAsync(gpu, 0, 16, stream));
    MUST(cudaMemcpyAsync(host, gpu, 4, cudaMemcpyDeviceToHost, stream));
    MUST(cudaMemcpyAsync(host + 1, other, 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    MUST(cudaStreamSynchronize(stream));
    MUST(cudaStreamQuery(stream));
    CHECK(host[0] == 0 && host[1] == 6);
    MUST(cudaStreamDestroy(stream));
    MUST(cudaFreeHost(host));

    CHECK(cudaMemcpy(gpu, pageable, 17, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(gpu, pageable, 16, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(ncclAllReduce(gpu, other, 5, ncclFloat, ncclSum, comm, 0) == ncclInvalidArgument);
    CHECK(ncclSend(gpu, 1, ncclFloat, 1, comm, 0) == ncclInvalidArgument);
    MUST(cudaFree(gpu));
    MUST(cudaFree(other));
}

int main(void)
{
    ncclUniqueId id;
    MUST(cudaSetDevice(0));
    MUST(ncclGetUniqueId(&id));
    MUST(ncclCommInitRank(&comm, 1, id, 0));
    test_cuda();
    MUST(ncclCommDestroy(comm));
    return 0;
}
