// device_cpu.c - device.h for the CPU: a device is a share of this machine's cores.
//
// A stream made by stream_new_beside has a thread and a queue of tasks, and counts tasks queued and
// tasks done. So an event is a stream and a number:
//
//   queued 7 | copy | call | call |         event_record: (this stream, 7)
//   done   4   ^ running                    stream_wait, event_sync: until 7 are done
#include "cpu/device_cpu.h"
#include "check.h"
#include "threads.h"
#include "trace.h"

#include <errno.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const device_backend = "cpu";

typedef struct Task {
    struct Task *next;
    void (*fn)(void *arg);
    _Alignas(max_align_t) unsigned char arg[];
} Task;

struct Stream {
    Device *device;
    void *scratch;              // scratch memory for the running task
    size_t scratch_bytes;
    bool beside;                // the stream has a thread; only then are the fields below used
    char name[24], wait[40];    // names in the timeline: "gradients", "wait for gradients"
    pthread_t thread;
    pthread_mutex_t lock;       // guards all fields below
    pthread_cond_t changed;     // a task was queued, a task is done, or the stream ends
    Task *first, **last;        // the tasks that have not started
    uint64_t queued, done;      // counts of tasks since the stream was made
    bool ending;
};

// The event has happened when `stream` has done `number` tasks. stream NULL: nothing to wait for.
struct Event {
    Stream *stream;
    uint64_t number;
};

struct Device {
    int threads;
    char name[64];
    Stream compute;
    atomic_size_t bytes;        // bytes of device_alloc's memory in use
    pthread_mutex_t lock;       // guards the list of blocks
    struct BlockHeader *blocks; // the list of all blocks of the device's memory
};

// Precedes every block of device memory, so that device_free finds the block's size. The header's
// 64 bytes keep the block aligned.
typedef struct BlockHeader {
    size_t bytes;
    struct BlockHeader *next, **at;     // in the device's list; *at is the pointer to this block
    char pad[40];
} BlockHeader;

// --- devices ------------------------------------------------------------------------------------

int device_count(void) { return 0; }

const char *device_uuid(int index) { return ""; }

bool device_shares_memory(const Device *device) { return true; }

static const char *isa_name(void)
{
#ifdef __aarch64__
    return "arm64";             // oneDNN names only x86's instructions
#else
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    return isa >= dnnl_cpu_isa_avx512_core_amx    ? "amx"
           : isa >= dnnl_cpu_isa_avx512_core_bf16 ? "avx512_bf16"
           : isa >= dnnl_cpu_isa_avx512_core      ? "avx512"
           : isa >= dnnl_cpu_isa_avx2             ? "avx2"
                                                  : "sse4.1";
#endif
}

bool loops_wide(void) { return dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core; }

Device *device_open(int index, int threads)
{
    Device *device = xcalloc(1, sizeof *device);
    device->threads = threads > 0 ? threads : core_count();
    if (device->threads > omp_get_thread_limit())   // set by OMP_THREAD_LIMIT
        device->threads = omp_get_thread_limit();
    device->compute.device = device;
    pthread_mutex_init(&device->lock, NULL);
    snprintf(device->name, sizeof device->name, "CPU, %s, %d thread%s", isa_name(), device->threads,
             device->threads == 1 ? "" : "s");
    device_use(device);
    threads_start_openmp(device->threads);
    return device;
}

// OMP_NUM_THREADS, as launchers and clusters set it: "4", or "4,2" for nested teams. Returns 0 if
// it is not set, or not from 1 to 1024.
static int threads_of_environment(void)
{
    const char *text = getenv("OMP_NUM_THREADS");
    int threads = text ? atoi(text) : 0;
    return threads > 0 && threads <= 1024 ? threads : 0;
}

int device_share(int devices, int asked, bool warn)
{
    int cores = core_count(), threads = asked > 0 ? asked : threads_of_environment();
    if (threads <= 0)
        threads = cores > devices ? cores / devices : 1;
    if (warn && (int64_t)devices * threads > cores)
        WARN("use fewer --threads, a smaller OMP_NUM_THREADS, or fewer ranks or devices",
             "%d device%s with %d thread%s%s share%s %d core%s: the threads take turns, and wait "
             "for each other", devices, devices == 1 ? "" : "s",
             threads, threads == 1 ? "" : "s", devices == 1 ? "" : " each",
             devices == 1 ? "s" : "", cores, cores == 1 ? "" : "s");
    return threads;
}

