// cuda_shim.c - CUDA's memory, copies, streams and events, on device.h.
#include "shim.h"
#include "progress.h"
#include "trace.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GPUS = 8, ALIGNMENT = 256 };
// Set in the addresses of device memory. Linux puts no memory at such an address unless a program asks for it, so the
// host cannot access device memory.
static const uintptr_t device_bit = (uintptr_t)1 << 55;

typedef struct Block {
    struct Block *next;
    char *memory;
    size_t bytes;
    bool pinned;                // else the program has its address with device_bit
} Block;

// A destroyed stream is kept and reused, since events and other streams may refer to its thread.
struct CUstream_st {
    cudaStream_t next;
    Stream *queue;
    bool in_use, blocking;
};

Device *shim_gpu;
static Block *blocks;
static cudaStream_t streams, default_stream;
static double slow[2];          // ms by which GPU_SLOW delays copies, fills, host functions; calls of NCCL
static int current_gpu;

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : error == cudaErrorInvalidValue ? "invalid argument" :
           error == cudaErrorMemoryAllocation ? "out of memory" : error == cudaErrorNotReady ? "device not ready" :
           "invalid device ordinal";
}

// If an address has the bit, x86 with 4-level page tables reports SI_KERNEL instead of the address.
static void on_fault(int signal, siginfo_t *info, void *context)
{
    static const char text[] = "the host touched device memory: a pointer from cudaMalloc is only for calls of CUDA "
                               "and NCCL, and cudaMemcpy copies to the host\n";
    if (info->si_code == SI_KERNEL || (uintptr_t)info->si_addr & device_bit)
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
    sigaction(signal, &(struct sigaction){ .sa_handler = SIG_DFL }, NULL);
}

// Runs before main. Open MPI's variables tell the rank. The ranks of a run share one timeline.
__attribute__((constructor)) static void start(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    const char *what = getenv("GPU_SLOW");
    sscanf(what ? what : "", "compute:%lf", &slow[0]);
    sscanf(what ? what : "", "nccl:%lf", &slow[1]);
    check_set_rank(rank ? atoi(rank) : 0, size ? atoi(size) : 1);
    trace_open(getenv("GPU_TRACE"));        // MPI_Init waits until all ranks have done this
    sigaction(SIGSEGV, &(struct sigaction){ .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO }, NULL);
    shim_gpu = device_open(0, 1);
    cudaStreamCreate(&default_stream);
}

cudaError_t cudaGetDeviceCount(int *count) { *count = GPUS; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = current_gpu; return cudaSuccess; }

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= GPUS)
        return REFUSE(cudaErrorInvalidDevice, "cudaSetDevice(%d): this machine's GPUs are 0 to %d", device, GPUS - 1);
    if (device != current_gpu && (blocks || streams->next))
        return REFUSE(cudaErrorInvalidDevice, "cudaSetDevice(%d): the memory or streams that this rank has already "
                      "made are on GPU %d. Call it before them", device, current_gpu);
    current_gpu = device;
    return cudaSuccess;
}

// --- streams and events ---------------------------------------------------------------------------------------------

void shim_order(Stream *first, Stream *then)
{
    static Event *event;
    event = event ? event : event_new(shim_gpu);
    event_record(event, first);
    stream_wait(then, event);
}

static cudaStream_t in_use(cudaStream_t stream)
{
    cudaStream_t s = streams, wanted = stream ? stream : default_stream;
    while (s && !(s == wanted && s->in_use))
        s = s->next;
    CHECK(s, "", "a stream is used that was not created, or was destroyed");
    return s;
}

Stream *shim_enter(cudaStream_t stream)
{
    static pthread_t caller;
    progress_beat();
    caller = caller ? caller : pthread_self();
    CHECK(caller == pthread_self(), "that includes host functions (cudaLaunchHostFunc)",
          "two threads call CUDA or NCCL");
    cudaStream_t s = in_use(stream);
    for (cudaStream_t other = streams; s == default_stream && other; other = other->next)
        if (other->blocking && other != s)
            shim_order(other->queue, s->queue);
    if (s->blocking && s != default_stream)
        shim_order(default_stream->queue, s->queue);
    return s->queue;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    cudaStream_t s = streams;
    while (s && s->in_use)
        s = s->next;
    if (!s) {
        s = xcalloc(1, sizeof *s);
        *s = (struct CUstream_st){ streams, stream_new_beside(shim_gpu, streams ? "stream" : "default stream") };
        streams = s;
    }
    s->blocking = flags != cudaStreamNonBlocking;
    s->in_use = true;
    *stream = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { stream_sync(shim_enter(stream)); return cudaSuccess; }

// No heartbeat: a program that asks again and again makes no progress by that.
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return stream_idle(in_use(stream)->queue) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    shim_enter(stream);
    stream->in_use = false;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    for (cudaStream_t stream = streams; stream; stream = stream->next)
        stream_sync(stream->queue);
    return cudaSuccess;
}

// A cudaEvent_t points to an Event of device.h, whose rules are CUDA's.
#define DEFINE(name, parameters, work) cudaError_t name parameters { work; return cudaSuccess; }

