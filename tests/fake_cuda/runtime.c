// runtime.c - the CUDA runtime of fake.h: devices, memory, streams, events and graphs.
//
// One lock guards the queues and the allocations, and one condition variable signals the queues' changes.
// Streams and graphs are never freed.
#include "fake.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MAX_AFTER = 64, MAX_GPUS = 64, MAX_HELD = 8, MAX_FORKS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static _Thread_local int current = -1;          // this thread's device; -1: it has set none
static _Thread_local cudaError_t last_error;
static _Thread_local bool captures;

typedef struct Work {
    const char *name;
    void (*fn)(void *arg);
    void *arg;
    Range *ranges;
    int count;
} Work;

typedef struct After {
    int count, nodes[MAX_AFTER];
} After;

typedef struct Node {
    Work work;
    After after;
} Node;

typedef struct Graph {
    Node *nodes;
    int count, users;                           // users: the graph itself, and its executable graphs
    pthread_t owner;
    cudaStream_t origin, forks[MAX_FORKS];
    int fork_count;
    bool ended;
    int *held[MAX_HELD], held_count;
} Graph;

// In a stream's queue: work, a graph, or a wait until the stream `other` has done `until` ops.
typedef struct Op {
    struct Op *next;
    Work work;
    Graph *graph;
    cudaStream_t other;
    uint64_t until;
    int64_t asked;                              // when it was queued (ns)
} Op;

struct CUstream_st {
    cudaStream_t next;
    int device, number;
    Op *first, **end;
    uint64_t asked, done;                       // number of ops
    bool destroyed;
    Graph *graph;                               // under capture, or NULL
    After after;                                // in the capture: the stream's last nodes
};

struct CUevent_st {
    bool recorded;
    cudaStream_t stream;
    uint64_t until;                             // the event comes after so many ops of the stream
    Graph *graph;                               // or, in a capture, after these nodes
    After after;
};

static cudaStream_t streams;

void fake_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "fake: ");
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    _exit(99);
}

int fake_setting(const char *name, int without)
{
    const char *text = getenv(name);
    return text ? atoi(text) : without;
}

bool fake_fails(const char *how)
{
    const char *text = getenv("FAKE_FAILURE");
    return text && strcmp(text, how) == 0;
}

void fake_not_in_capture(const char *name)
{
    if (captures)
        fake_die("%s in a thread that captures", name);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *copy_of(const void *p, size_t bytes)
{
    void *copy = malloc(bytes + 1);
    return bytes ? memcpy(copy, p, bytes) : copy;
}

// --- devices -------------------------------------------------------------------------------------

static int gpus(void) { return fake_setting("FAKE_GPUS", 1); }

void fake_load(void) { usleep(1000 * (useconds_t)fake_setting("FAKE_LOAD", 0)); }

// The first process that uses CUDA owns it: children that it forks must not use it.
static void touch(const char *name)
{
    static pid_t user;
    if (user && user != getpid())
        fake_die("%s: CUDA was used before the fork", name);
    if (!user)
        fake_load();
    user = getpid();
}

static void need_device(const char *name)
{
    touch(name);
    if (current < 0)
        fake_die("%s: this thread has set no device", name);
}

static cudaError_t failed(cudaError_t status) { return last_error = status; }

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t status = (cudaError_t)fake_setting("FAKE_COUNT", cudaSuccess);
    touch("cudaGetDeviceCount");
    *count = status == cudaSuccess ? gpus() : 0;
    return status == cudaSuccess ? cudaSuccess : failed(status);
}

