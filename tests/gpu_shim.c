// gpu_shim.c - uses the mock of the exercises as textbook programs use CUDA and NCCL, and checks what gpu-1 to gpu-4 do
// not need. It also compiles with NVIDIA's headers.
//
//   gpu_shim RANK RANKS FILE SCENARIO      rank 0 passes NCCL's id to the others in FILE
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;
static ncclComm_t comm;

#define MUST(call) \
    do { \
        int status = (int)(call); \
        if (status != 0) { \
            printf("rank %d, line %d: %s returns %d\n", rank, __LINE__, #call, status); \
            exit(1); \
        } \
    } while (0)
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("rank %d, line %d: not so: %s\n", rank, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static void meet(const char *path)
{
    char part[1000];
    ncclUniqueId id;
    snprintf(part, sizeof part, "%s.part", path);
    if (rank == 0) {
        MUST(ncclGetUniqueId(&id));
        FILE *f = fopen(part, "wb");
        CHECK(f && fwrite(&id, sizeof id, 1, f) == 1 && fclose(f) == 0 && rename(part, path) == 0);
    }
    while (access(path, R_OK) != 0)
        usleep(1000);
    FILE *f = fopen(path, "rb");
    CHECK(f && fread(&id, sizeof id, 1, f) == 1);
    fclose(f);
    MUST(ncclCommInitRank(&comm, size, id, rank));
}

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
    CHECK(ncclSend(gpu, 1, ncclFloat, size, comm, 0) == ncclInvalidArgument);
    MUST(cudaFree(gpu));
    MUST(cudaFree(other));
}

// Each rank sends a number to every rank, itself included. In a group, the order of the calls does not matter.
static void test_all_to_all(void)
{
    float numbers[16], *a = on_gpu(sizeof numbers), *b = on_gpu(sizeof numbers);
    for (int i = 0; i < size; i++)
        numbers[i] = (float)(10 * rank + i);
    MUST(cudaMemcpy(a, numbers, sizeof numbers, cudaMemcpyHostToDevice));
    MUST(ncclGroupStart());
    for (int r = 0; r < size; r++) {
        MUST(ncclRecv(b + r, 1, ncclFloat, r, comm, 0));
        MUST(ncclSend(a + r, 1, ncclFloat, r, comm, 0));
    }
    MUST(ncclGroupEnd());
    MUST(cudaMemcpy(numbers, b, sizeof numbers, cudaMemcpyDeviceToHost));
    for (int i = 0; i < size; i++)
        CHECK(numbers[i] == (float)(10 * i + rank));
    MUST(cudaFree(a));
    MUST(cudaFree(b));
}

int main(int argc, char **argv)
{
    CHECK(argc == 5);
    rank = atoi(argv[1]);
    size = atoi(argv[2]);
    const char *scenario = argv[4];
    MUST(cudaSetDevice(rank));
    float *a = on_gpu(64), *b = on_gpu(64);
    meet(argv[3]);
    if (strcmp(scenario, "all") == 0) {
        test_cuda();
        test_all_to_all();
    } else if (strcmp(scenario, "other_call") == 0) {
        MUST(rank ? ncclBroadcast(a, b, 4, ncclFloat, 0, comm, 0)
                  : ncclAllReduce(a, b, 4, ncclFloat, ncclSum, comm, 0));
    } else if (strcmp(scenario, "counts") == 0) {
        MUST(rank ? ncclRecv(b, 16, ncclFloat, 0, comm, 0) : ncclSend(a, 4, ncclFloat, 1, comm, 0));
    } else if (strcmp(scenario, "abort") == 0 && rank > 0) {
        sleep(20);                                  // ends when rank 0 is lost
    } else if (strcmp(scenario, "abort") == 0) {
        ncclResult_t error;
        MUST(ncclAllReduce(a, b, 4, ncclFloat, ncclSum, comm, 0));
        for (int ms = 0; ms < 300; ms++, usleep(1000))
            CHECK(cudaStreamQuery(0) == cudaErrorNotReady);
        MUST(ncclCommGetAsyncError(comm, &error));
        CHECK(error == ncclSuccess);
        MUST(ncclCommAbort(comm));
        printf("rank 0 gives up\n");
        return 3;
    }
    MUST(cudaDeviceSynchronize());
    MUST(ncclCommDestroy(comm));
    MUST(cudaFree(a));
    MUST(cudaFree(b));
    printf("rank %d of %d: good\n", rank, size);
    return 0;
}