void device_close(Device *device)
{
    if (!device)
        return;
    while (device->blocks)
        device_free(device, device->blocks + 1);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static _Thread_local bool is_beside;

// From now on teams that OpenMP starts in the calling thread have exactly device->threads threads.
// But a stream's own thread works alone (device_cpu.h).
void device_use(Device *device)
{
    omp_set_dynamic(0);
    omp_set_num_threads(is_beside ? 1 : device->threads);
}

const char *device_name(const Device *device) { return device->name; }
int device_threads(const Device *device) { return device->threads; }
size_t device_bytes(const Device *device) { return atomic_load(&device->bytes); }

// --- memory -------------------------------------------------------------------------------------

// Large blocks of device memory come directly from the kernel: they are zero, and cost nothing
// until they are used. The largest blocks are rounded up to whole huge pages, because some versions
// of Linux align only such blocks.
enum { LARGE = 1 << 20, HUGE_PAGE = 2 << 20, VERY_LARGE = 8 * HUGE_PAGE };

static void *map_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static size_t block_size(size_t bytes)
{
    size_t whole = sizeof(BlockHeader) + bytes, unit = whole >= VERY_LARGE ? HUGE_PAGE : 64;
    return round_up(whole, unit);
}

void *device_alloc(Device *device, size_t bytes)
{
    size_t whole = block_size(bytes);
    BlockHeader *block = whole >= LARGE ? map_memory(whole) : aligned_alloc(64, whole);
    CHECK(block, "use a smaller batch (-b) or model",
          "out of memory: %zu MiB requested, %zu MiB in use by this device", bytes >> 20,
          atomic_load(&device->bytes) >> 20);
    if (whole < LARGE)
        memset(block, 0, whole);
    pthread_mutex_lock(&device->lock);
    *block = (BlockHeader){ .bytes = bytes, .next = device->blocks, .at = &device->blocks };
    if (block->next)
        block->next->at = &block->next;
    device->blocks = block;
    pthread_mutex_unlock(&device->lock);
    atomic_fetch_add(&device->bytes, bytes);
    return block + 1;
}

void device_free(Device *device, void *memory)
{
    if (!memory)
        return;
    BlockHeader *block = (BlockHeader *)memory - 1;
    size_t bytes = block->bytes;
    pthread_mutex_lock(&device->lock);
    *block->at = block->next;
    if (block->next)
        block->next->at = block->at;
    pthread_mutex_unlock(&device->lock);
    atomic_fetch_sub(&device->bytes, bytes);
    if (block_size(bytes) >= LARGE)
        munmap(block, block_size(bytes));
    else
        free(block);
}

void *host_alloc(size_t bytes)
{
    void *memory = aligned_alloc(64, round_up(bytes, 64));
    CHECK(memory || bytes == 0, "use a smaller batch (-b) or model",
          "out of memory: %zu MiB requested", bytes >> 20);
    return memory;
}

void host_free(void *memory) { free(memory); }

// --- streams: the calling thread, or the stream's own, does the work -----------------------------

Stream *device_stream(Device *device) { return &device->compute; }

Stream *stream_new(Device *device, const char *name)
{
    Stream *stream = xcalloc(1, sizeof *stream);
    stream->device = device;
    snprintf(stream->name, sizeof stream->name, "%s", name);
    snprintf(stream->wait, sizeof stream->wait, "wait for %s", stream->name);
    return stream;
}

bool stream_has_team(const Stream *stream) { return stream == &stream->device->compute; }

// Waits for a task and takes it; NULL: the stream is being freed. The caller holds the lock.
static Task *task_take(Stream *stream)
{
    while (!stream->first && !stream->ending)
        pthread_cond_wait(&stream->changed, &stream->lock);
    Task *task = stream->first;
    if (task)
        stream->first = task->next;
    if (!stream->first)
        stream->last = &stream->first;
    return task;
}

static void *stream_run(void *arg)
{
    Stream *stream = arg;
    is_beside = true;
    device_use(stream->device);
    trace_thread(stream->name);

    pthread_mutex_lock(&stream->lock);
    for (Task *task; (task = task_take(stream));) {
        pthread_mutex_unlock(&stream->lock);
        task->fn(task->arg);
        free(task);
        pthread_mutex_lock(&stream->lock);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

Stream *stream_new_beside(Device *device, const char *name)
{
    Stream *stream = stream_new(device, name);
    stream->beside = true;
    stream->last = &stream->first;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    stream->thread = thread_start(stream_run, stream, name);
    return stream;
}

void stream_free(Stream *stream)
{
    if (!stream)
        return;
    stream_sync(stream);
    device_free(stream->device, stream->scratch);
    if (!stream->beside) {
        free(stream);
        return;
    }
    pthread_mutex_lock(&stream->lock);
    stream->ending = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

void stream_enqueue(Stream *stream, void (*fn)(void *arg), const void *arg, size_t bytes)
{
    if (!stream->beside) {
        fn((void *)arg);
        return;
    }
    Task *task = xmalloc(sizeof *task + bytes);
    task->next = NULL;
    task->fn = fn;
    memcpy(task->arg, arg, bytes);
    pthread_mutex_lock(&stream->lock);
    *stream->last = task;
    stream->last = &task->next;
    stream->queued++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

// Only the stream's tasks call it, one at a time, so no task is using the old memory.
void *stream_scratch(Stream *stream, size_t bytes)
{
    if (bytes > stream->scratch_bytes) {
        device_free(stream->device, stream->scratch);
        stream->scratch = device_alloc(stream->device, bytes);
        stream->scratch_bytes = bytes;
    }
    return stream->scratch;
}

typedef struct Copy {
    void *to;
    const void *from;
    size_t bytes;
} Copy;

static void copy_task(void *arg)
{
    const Copy *copy = arg;
    memcpy(copy->to, copy->from, copy->bytes);
}

void copy_to_device(Stream *stream, void *to, const void *from, size_t bytes)
{
    stream_enqueue(stream, copy_task, &(Copy){ to, from, bytes }, sizeof(Copy));
}

void copy_to_host(Stream *stream, void *to, const void *from, size_t bytes)
{
    stream_enqueue(stream, copy_task, &(Copy){ to, from, bytes }, sizeof(Copy));
}

void copy_on_device(Stream *stream, void *to, const void *from, size_t bytes)
{
    stream_enqueue(stream, copy_task, &(Copy){ to, from, bytes }, sizeof(Copy));
}

static void fill_task(void *arg)
{
    const Copy *fill = arg;
    memset(fill->to, 0, fill->bytes);
}

void fill_zero(Stream *stream, void *memory, size_t bytes)
{
    stream_enqueue(stream, fill_task, &(Copy){ memory, NULL, bytes }, sizeof(Copy));
}

// --- events --------------------------------------------------------------------------------------

Event *event_new(Device *device) { return xcalloc(1, sizeof(Event)); }

void event_free(Event *event) { free(event); }

static Event everything_queued(Stream *stream)
{
    if (!stream->beside)
        return (Event){ 0 };
    pthread_mutex_lock(&stream->lock);
    Event event = { stream, stream->queued };
    pthread_mutex_unlock(&stream->lock);
    return event;
}

void event_record(Event *event, Stream *stream) { *event = everything_queued(stream); }

static void wait_task(void *arg)
{
    const Event *event = arg;
    pthread_mutex_lock(&event->stream->lock);
    while (event->stream->done < event->number)
        pthread_cond_wait(&event->stream->changed, &event->stream->lock);
    pthread_mutex_unlock(&event->stream->lock);
}

void event_sync(Event *event)
{
    if (!event->stream)
        return;
    trace_begin(event->stream->wait);
    wait_task(event);
    trace_end();
}

bool stream_idle(Stream *stream)
{
    if (!stream->beside)
        return true;
    pthread_mutex_lock(&stream->lock);
    bool idle = stream->done == stream->queued;
    pthread_mutex_unlock(&stream->lock);
    return idle;
}

void stream_sync(Stream *stream)
{
    Event event = everything_queued(stream);
    event_sync(&event);
}

// Copies the number that is recorded now: the event may be recorded again before the stream waits.
void stream_wait(Stream *stream, Event *event)
{
    if (!stream->beside)
        event_sync(event);
    else if (event->stream)
        stream_enqueue(stream, wait_task, event, sizeof *event);
}

// --- replay: on a CPU every call runs the step ---------------------------------------------------

Replay *replay_new(Device *device, int keys) { return xcalloc(1, 1); }

void replay_free(Replay *replay) { free(replay); }
void replay_forbid(Device *device) { }
void device_takes_turns(Device *device) { }

void replay_run(Replay *replay, int key, void (*step)(void *arg), void *arg) { step(arg); }