cudaError_t cudaSetDevice(int device)
{
    touch("cudaSetDevice");
    if (device < 0 || device >= gpus())
        return failed(cudaErrorInvalidDevice);
    if (fake_fails("exclusive"))
        return failed(cudaErrorDevicesUnavailable);
    if (fake_fails("context"))
        return failed(cudaErrorMemoryAllocation);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    need_device("cudaGetDevice");
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *about, int device)
{
    touch("cudaGetDeviceProperties");
    memset(about, 0, sizeof *about);
    snprintf(about->name, sizeof about->name, "Fake GPU");
    about->uuid.bytes[0] = (char)device;
    about->major = fake_setting("FAKE_MAJOR", 9);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    static bool enabled[MAX_GPUS][MAX_GPUS];
    need_device("cudaDeviceEnablePeerAccess");
    if (fake_fails("peers"))
        fake_die("cudaDeviceEnablePeerAccess: direct copies would be damaged");
    if (peer == current || enabled[current][peer])
        return failed(cudaErrorPeerAccessAlreadyEnabled);
    enabled[current][peer] = true;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = fake_setting("FAKE_DRIVER", CUDART_VERSION);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    *left = *all = (size_t)1 << 37;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t status = last_error;
    last_error = cudaSuccess;
    return status;
}

const char *cudaGetErrorName(cudaError_t status)
{
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "cudaError %d", (int)status);
    return text;
}

const char *cudaGetErrorString(cudaError_t status) { return cudaGetErrorName(status); }

// --- memory --------------------------------------------------------------------------------------

typedef enum Kind { PAGEABLE, DEVICE, PINNED } Kind;

static Block *blocks;

static Kind kind_of(const void *p, size_t bytes)
{
    const char *at = p;
    for (const Block *b = blocks; b; b = b->next) {
        if (at < b->p || at >= b->p + b->bytes)
            continue;
        if (at + bytes > b->p + b->bytes)
            fake_die("%zu bytes at %p: only %zu are there", bytes, p,
                     (size_t)(b->p + b->bytes - at));
        return (Kind)b->kind;
    }
    return PAGEABLE;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *about, const void *p)
{
    pthread_mutex_lock(&lock);
    Kind kind = kind_of(p, 0);
    pthread_mutex_unlock(&lock);
    about->type = kind == DEVICE   ? cudaMemoryTypeDevice
                  : kind == PINNED ? cudaMemoryTypeHost
                                   : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

char *fake_arena;
static char *arena_end;
Block **fake_pages;

static void *map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        fake_die("cannot reserve addresses for device memory");
    return p;
}

static char *arena_take(size_t bytes)
{
    if (!fake_arena) {
        mallopt(M_MMAP_THRESHOLD, 32 << 20);    // reuse freed memory, to save page faults
        mallopt(M_TRIM_THRESHOLD, 1 << 30);
        fake_arena = arena_end = map((size_t)FAKE_PAGE * FAKE_PAGES);
        fake_pages = map(FAKE_PAGES * sizeof *fake_pages);
    }
    char *p = arena_end;
    arena_end += (bytes / FAKE_PAGE + 2) * FAKE_PAGE;
    if (arena_end > fake_arena + (size_t)FAKE_PAGE * FAKE_PAGES)
        fake_die("no addresses are left for device memory");
    return p;
}

static void arena_mark(const Block *where, Block *block)
{
    for (size_t i = 0; i <= where->bytes / FAKE_PAGE; i++)
        fake_pages[(where->p - fake_arena) / FAKE_PAGE + (int64_t)i] = block;
}

static void check_ranges(const char *name, const Range *ranges, int count)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++)
        if (ranges[i].p && ranges[i].bytes && kind_of(ranges[i].p, ranges[i].bytes) != DEVICE)
            fake_die("%s: range %d, %zu bytes at %p, is not device memory", name, i,
                     ranges[i].bytes, ranges[i].p);
    pthread_mutex_unlock(&lock);
}

