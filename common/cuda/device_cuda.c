// device_cuda.c - device.h on NVIDIA GPUs, with the CUDA runtime.
//
// No stream waits for CUDA's implicit default stream: all are "non-blocking".
#include "progress.h"
#include "trace.h"
#include "cuda/cuda_internal.h"

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCudaRt.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *const device_backend = "cuda";

struct Event {
    Device *device;
    cudaEvent_t handle;
};

typedef struct Block {
    void *memory;
    size_t bytes;
    struct Block *next;
} Block;

typedef struct HostTask {
    void (*fn)(void *arg);
    _Alignas(max_align_t) unsigned char arg[];
} HostTask;

// --- errors --------------------------------------------------------------------------------------

static const char hint_driver[] =
    "install an NVIDIA driver that is new enough (nvidia-smi prints the version of an installed "
    "one), or train on the CPU (./ddp run STEP --backend cpu, or build/cpu/STEP/train)";
static const char hint_device[] =
    "nvidia-smi shows the GPUs, and CUDA_VISIBLE_DEVICES may hide them; to train on the CPU: "
    "./ddp run STEP --backend cpu, or build/cpu/STEP/train";
static const char hint_memory[] =
    "use a smaller batch (-b) or model, or fewer ranks on this GPU (-n); nvidia-smi shows what "
    "else uses its memory";

// For other errors NVIDIA's text is enough.
static const struct {
    cudaError_t status;
    const char *hint;
} cuda_hints[] = {
    { cudaErrorMemoryAllocation, hint_memory },
    { cudaErrorSystemDriverMismatch, hint_driver },
    { cudaErrorUnsupportedPtxVersion, hint_driver },
    { cudaErrorNoKernelImageForDevice,
      "this build has no code for this GPU: configure with -DCMAKE_CUDA_ARCHITECTURES=native" },
};

void cuda_failed(cudaError_t status, const char *call, const char *file, int line)
{
    const char *hint = "";
    for (size_t i = 0; i < sizeof cuda_hints / sizeof *cuda_hints; i++)
        if (cuda_hints[i].status == status)
            hint = cuda_hints[i].hint;
    fail_at(file, line, EXIT_FAILED, hint, "%.*s: %s (%s)", (int)strcspn(call, "("), call,
            cudaGetErrorString(status), cudaGetErrorName(status));
}

// --- devices -------------------------------------------------------------------------------------

static _Thread_local int current_device = -1; // this thread's device in CUDA; -1: none set

// The number of GPUs; -1 without a driver. Fails if there is a driver that does not work.
static int count_gpus(void)
{
    int count = 0, driver = 0, runtime = 0;
    PROGRESS_DOING("loading", "the NVIDIA driver");
    cudaError_t status = cudaGetDeviceCount(&count);
    (void)cudaGetLastError();
    if (status == cudaErrorNoDevice)
        return 0;
    if (status == cudaErrorInsufficientDriver) {
        CUDA(cudaDriverGetVersion(&driver));
        CUDA(cudaRuntimeGetVersion(&runtime));
        if (driver == 0)
            return -1;
        FAIL(hint_driver,
             "the NVIDIA driver is too old: it supports CUDA %d.%d, but this program needs %d.%d",
             driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    }
    if (status != cudaSuccess)
        cuda_failed(status, "cudaGetDeviceCount", __FILE__, __LINE__);
    return count;
}

int device_count(void)
{
    int count = count_gpus();
    return count > 0 ? count : 0;
}

const char *device_uuid(int index)
{
    static char text[48];
    struct cudaDeviceProp about;
    int n = snprintf(text, sizeof text, "GPU-");
    CUDA(cudaGetDeviceProperties(&about, index));
    for (int i = 0; i < 16; i++)
        n += snprintf(text + n, sizeof text - n, "%02x", (unsigned char)about.uuid.bytes[i]);
    return text;
}

static void check_device_exists(int index)
{
    int count = count_gpus();
    CHECK(count >= 0, hint_driver,
          "there is no NVIDIA driver on this machine, or this container was started without GPUs");
    CHECK(count > 0, hint_device, "there is no GPU that this process may use");
    CHECK(index >= 0 && index < count, hint_device,
          "there is no GPU %d: this process has %d in all, numbered from 0", index, count);
}

static cudaStream_t new_stream(const char *name)
{
    cudaStream_t handle;
    CUDA(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking));
    nvtxNameCudaStreamA(handle, name);
    return handle;
}

// The number of cores does not matter: the GPU computes.
int device_share(int devices, int asked, bool warn) { return asked; }

static void profiler_begin(const char *name) { nvtxRangePushA(name); }
static void profiler_end(void) { nvtxRangePop(); }