DEFINE(cudaEventCreateWithFlags, (cudaEvent_t *event, unsigned flags), *event = (cudaEvent_t)event_new(shim_gpu))
DEFINE(cudaEventCreate, (cudaEvent_t *event), cudaEventCreateWithFlags(event, cudaEventDefault))
DEFINE(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), event_record((Event *)event, shim_enter(stream)))
DEFINE(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags),
       stream_wait(shim_enter(stream), (Event *)event))
DEFINE(cudaEventSynchronize, (cudaEvent_t event), event_sync((Event *)event))
DEFINE(cudaEventDestroy, (cudaEvent_t event), event_free((Event *)event))

// --- memory ---------------------------------------------------------------------------------------------------------

static bool on_device(const void *memory) { return (uintptr_t)memory & device_bit; }
static char *without_bit(const void *memory) { return (char *)((uintptr_t)memory & ~device_bit); }

// Returns the address of the list's pointer to the block with these bytes. The pointer is NULL if there is none.
static Block **find(const void *memory, size_t bytes)
{
    const char *at = without_bit(memory);
    Block **b = &blocks;
    while (*b && !(at >= (*b)->memory && at + bytes <= (*b)->memory + (*b)->bytes && (*b)->pinned != on_device(memory)))
        b = &(*b)->next;
    return b;
}

void *shim_memory(const void *memory, size_t bytes) { return *find(memory, bytes) ? without_bit(memory) : NULL; }

// Fills the memory with NaN (integers: -1), so that a program that does not set it is seldom right by luck.
static cudaError_t allocate(void **memory, size_t bytes, bool pinned)
{
    Block block = { blocks, aligned_alloc(ALIGNMENT, round_up(bytes + 1, ALIGNMENT)), bytes, pinned };
    if (!block.memory)
        return cudaErrorMemoryAllocation;
    memset(block.memory, 0xFF, bytes);
    *memory = (void *)((uintptr_t)block.memory | (pinned ? 0 : device_bit));
    blocks = memcpy(xmalloc(sizeof block), &block, sizeof block);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes) { return allocate(memory, bytes, false); }
cudaError_t cudaMallocHost(void **memory, size_t bytes) { return allocate(memory, bytes, true); }
cudaError_t cudaFreeHost(void *memory) { return cudaFree(memory); }

cudaError_t cudaFree(void *memory)
{
    Block **at = find(memory, 0), *block = *at;
    cudaDeviceSynchronize();
    if (!block)
        return memory ? REFUSE(cudaErrorInvalidValue, "cudaFree: not allocated, or already freed") : cudaSuccess;
    *at = block->next;
    free(block->memory);
    free(block);
    return cudaSuccess;
}

// --- work -----------------------------------------------------------------------------------------------------------

void shim_begin(const char *name)
{
    trace_begin(name);
    usleep((useconds_t)(1e3 * slow[strncmp(name, "nccl", 4) == 0]));
}

typedef struct Work {
    const char *name;
    void *to;
    const void *from;           // NULL: fill with value
    size_t bytes;
    int value;
    cudaHostFn_t function;      // if not NULL, the work is function(to)
} Work;

static void do_work(void *arg)
{
    const Work *work = arg;
    shim_begin(work->name);
    if (work->function)
        work->function(work->to);
    else if (work->from)
        memmove(work->to, work->from, work->bytes);
    else
        memset(work->to, work->value, work->bytes);
    trace_end();
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *arg)
{
    Work work = { .name = "host function", .to = arg, .function = function };
    stream_enqueue(shim_enter(stream), do_work, &work, sizeof work);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *memory, int value, size_t bytes) { return cudaMemsetAsync(memory, value, bytes, NULL); }

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    Work work = { .name = "fill", .to = shim_memory(memory, bytes), .bytes = bytes, .value = value };
    if (!work.to)
        return REFUSE(cudaErrorInvalidValue, "cudaMemset: this is not device memory of %zu bytes", bytes);
    stream_enqueue(shim_enter(stream), do_work, &work, sizeof work);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    static const char *const names[] = { "copy", "copy to device", "copy to host", "copy on device" };
    unsigned actual = 2u * on_device(from) + on_device(to);
    void *a = shim_memory(to, bytes), *b = shim_memory(from, bytes);
    Work work = { names[actual], a ? a : to, b ? b : from, bytes };
    Stream *queue = shim_enter(stream);
    if (kind != cudaMemcpyDefault && (unsigned)kind != actual)
        return REFUSE(cudaErrorInvalidValue, "cudaMemcpy: its kind is %d, but the addresses (to, from) are those of "
                      "a %s", (int)kind, names[actual]);
    bool few_to = !a && (on_device(to) || *find(to, 0)), few_from = !b && (on_device(from) || *find(from, 0));
    if (few_to || few_from)
        return REFUSE(cudaErrorInvalidValue, "cudaMemcpy: there are fewer than %zu bytes of %s memory to copy %s",
                      bytes, on_device(few_to ? to : from) ? "device" : "pinned", few_to ? "to" : "from");
    stream_enqueue(queue, do_work, &work, sizeof work);
    if (!a || !b)
        stream_sync(queue);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    if (!on_device(to) || !on_device(from))
        cudaStreamSynchronize(NULL);
    return error;
}