static cudaError_t allocate(void **p, size_t bytes, Kind kind, const char *name)
{
    fake_not_in_capture(name);
    need_device(name);
    if (fake_fails("memory") && bytes > 1 << 20)
        return failed(cudaErrorMemoryAllocation);
    Block *block = malloc(sizeof *block);
    pthread_mutex_lock(&lock);
    *p = kind == DEVICE ? arena_take(bytes) : malloc(bytes);
    memset(*p, 0xA5, bytes);
    *block = (Block){ blocks, *p, bytes, kind };
    blocks = block;
    if (kind == DEVICE)
        arena_mark(block, block);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static cudaError_t release(void *p, Kind kind, const char *name)
{
    fake_not_in_capture(name);
    pthread_mutex_lock(&lock);
    for (cudaStream_t s = streams; s; s = s->next)
        while (s->device == current && s->done < s->asked)
            pthread_cond_wait(&news, &lock);
    Block **link = &blocks;
    while (*link && (*link)->p != p)
        link = &(*link)->next;
    Block *block = *link;
    if (!block || block->kind != (int)kind)
        fake_die("%s(%p): not the address of an allocation of this kind", name, p);
    *link = block->next;
    if (kind == DEVICE) {
        arena_mark(block, NULL);
        madvise(block->p, block->bytes / FAKE_PAGE * FAKE_PAGE, MADV_DONTNEED);
    } else {
        memset(block->p, 0x5A, block->bytes);
        free(block->p);
    }
    pthread_mutex_unlock(&lock);
    free(block);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes) { return allocate(p, bytes, DEVICE, "cudaMalloc"); }
cudaError_t cudaFree(void *p) { return release(p, DEVICE, "cudaFree"); }
cudaError_t cudaFreeHost(void *p) { return release(p, PINNED, "cudaFreeHost"); }
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    return allocate(p, bytes, PINNED, "cudaHostAlloc");
}

// --- streams -------------------------------------------------------------------------------------

static void work_run(const Work *work)
{
    check_ranges(work->name, work->ranges, work->count);
    work->fn(work->arg);
}

static bool node_ready(const Node *node, const bool *done)
{
    for (int i = 0; i < node->after.count; i++)
        if (!done[node->after.nodes[i]])
            return false;
    return true;
}

static void graph_run(const Graph *graph)
{
    const char *order = getenv("FAKE_ORDER");
    bool last = order && strcmp(order, "last") == 0;
    bool *done = calloc((size_t)graph->count + 1, sizeof *done);
    for (int left = graph->count; left > 0; left--) {
        int next = -1;
        for (int i = 0; i < graph->count && (last || next < 0); i++)
            if (!done[i] && node_ready(&graph->nodes[i], done))
                next = i;
        work_run(&graph->nodes[next].work);
        done[next] = true;
    }
    free(done);
}

static void delay(const Op *op, unsigned *seed)
{
    int mean = fake_setting("FAKE_DELAY", 0);
    if (mean == 0)
        return;
    int64_t left = op->asked + rand_r(seed) % (2 * mean) * 1000LL - now_ns();
    if (left > 0)
        nanosleep(&(struct timespec){ left / 1000000000, left % 1000000000 }, NULL);
}

// Called by a stream's thread with the lock held, which it releases while it works.
static void op_run(Op *op, unsigned *seed)
{
    while (op->other && op->other->done < op->until)
        pthread_cond_wait(&news, &lock);
    pthread_mutex_unlock(&lock);
    delay(op, seed);
    static atomic_int ops;
    int number = atomic_fetch_add(&ops, 1) + 1;
    if (getenv("FAKE_PRINT_OPS"))
        fprintf(stderr, "op %d %s\n", number, op->graph ? "graph" : op->work.name ? op->work.name : "?");
    if (number == fake_setting("FAKE_SLOW_OP", 0))
        sleep((unsigned)fake_setting("FAKE_SLOW_S", 8));
    if (op->graph)
        graph_run(op->graph);
    if (op->work.fn)
        work_run(&op->work);
    pthread_mutex_lock(&lock);
}

static void *stream_run(void *arg)
{
    cudaStream_t stream = arg;
    unsigned seed = (unsigned)(fake_setting("FAKE_SEED", 0) * 1000 + stream->number);
    pthread_mutex_lock(&lock);
    while (stream->first || !stream->destroyed) {
        Op *op = stream->first;
        if (!op) {
            pthread_cond_wait(&news, &lock);
            continue;
        }
        op_run(op, &seed);
        stream->first = op->next;
        if (!stream->first)
            stream->end = &stream->first;
        stream->done++;
        pthread_cond_broadcast(&news);
        free(op->work.arg);
        free(op->work.ranges);
        free(op);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *made, unsigned flags)
{
    static int number;
    pthread_t thread;
    need_device("cudaStreamCreate");
    if (flags != cudaStreamNonBlocking)
        fake_die("a stream that waits for the legacy stream");
    cudaStream_t stream = calloc(1, sizeof *stream);
    stream->end = &stream->first;
    stream->device = current;
    pthread_mutex_lock(&lock);
    stream->number = number++;
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&lock);
    if (pthread_create(&thread, NULL, stream_run, stream) != 0)
        fake_die("cannot create a thread");
    pthread_detach(thread);
    *made = stream;
    return cudaSuccess;
}