Device *device_open(int index, int threads)
{
    PROGRESS_DOING("loading", "CUDA");
    check_device_exists(index);
    trace_profiler(profiler_begin, profiler_end);
    Device *device = xcalloc(1, sizeof *device);
    struct cudaDeviceProp properties;
    device->index = index;
    device_use(device);
    CUDA(cudaGetDeviceProperties(&properties, index));
    snprintf(device->name, sizeof device->name, "%s", properties.name);
    device->major = properties.major;
    pthread_mutex_init(&device->lock, NULL);
    device->compute = (Stream){ device, new_stream("compute") };
    device->fills = new_stream("fills");
    return device;
}

void device_takes_turns(Device *device) { device->takes_turns = true; }

void device_close(Device *device)
{
    if (!device)
        return;
    device_use(device);
    CUDA(cudaStreamSynchronize(device->compute.handle));
    CUDA(cudaStreamDestroy(device->fills));
    CUDA(cudaStreamDestroy(device->compute.handle));
    while (device->blocks)
        device_free(device, device->blocks->memory);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

void device_use(Device *device)
{
    if (current_device == device->index)
        return;
    CUDA(cudaSetDevice(device->index));
    current_device = device->index;
}

const char *device_name(const Device *device) { return device->name; }

int device_threads(const Device *device) { return 0; }

bool device_shares_memory(const Device *device) { return false; }

size_t device_bytes(const Device *device) { return device->bytes; }

// --- memory --------------------------------------------------------------------------------------

_Noreturn static void out_of_memory(const Device *device, size_t bytes)
{
    size_t free_bytes = 0, all_bytes = 0;
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&free_bytes, &all_bytes);
    FAIL(hint_memory, "out of memory on GPU %d (%s): %zu MiB requested, %zu MiB free of %zu MiB, "
         "%zu MiB in arrays of this process", device->index, device->name, (bytes >> 20) + 1,
         free_bytes >> 20, all_bytes >> 20, device->bytes >> 20);
}

void *device_alloc(Device *device, size_t bytes)
{
    Block *block = xcalloc(1, sizeof *block);
    size_t whole = bytes > 0 ? bytes : 1; // every block needs its own address
    device_use(device);
    cudaError_t status = cudaMalloc(&block->memory, whole);
    if (status == cudaErrorMemoryAllocation)
        out_of_memory(device, bytes);
    CUDA(status);
    CUDA(cudaMemsetAsync(block->memory, 0, whole, device->fills));
    CUDA(cudaStreamSynchronize(device->fills));
    block->bytes = bytes;
    pthread_mutex_lock(&device->lock);
    block->next = device->blocks;
    device->blocks = block;
    device->bytes += bytes;
    pthread_mutex_unlock(&device->lock);
    return block->memory;
}

void device_free(Device *device, void *memory)
{
    if (!memory)
        return;
    pthread_mutex_lock(&device->lock);
    Block **link = &device->blocks;
    while (*link && (*link)->memory != memory)
        link = &(*link)->next;
    Block *block = *link;
    CHECK(block, "", "device_free of %p, which is not memory of GPU %d", memory, device->index);
    *link = block->next;
    device->bytes -= block->bytes;
    pthread_mutex_unlock(&device->lock);
    device_use(device);
    CUDA(cudaFree(memory)); // waits for the device
    free(block);
}

void *host_alloc(size_t bytes)
{
    void *memory = NULL;
    CUDA(cudaHostAlloc(&memory, bytes > 0 ? bytes : 1, cudaHostAllocPortable));
    return memory;
}

void host_free(void *memory)
{
    if (memory)
        CUDA(cudaFreeHost(memory));
}

// --- streams and events --------------------------------------------------------------------------

Stream *device_stream(Device *device) { return &device->compute; }

Stream *stream_new(Device *device, const char *name)
{
    Stream *stream = xcalloc(1, sizeof *stream);
    device_use(device);
    *stream = (Stream){ device, new_stream(name) };
    return stream;
}

Stream *stream_new_beside(Device *device, const char *name) { return stream_new(device, name); }

void stream_free(Stream *stream)
{
    if (!stream)
        return;
    stream_sync(stream);
    CUDA(cudaStreamDestroy(stream->handle));
    device_free(stream->device, stream->scratch);
    free(stream);
}

// The old memory stays until the device is closed: a recorded step may hold its address.
void *stream_scratch(Stream *stream, size_t bytes)
{
    if (bytes > stream->scratch_bytes) {
        stream->scratch = device_alloc(stream->device, bytes);
        stream->scratch_bytes = bytes;
    }
    return stream->scratch;
}

// Called while the host waits: the device may be waiting for a rank that is gone.
static void poll_communicators(Device *device)
{
    (void)cudaGetLastError();   // clear cudaErrorNotReady, or the next launch would report it
    device->while_waiting();
    nanosleep(&(struct timespec){ .tv_nsec = 50 * 1000 }, NULL);
}

bool stream_idle(Stream *stream)
{
    bool idle = cudaStreamQuery(stream->handle) != cudaErrorNotReady;
    (void)cudaGetLastError();
    return idle;
}

void stream_sync(Stream *stream)
{
    device_use(stream->device);
    while (stream->device->while_waiting && !stream_idle(stream))
        poll_communicators(stream->device);
    CUDA(cudaStreamSynchronize(stream->handle));
}

