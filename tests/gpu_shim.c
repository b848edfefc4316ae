// gpu_shim.c - uses the mock of the exercises as textbook programs use CUDA and NCCL, and checks the results. It also
// compiles with NVIDIA's headers.
//
//   gpu_shim RANK RANKS FILE SCENARIO      rank 0 passes NCCL's ids to the others in FILE.1, FILE.2, ...
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COUNT = 1000 };
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

static ncclComm_t new_comm(const char *file, int number)
{
    char path[1000], part[1100];
    ncclUniqueId id;
    ncclComm_t made;
    snprintf(path, sizeof path, "%s.%d", file, number);
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
    MUST(ncclCommInitRank(&made, size, id, rank));
    return made;
}

static void *on_gpu(size_t bytes)
{
    void *memory;
    MUST(cudaMalloc(&memory, bytes));
    return memory;
}

static cudaStream_t new_stream(unsigned flags)
{
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, flags));
    return stream;
}

static void sleep_ms(void *ms) { usleep((useconds_t)(1000 * (intptr_t)ms)); }
static void set_to_7(void *number) { *(float *)number = 7; }

// New memory of the mock holds NaN. A copy on the default stream waits for all streams but non-blocking ones.
// Pageable memory may be overwritten as soon as cudaMemcpyAsync returns.
static void test_cuda(void)
{
    float *host, pageable[4] = { 1, 2, 3, 4 }, *gpu = on_gpu(16), *other = on_gpu(16);
    cudaStream_t stream = new_stream(cudaStreamDefault), alone = new_stream(cudaStreamNonBlocking);
    cudaEvent_t event;
    MUST(cudaMallocHost((void **)&host, 16));
    MUST(cudaMemcpy(host, gpu, 16, cudaMemcpyDeviceToHost));
    CHECK(host[0] != host[0]);

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

    // An event covers what is on its stream when it is recorded; one that was never recorded is done.
    MUST(cudaEventCreate(&event));
    MUST(cudaStreamWaitEvent(alone, event, 0));
    MUST(cudaEventSynchronize(event));
    MUST(cudaLaunchHostFunc(stream, sleep_ms, (void *)20));
    MUST(cudaLaunchHostFunc(stream, set_to_7, host + 2));
    MUST(cudaEventRecord(event, stream));
    MUST(cudaStreamWaitEvent(alone, event, 0));
    MUST(cudaMemcpyAsync(gpu, host + 2, 4, cudaMemcpyHostToDevice, alone));
    MUST(cudaMemcpyAsync(host + 3, gpu, 4, cudaMemcpyDeviceToHost, alone));
    MUST(cudaStreamDestroy(stream));                // its work still runs
    MUST(cudaStreamSynchronize(alone));
    CHECK(host[3] == 7);

    CHECK(cudaMemcpy(gpu, host, 17, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(gpu, host, 16, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(host + 1, gpu, 16, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
    CHECK(cudaFree(pageable) == cudaErrorInvalidValue);
    CHECK(cudaSetDevice(100) == cudaErrorInvalidDevice);
    MUST(cudaEventDestroy(event));
    MUST(cudaStreamDestroy(alone));
    MUST(cudaFree(NULL));
    MUST(cudaFree(gpu));
    MUST(cudaFree(other));
    MUST(cudaFreeHost(host));
}

// The values are rank + i.
static void test_collectives(cudaStream_t stream)
{
    static float in[8 * COUNT], out[8 * COUNT];
    size_t bytes = COUNT * sizeof(float), all = (size_t)size * bytes;
    float *a = on_gpu(all), *b = on_gpu(all);
    double sum = size * (size - 1) / 2.0;
    for (int i = 0; i < size * COUNT; i++)
        in[i] = (float)(rank + i);
    MUST(cudaMemcpy(a, in, all, cudaMemcpyHostToDevice));
    MUST(ncclAllReduce(a, b, COUNT, ncclFloat, ncclSum, comm, stream));
    MUST(cudaMemcpyAsync(out, b, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(out[0] == sum && out[COUNT - 1] == sum + size * (COUNT - 1.0));
    MUST(ncclAllReduce(b, b, COUNT, ncclFloat, ncclAvg, comm, stream));
    MUST(cudaMemcpyAsync(out, b, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(out[0] == (float)sum);
    MUST(ncclReduceScatter(a, b, COUNT, ncclFloat, ncclSum, comm, stream));
    MUST(cudaMemcpyAsync(out, b, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(out[1] == sum + size * (rank * COUNT + 1.0));
    MUST(ncclAllGather(a, b, COUNT, ncclFloat, comm, stream));
    MUST(ncclAllGather(b + rank * COUNT, b, COUNT, ncclFloat, comm, stream));
    MUST(cudaMemcpyAsync(out, b, all, cudaMemcpyDeviceToHost, stream));
    for (int r = 0; r < size; r++)
        CHECK(out[r * COUNT] == r && out[r * COUNT + 9] == r + 9);
    int last = size - 1;
    MUST(ncclBroadcast(a, b, COUNT, ncclFloat, last, comm, stream));
    MUST(cudaMemcpyAsync(out, b, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK(out[0] == last && out[9] == last + 9);

    // all to all, each rank also with itself; in a group, the order of the calls does not matter
    MUST(ncclGroupStart());
    for (int r = 0; r < size; r++) {
        MUST(ncclRecv(b + r * COUNT, COUNT, ncclFloat, r, comm, stream));
        MUST(ncclSend(a + r * COUNT, COUNT, ncclFloat, r, comm, stream));
    }
    MUST(ncclGroupEnd());
    MUST(cudaMemcpyAsync(out, b, all, cudaMemcpyDeviceToHost, stream));
    for (int r = 0; r < size; r++)
        CHECK(out[r * COUNT] == (float)(r + rank * COUNT));
    CHECK(ncclAllReduce(in, in, COUNT, ncclFloat, ncclSum, comm, stream) == ncclInvalidArgument);
    CHECK(ncclAllReduce(a, b, all, ncclFloat, ncclSum, comm, stream) == ncclInvalidArgument);
    CHECK(ncclSend(a, 1, ncclFloat, size, comm, stream) == ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    MUST(cudaFree(a));
    MUST(cudaFree(b));
}

// Pairs of ranks send on one stream and receive on another, by two communicators in turn, without a group.
static void test_pairs(const char *file)
{
    ncclComm_t second = new_comm(file, 2);
    cudaStream_t up = new_stream(cudaStreamNonBlocking), down = new_stream(cudaStreamNonBlocking);
    int other = rank ^ 1, count;
    float *a = on_gpu(COUNT * sizeof(float)), *b = on_gpu(COUNT * sizeof(float)), out;
    MUST(cudaMemset(a, rank, COUNT * sizeof(float)));
    MUST(cudaDeviceSynchronize());
    for (int n = 0; n < 20 && other < size; n++) {
        MUST(ncclSend(a, COUNT, ncclFloat, other, n % 2 ? comm : second, up));
        MUST(ncclRecv(b, COUNT, ncclFloat, other, n % 2 ? comm : second, down));
        MUST(cudaStreamSynchronize(up));
        MUST(cudaStreamSynchronize(down));
        MUST(cudaMemcpy(&out, b, sizeof out, cudaMemcpyDeviceToHost));
        uint32_t bits;
        memcpy(&bits, &out, sizeof bits);
        CHECK(bits == (uint32_t)other * 0x01010101u);
    }
    MUST(ncclCommCount(second, &count));
    CHECK(count == size);
    MUST(ncclCommDestroy(second));
    MUST(cudaStreamDestroy(up));
    MUST(cudaStreamDestroy(down));
    MUST(cudaFree(a));
    MUST(cudaFree(b));
}

int main(int argc, char **argv)
{
    CHECK(argc == 5);
    rank = atoi(argv[1]);
    size = atoi(argv[2]);
    const char *file = argv[3], *scenario = argv[4];
    MUST(cudaSetDevice(rank));
    float *a = on_gpu(64), *b = on_gpu(64);
    comm = new_comm(file, 1);
    if (strcmp(scenario, "all") == 0) {
        cudaStream_t stream = new_stream(cudaStreamDefault);
        test_cuda();
        test_collectives(stream);
        test_collectives(0);
        test_pairs(file);
        MUST(cudaStreamDestroy(stream));
        MUST(ncclCommDestroy(comm));
        comm = new_comm(file, 3);
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
    } else if (strcmp(scenario, "no_destroy") == 0) {
        MUST(ncclAllReduce(a, b, 4, ncclFloat, ncclSum, comm, 0));
        MUST(cudaDeviceSynchronize());
        return 0;
    }
    MUST(cudaDeviceSynchronize());
    MUST(ncclCommDestroy(comm));
    MUST(cudaFree(a));
    MUST(cudaFree(b));
    printf("rank %d of %d: good\n", rank, size);
    return 0;
}