static void check_stream(cudaStream_t stream, const char *name)
{
    need_device(name);
    if (!stream)
        fake_die("%s: in the legacy stream", name);
    if (stream->destroyed)
        fake_die("%s: the stream is destroyed", name);
    if (stream->device != current)
        fake_die("%s: a stream of device %d, but the thread uses device %d", name, stream->device,
                 current);
}

static void check_look(cudaStream_t stream, const char *name)
{
    fake_not_in_capture(name);
    if (stream->destroyed || stream->graph)
        fake_die("%s: the stream is %s", name, stream->graph ? "captured" : "destroyed");
}

void fake_need_stream(cudaStream_t stream, const char *name)
{
    if (stream && stream->destroyed)
        fake_die("%s: the stream of its last work is destroyed", name);
}

static void wait_until(cudaStream_t stream, uint64_t until)
{
    pthread_mutex_lock(&lock);
    while (stream->done < until)
        pthread_cond_wait(&news, &lock);
    pthread_mutex_unlock(&lock);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    check_look(stream, "cudaStreamSynchronize");
    wait_until(stream, stream->asked);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    check_look(stream, "cudaStreamQuery");
    pthread_mutex_lock(&lock);
    bool idle = stream->done == stream->asked;
    pthread_mutex_unlock(&lock);
    return idle ? cudaSuccess : failed(cudaErrorNotReady);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    check_look(stream, "cudaStreamDestroy");
    pthread_mutex_lock(&lock);
    stream->destroyed = true;
    pthread_cond_broadcast(&news);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

// --- work ----------------------------------------------------------------------------------------

static void enqueue(cudaStream_t stream, Op op)
{
    Op *copy = copy_of(&op, sizeof op);
    copy->asked = now_ns();
    pthread_mutex_lock(&lock);
    *stream->end = copy;
    stream->end = &copy->next;
    stream->asked++;
    pthread_cond_broadcast(&news);
    pthread_mutex_unlock(&lock);
}

static void note_down(cudaStream_t stream, Work work)
{
    Graph *graph = stream->graph;
    if (!pthread_equal(graph->owner, pthread_self()))
        fake_die("%s: in a stream that a different thread captures", work.name);
    graph->nodes = realloc(graph->nodes, ((size_t)graph->count + 1) * sizeof *graph->nodes);
    graph->nodes[graph->count] = (Node){ work, stream->after };
    stream->after = (After){ 1, { graph->count++ } };
}

void fake_do(cudaStream_t stream, const char *name, void (*fn)(void *arg), const void *arg,
             size_t bytes, const Range *ranges, int count)
{
    check_stream(stream, name);
    check_ranges(name, ranges, count);
    Work work = { name, fn, copy_of(arg, bytes), copy_of(ranges, (size_t)count * sizeof *ranges),
                  count };
    if (stream->graph)
        note_down(stream, work);
    else
        enqueue(stream, (Op){ .work = work });
}

typedef struct Copy {
    void *to;
    const void *from;           // NULL: `value` is written
    int value;
    size_t bytes;
} Copy;

static void do_copy(void *arg)
{
    const Copy *c = arg;
    if (c->from)
        memmove(c->to, c->from, c->bytes);
    else
        memset(c->to, c->value, c->bytes);
}

static void check_direction(enum cudaMemcpyKind direction, Kind to, Kind from)
{
    bool right = direction == cudaMemcpyHostToDevice   ? to == DEVICE && from != DEVICE
                 : direction == cudaMemcpyDeviceToHost ? to != DEVICE && from == DEVICE
                                                       : to == DEVICE && from == DEVICE;
    if (!right)
        fake_die("cudaMemcpyAsync: the pointers do not fit this kind (%d)", (int)direction);
}

// A copy to or from pageable memory may wait for the stream. The watchdog cannot see that wait, so
// the program must have waited before. Pageable memory is read late, as CUDA may do. Host memory
// gets garbage before it gets the data, so that a program that reads it without a wait is noticed.
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind direction,
                            cudaStream_t stream)
{
    const char *name = "cudaMemcpyAsync";
    check_stream(stream, name);
    if (bytes == 0)
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    Kind to_kind = kind_of(to, bytes), from_kind = kind_of(from, bytes);
    pthread_mutex_unlock(&lock);
    check_direction(direction, to_kind, from_kind);
    bool to_host = to_kind != DEVICE, pageable = to_kind == PAGEABLE || from_kind == PAGEABLE;
    if (stream->graph && pageable)
        fake_die("%s: pageable memory in a capture", name);
    pthread_mutex_lock(&lock);
    if (pageable && stream->done < stream->asked)
        fake_die("%s: pageable memory, while the stream has work: a wait that nothing shows", name);
    pthread_mutex_unlock(&lock);
    Copy copy = { to, from, 0, bytes };
    const Range ranges[] = { { to_host ? NULL : to, bytes }, { from_kind == DEVICE ? from : NULL, bytes } };
    if (to_host && !stream->graph)
        fake_do(stream, name, do_copy, &(Copy){ to, NULL, 0x5A, bytes }, sizeof copy, NULL, 0);
    fake_do(stream, name, do_copy, &copy, sizeof copy, ranges, 2);
    if (to_kind == PAGEABLE)
        wait_until(stream, stream->asked);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    Copy copy = { to, NULL, value, bytes };
    fake_do(stream, "cudaMemsetAsync", do_copy, &copy, sizeof copy, RANGES({ to, bytes }));
    return cudaSuccess;
}