// With host memory that is not pinned, cudaMemcpyAsync may wait for the stream, and would not
// notice that another rank is gone. So stream_sync waits first. True: the memory is not pinned.
static bool sync_if_pageable(Stream *stream, const void *host)
{
    struct cudaPointerAttributes about;
    device_use(stream->device);
    CUDA(cudaPointerGetAttributes(&about, host));
    if (about.type != cudaMemoryTypeUnregistered)
        return false;
    stream_sync(stream);
    return true;
}

void copy_to_device(Stream *stream, void *to, const void *from, size_t bytes)
{
    bool pageable = sync_if_pageable(stream, from);
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream->handle));
    if (pageable)
        CUDA(cudaStreamSynchronize(stream->handle));    // CUDA may still read the memory
}

void copy_to_host(Stream *stream, void *to, const void *from, size_t bytes)
{
    sync_if_pageable(stream, to);
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream->handle));
}

// All devices and the host share one address space, so this also copies between devices, through
// the host.
void copy_on_device(Stream *stream, void *to, const void *from, size_t bytes)
{
    device_use(stream->device);
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream->handle));
}

void fill_zero(Stream *stream, void *memory, size_t bytes)
{
    device_use(stream->device);
    CUDA(cudaMemsetAsync(memory, 0, bytes, stream->handle));
}

static void CUDART_CB call_and_free(void *arg)
{
    HostTask *call = arg;
    call->fn(call->arg);
    free(call);
}

void stream_enqueue(Stream *stream, void (*fn)(void *arg), const void *arg, size_t bytes)
{
    enum cudaStreamCaptureStatus status;
    device_use(stream->device);
    CUDA(cudaStreamIsCapturing(stream->handle, &status));
    CHECK(status == cudaStreamCaptureStatusNone, "call replay_forbid before the first step",
          "a step that calls stream_enqueue cannot be recorded");
    HostTask *call = xmalloc(sizeof *call + bytes);
    call->fn = fn;
    memcpy(call->arg, arg, bytes);
    CUDA(cudaLaunchHostFunc(stream->handle, call_and_free, call));
}

Event *event_new(Device *device)
{
    Event *event = xcalloc(1, sizeof *event);
    device_use(device);
    event->device = device;
    CUDA(cudaEventCreateWithFlags(&event->handle, cudaEventDisableTiming));
    return event;
}

void event_free(Event *event)
{
    if (!event)
        return;
    device_use(event->device);
    CUDA(cudaEventDestroy(event->handle));
    free(event);
}

void event_record(Event *event, Stream *stream)
{
    device_use(stream->device);
    CUDA(cudaEventRecord(event->handle, stream->handle));
}

void stream_wait(Stream *stream, Event *event)
{
    device_use(stream->device);
    CUDA(cudaStreamWaitEvent(stream->handle, event->handle, 0));
}

void event_sync(Event *event)
{
    device_use(event->device);
    while (event->device->while_waiting && cudaEventQuery(event->handle) == cudaErrorNotReady)
        poll_communicators(event->device);
    CUDA(cudaEventSynchronize(event->handle));
}

// --- replay: a CUDA graph for each key -----------------------------------------------------------

typedef struct Recording {
    bool warm;              // the step has run once: memory allocated, kernels loaded
    cudaGraphExec_t graph;  // NULL until recorded
} Recording;

struct Replay {
    Device *device;
    int keys;
    Recording recordings[];     // (keys)
};

Replay *replay_new(Device *device, int keys)
{
    Replay *replay = xcalloc(1, sizeof *replay + keys * sizeof(Recording));
    replay->device = device;
    replay->keys = keys;
    return replay;
}

void replay_free(Replay *replay)
{
    if (!replay)
        return;
    stream_sync(&replay->device->compute);
    for (int i = 0; i < replay->keys; i++)
        if (replay->recordings[i].graph)
            CUDA(cudaGraphExecDestroy(replay->recordings[i].graph));
    free(replay);
}

// Calls step while the compute stream records instead of running. Other threads, such as the
// loader's, may call CUDA meanwhile, because the mode is thread-local.
static cudaGraphExec_t record(cudaStream_t stream, void (*step)(void *arg), void *arg)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    step(arg);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    return exec;
}

void replay_forbid(Device *device) { device->never_record = true; }

void replay_run(Replay *replay, int key, void (*step)(void *arg), void *arg)
{
    Recording *recording = &replay->recordings[key];
    device_use(replay->device);
    if (!recording->warm) {
        recording->warm = true;
        // A kernel's first launch loads it, which may wait for earlier work, and so for other
        // ranks.
        PROGRESS_DOING("loading", "kernels");
        step(arg);
        return;
    }
    if (replay->device->never_record) {
        step(arg);
        return;
    }
    if (!recording->graph)
        recording->graph = record(replay->device->compute.handle, step, arg);
    CUDA(cudaGraphLaunch(recording->graph, replay->device->compute.handle));
}