typedef struct HostTask {
    cudaHostFn_t fn;
    void *arg;
} HostTask;

// Runs host calls one at a time, as CUDA's driver does in its single thread.
static void do_host_call(void *arg)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    HostTask *call = arg;
    pthread_mutex_lock(&one);
    call->fn(call->arg);
    pthread_mutex_unlock(&one);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    HostTask call = { fn, arg };
    fake_do(stream, "cudaLaunchHostFunc", do_host_call, &call, sizeof call, NULL, 0);
    return cudaSuccess;
}

// --- events --------------------------------------------------------------------------------------

static void come_after(After *after, const int *nodes, int count)
{
    for (int i = 0; i < count; i++) {
        bool known = false;
        for (int k = 0; k < after->count; k++)
            known = known || after->nodes[k] == nodes[i];
        if (!known && after->count == MAX_AFTER)
            fake_die("work that depends on more than %d nodes", MAX_AFTER);
        if (!known)
            after->nodes[after->count++] = nodes[i];
    }
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *made, unsigned flags)
{
    *made = calloc(1, sizeof **made);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    check_stream(stream, "cudaEventRecord");
    *event = (struct CUevent_st){ true, stream, stream->asked, stream->graph, stream->after };
    return cudaSuccess;
}

static void join_capture(cudaStream_t stream, const struct CUevent_st *event)
{
    Graph *graph = event->graph;
    if (graph->ended || (stream->graph && stream->graph != graph))
        fake_die("cudaStreamWaitEvent: the event was recorded in a different capture");
    if (!stream->graph) {
        if (graph->fork_count == MAX_FORKS)
            fake_die("a capture of more than %d streams", MAX_FORKS);
        graph->forks[graph->fork_count++] = stream;
        stream->graph = graph;
        stream->after = (After){ 0 };
    }
    come_after(&stream->after, event->after.nodes, event->after.count);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    check_stream(stream, "cudaStreamWaitEvent");
    if (!event->recorded)
        return cudaSuccess;
    if (event->graph)
        join_capture(stream, event);
    else if (stream->graph)
        fake_die("a captured stream waits for work that is not captured");
    else
        enqueue(stream, (Op){ .other = event->stream, .until = event->until });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    fake_not_in_capture("cudaEventQuery");
    pthread_mutex_lock(&lock);
    bool ready = !event->recorded || event->stream->done >= event->until;
    pthread_mutex_unlock(&lock);
    return ready ? cudaSuccess : failed(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    fake_not_in_capture("cudaEventSynchronize");
    if (event->graph)
        fake_die("cudaEventSynchronize: the event was recorded in a capture");
    if (event->recorded)
        wait_until(event->stream, event->until);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    fake_not_in_capture("cudaEventElapsedTime");
    *ms = 0;
    return begin->recorded && end->recorded ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}

void fake_order_before(cudaStream_t stream, const Order *order)
{
    if (stream->graph && stream->graph == order->graph)
        come_after(&stream->after, &order->node, 1);
    else if (!stream->graph && order->stream && order->stream != stream)
        enqueue(stream, (Op){ .other = order->stream, .until = order->until });
}

void fake_order_after(cudaStream_t stream, Order *order)
{
    if (stream->graph)
        *order = (Order){ order->stream, order->until, stream->graph, stream->after.nodes[0] };
    else
        *order = (Order){ .stream = stream, .until = stream->asked };
}

// --- graphs --------------------------------------------------------------------------------------

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    *status = stream->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    check_stream(stream, "cudaStreamBeginCapture");
    fake_not_in_capture("cudaStreamBeginCapture");
    if (stream->graph || mode != cudaStreamCaptureModeThreadLocal)
        fake_die("cudaStreamBeginCapture: the stream is already captured, or the mode is not thread-local");
    Graph *graph = calloc(1, sizeof *graph);
    graph->users = 1;
    graph->owner = pthread_self();
    graph->origin = stream;
    stream->graph = graph;
    stream->after = (After){ 0 };
    captures = true;
    return cudaSuccess;
}

// The end of the origin stream must depend on all work that was captured on any stream.
static void check_joined(const Graph *graph)
{
    bool *before = calloc((size_t)graph->count + 1, sizeof *before);
    const After *end = &graph->origin->after;
    for (int i = 0; i < end->count; i++)
        before[end->nodes[i]] = true;
    for (int i = graph->count - 1; i >= 0; i--)
        for (int k = 0; before[i] && k < graph->nodes[i].after.count; k++)
            before[graph->nodes[i].after.nodes[k]] = true;
    for (int i = 0; i < graph->count; i++)
        if (!before[i])
            fake_die("a capture ends, but nothing waits for its %s", graph->nodes[i].work.name);
    free(before);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *made)
{
    Graph *graph = stream->graph;
    if (!graph || graph->origin != stream || !captures)
        fake_die("cudaStreamEndCapture: this thread has not begun the capture");
    check_joined(graph);
    for (int i = 0; i < graph->fork_count; i++)
        graph->forks[i]->graph = NULL;
    stream->graph = NULL;
    graph->ended = true;
    captures = false;
    *made = (cudaGraph_t)graph;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph,
                                          unsigned long long flags)
{
    ((Graph *)graph)->users++;
    if (fake_setting("FAKE_NODES", 0))
        fprintf(stderr, "recorded a graph of %d nodes\n", ((Graph *)graph)->count);
    *made = (cudaGraphExec_t)graph;
    return cudaSuccess;
}

static void graph_let_go(Graph *graph)
{
    if (--graph->users == 0)
        for (int i = 0; i < graph->held_count; i++)
            --*graph->held[i];
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    graph_let_go((Graph *)graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    graph_let_go((Graph *)graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    check_stream(stream, "cudaGraphLaunch");
    fake_not_in_capture("cudaGraphLaunch");
    if (((Graph *)graph)->users == 0)
        fake_die("cudaGraphLaunch: the graph is destroyed");
    enqueue(stream, (Op){ .graph = (Graph *)graph });
    return cudaSuccess;
}

void fake_hold(cudaStream_t stream, int *users)
{
    Graph *graph = stream->graph;
    for (int i = 0; graph && i < graph->held_count; i++)
        if (graph->held[i] == users)
            return;
    if (!graph)
        return;
    if (graph->held_count == MAX_HELD)
        fake_die("a graph with more than %d communicators", MAX_HELD);
    graph->held[graph->held_count++] = users;
    ++*users;
}
