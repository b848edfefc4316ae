// runtime.c - the CUDA runtime of fake.h: devices, memory, streams and events, as far as the header of exercises/gpu
// declares them, and the replay of graphs. steps.c has the rest.
//
// One lock guards the queues and the allocations, and one condition variable signals the queues' changes.
// Streams and graphs are never freed.
#include "streams.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MAX_GPUS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static _Thread_local int current = -1;          // this thread's device; -1: it has set none
static _Thread_local bool in_host_call;
static cudaStream_t streams, defaults[MAX_GPUS];
static Block *blocks;
_Thread_local cudaError_t fake_last_error;
_Thread_local bool fake_captures;

static void print_line(const char *format, va_list args)
{
    char text[1000];
    vsnprintf(text, sizeof text, format, args);
    fprintf(stderr, "%s: %s\n", fake_name, text);
}

void fake_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line(format, args);
    _exit(99);
}

int fake_refuse(int error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line(format, args);
    va_end(args);
    if (fake_strict)
        _exit(99);
    return error;
}

int fake_setting(const char *name, int without)
{
    const char *text = getenv(name);
    return text ? atoi(text) : without;
}

int fake_status(const char *function)
{
    const char *text = getenv("FAKE_FAIL");
    size_t length = strlen(function);
    return text && strncmp(text, function, length) == 0 && text[length] == ' ' ? atoi(text + length) : 0;
}

void fake_not_in_capture(const char *name)
{
    if (fake_captures)
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

// The first process that uses CUDA owns it: children that it forks must not use it.
void fake_touch(const char *name)
{
    static pid_t user;
    if (user && user != getpid())
        fake_die("%s: CUDA was used before the fork", name);
    if (in_host_call)
        fake_die("%s: a host function (cudaLaunchHostFunc) must not call CUDA or NCCL", name);
    user = getpid();
    fake_beat();
}

static void need_device(const char *name)
{
    fake_touch(name);
    if (current < 0 && fake_strict)
        fake_die("%s: this thread has set no device", name);
    current = current < 0 ? 0 : current;
}

cudaError_t fake_failed(cudaError_t status) { return fake_last_error = status; }

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t status = (cudaError_t)fake_status("cudaGetDeviceCount");
    fake_touch("cudaGetDeviceCount");
    *count = status == cudaSuccess ? gpus() : 0;
    return status == cudaSuccess ? cudaSuccess : fake_failed(status);
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t status = (cudaError_t)fake_status("cudaSetDevice");
    fake_touch("cudaSetDevice");
    if (status)
        return fake_failed(status);
    if (device < 0 || device >= gpus())
        return fake_failed(fake_refuse(cudaErrorInvalidDevice, "cudaSetDevice(%d): this machine's GPUs are 0 to %d",
                                       device, gpus() - 1));
    if (!fake_strict && device != (current < 0 ? 0 : current) && (blocks || streams))
        return fake_refuse(cudaErrorInvalidDevice, "cudaSetDevice(%d): the memory or streams that this rank has "
                           "already made are on GPU %d. Call it before them", device, current < 0 ? 0 : current);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    need_device("cudaGetDevice");
    *device = current;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t status)
{
    static _Thread_local char text[32];
    switch (status) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotReady: return "device not ready";
    default: snprintf(text, sizeof text, "cudaError %d", (int)status); return text;
    }
}

// --- memory --------------------------------------------------------------------------------------

typedef enum Kind { PAGEABLE, DEVICE, PINNED, TOO_SHORT } Kind;

static Kind kind_of(const void *p, size_t bytes)
{
    const char *at = p;
    Kind kind = fake_in_arena(p) ? TOO_SHORT : PAGEABLE;
    pthread_mutex_lock(&lock);
    for (const Block *b = blocks; b; b = b->next)
        if (at >= b->p && at < b->p + b->bytes) {
            kind = at + bytes > b->p + b->bytes ? TOO_SHORT : (Kind)b->kind;
            break;
        }
    pthread_mutex_unlock(&lock);
    return kind;
}

bool fake_pageable(const void *p) { return kind_of(p, 0) == PAGEABLE; }

bool fake_memory(const void *p, size_t bytes)
{
    Kind kind = kind_of(p, bytes);
    return kind == DEVICE || (kind == PINNED && !fake_strict);
}

char *fake_arena;
ptrdiff_t fake_shift;
static char *arena_end;
Block **fake_pages;

static void *map(size_t bytes, int access)
{
    void *p = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        fake_die("cannot reserve addresses for device memory");
    return p;
}

// Kernels that run on the host need the memory where the program thinks it is. Without them, nothing is there.
static char *arena_take(size_t bytes)
{
    size_t all = (size_t)FAKE_PAGE * FAKE_PAGES;
    if (!fake_arena) {
        mallopt(M_MMAP_THRESHOLD, 32 << 20);    // reuse freed memory, to save page faults
        mallopt(M_TRIM_THRESHOLD, 1 << 30);
        fake_pages = map(FAKE_PAGES * sizeof *fake_pages, PROT_READ | PROT_WRITE);
        fake_arena = arena_end = map(all, PROT_NONE);
        fake_shift = fake_strict ? 0 : (char *)map(all, PROT_NONE) - fake_arena;
    }
    char *p = arena_end;
    arena_end += (bytes / FAKE_PAGE + 2) * FAKE_PAGE;
    if (arena_end > fake_arena + all)
        fake_die("no addresses are left for device memory");
    if (mprotect(p + fake_shift, bytes + 1, PROT_READ | PROT_WRITE) != 0)
        fake_die("cannot make device memory");
    return p;
}

static void arena_mark(const Block *where, Block *block)
{
    for (size_t i = 0; i <= where->bytes / FAKE_PAGE; i++)
        fake_pages[(where->p - fake_arena) / FAKE_PAGE + (int64_t)i] = block;
}

static void check_ranges(const char *name, const Range *ranges, int count)
{
    for (int i = 0; i < count; i++)
        if (ranges[i].p && ranges[i].bytes && !fake_memory(ranges[i].p, ranges[i].bytes))
            fake_die("%s: range %d, %zu bytes at %p, is not device memory", name, i, ranges[i].bytes, ranges[i].p);
}

// Fills the memory with NaN (integers: -1), so that a program that does not set it is seldom right by luck.
static cudaError_t allocate(void **p, size_t bytes, Kind kind, const char *name)
{
    cudaError_t status = (cudaError_t)fake_status(name);
    fake_not_in_capture(name);
    need_device(name);
    if (status)
        return fake_failed(status);
    Block *block = malloc(sizeof *block);
    pthread_mutex_lock(&lock);
    *p = kind == DEVICE ? arena_take(bytes) : malloc(bytes + 1);
    memset(fake_at(*p), 0xFF, bytes);
    *block = (Block){ blocks, *p, bytes, kind };
    blocks = block;
    if (kind == DEVICE)
        arena_mark(block, block);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

static void wait_for_all(void)
{
    pthread_mutex_lock(&lock);
    for (cudaStream_t s = streams; s; s = s->next)
        while (s->device == current && s->done < s->asked)
            pthread_cond_wait(&news, &lock);
    pthread_mutex_unlock(&lock);
}

static cudaError_t release(void *p, Kind kind, const char *name)
{
    fake_not_in_capture(name);
    need_device(name);
    wait_for_all();
    if (!p)
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    Block **link = &blocks;
    while (*link && ((*link)->p != p || (*link)->kind != (int)kind))
        link = &(*link)->next;
    Block *block = *link;
    if (block)
        *link = block->next;
    pthread_mutex_unlock(&lock);
    if (!block)
        return fake_refuse(cudaErrorInvalidValue, "%s: not allocated, or already freed", name);
    if (kind == DEVICE) {
        arena_mark(block, NULL);
        madvise((char *)p + fake_shift, block->bytes + 1, MADV_DONTNEED);
        mprotect((char *)p + fake_shift, block->bytes + 1, PROT_NONE);
    } else {
        memset(p, 0x5A, block->bytes);
        free(p);
    }
    free(block);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes) { return allocate(p, bytes, DEVICE, "cudaMalloc"); }
cudaError_t cudaMallocHost(void **p, size_t bytes) { return allocate(p, bytes, PINNED, "cudaMallocHost"); }
cudaError_t cudaFree(void *p) { return release(p, DEVICE, "cudaFree"); }
cudaError_t cudaFreeHost(void *p) { return release(p, PINNED, "cudaFreeHost"); }

// --- the threads of streams ----------------------------------------------------------------------

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
    if (getenv("FAKE_PRINT"))
        fprintf(stderr, "op: %s\n", op->graph ? "graph" : op->work.name ? op->work.name : "?");
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
    fake_thread(stream == defaults[stream->device] ? "default stream" : "stream");
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

// --- streams -------------------------------------------------------------------------------------

static cudaStream_t new_stream(bool blocking, cudaStream_t *made)
{
    static int number;
    pthread_t thread;
    cudaStream_t stream = calloc(1, sizeof *stream);
    stream->end = &stream->first;
    stream->device = current;
    stream->blocking = blocking;
    pthread_mutex_lock(&lock);
    stream->number = number++;
    stream->next = streams;
    streams = stream;
    *made = stream;
    pthread_mutex_unlock(&lock);
    if (pthread_create(&thread, NULL, stream_run, stream) != 0)
        fake_die("cannot create a thread");
    pthread_detach(thread);
    return stream;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *made, unsigned flags)
{
    need_device("cudaStreamCreate");
    if (flags != cudaStreamNonBlocking && fake_strict)
        fake_die("a stream that waits for the legacy stream");
    new_stream(flags != cudaStreamNonBlocking, made);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *made) { return cudaStreamCreateWithFlags(made, cudaStreamDefault); }

// Also without a thread that has a device: a query is no progress, and any thread may ask.
static cudaStream_t find_stream(cudaStream_t stream, const char *name)
{
    if (!stream && fake_strict)
        fake_die("%s: in the legacy stream", name);
    int device = current < 0 ? 0 : current;
    stream = stream ? stream : defaults[device] ? defaults[device] : new_stream(true, &defaults[device]);
    pthread_mutex_lock(&lock);
    cudaStream_t known = streams;
    while (known && known != stream)
        known = known->next;
    pthread_mutex_unlock(&lock);
    if (!known || stream->destroyed)
        fake_die("%s: the stream was not created, or was destroyed", name);
    return stream;
}

static void wait_until(cudaStream_t stream, uint64_t until)
{
    pthread_mutex_lock(&lock);
    while (stream->done < until)
        pthread_cond_wait(&news, &lock);
    pthread_mutex_unlock(&lock);
}

static bool idle(cudaStream_t stream)
{
    pthread_mutex_lock(&lock);
    bool is = stream->done == stream->asked;
    pthread_mutex_unlock(&lock);
    return is;
}

void fake_enqueue(cudaStream_t stream, Op op)
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

static void wait_for(cudaStream_t stream, cudaStream_t other)
{
    if (other != stream && !idle(other))
        fake_enqueue(stream, (Op){ .other = other, .until = other->asked });
}

// The default stream and the blocking streams of a device wait for each other.
cudaStream_t fake_enter(cudaStream_t stream, const char *name)
{
    need_device(name);
    stream = find_stream(stream, name);
    if (stream->device != current)
        fake_die("%s: a stream of GPU %d, but the thread uses GPU %d", name, stream->device, current);
    cudaStream_t first = defaults[current];
    for (cudaStream_t other = streams; stream == first && other; other = other->next)
        if (other->blocking && other->device == current)
            wait_for(stream, other);
    if (stream->blocking && first)
        wait_for(stream, first);
    return stream;
}

static void check_look(cudaStream_t stream, const char *name)
{
    fake_not_in_capture(name);
    if (stream->graph)
        fake_die("%s: the stream is captured", name);
}

void fake_need_stream(cudaStream_t stream, const char *name)
{
    if (fake_strict && stream && stream->destroyed)
        fake_die("%s: the stream of its last work is destroyed", name);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    stream = find_stream(stream, "cudaStreamSynchronize");
    if (stream->blocking)
        stream = fake_enter(stream, "cudaStreamSynchronize");
    check_look(stream, "cudaStreamSynchronize");
    fake_touch("cudaStreamSynchronize");
    wait_until(stream, stream->asked);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    stream = find_stream(stream, "cudaStreamQuery");
    check_look(stream, "cudaStreamQuery");
    return idle(stream) ? cudaSuccess : fake_failed(cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
    fake_not_in_capture("cudaDeviceSynchronize");
    need_device("cudaDeviceSynchronize");
    wait_for_all();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    stream = find_stream(stream, "cudaStreamDestroy");
    check_look(stream, "cudaStreamDestroy");
    pthread_mutex_lock(&lock);
    stream->destroyed = true;
    pthread_cond_broadcast(&news);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

// --- work ----------------------------------------------------------------------------------------

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
    stream = fake_enter(stream, name);
    check_ranges(name, ranges, count);
    Work work = { name, fn, copy_of(arg, bytes), copy_of(ranges, (size_t)count * sizeof *ranges),
                  count };
    if (stream->graph)
        note_down(stream, work);
    else
        fake_enqueue(stream, (Op){ .work = work });
}

typedef struct Copy {
    const char *name;
    void *to;
    const void *from;           // NULL: `value` is written
    int value;
    size_t bytes;
} Copy;

static void do_copy(void *arg)
{
    const Copy *c = arg;
    fake_begin(c->name, NULL);
    if (c->from)
        memmove(fake_at(c->to), fake_at(c->from), c->bytes);
    else
        memset(fake_at(c->to), c->value, c->bytes);
    fake_end();
}

// A copy to or from pageable memory may wait for the stream. The watchdog cannot see that wait, so a step must have
// waited before. The step's pageable memory is read late, as CUDA may do; an exercise may count on CUDA's staging
// buffer. Host memory gets garbage before it gets the data, so that a program that reads it without a wait is noticed.
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    static const char *const names[] = { "copy", "copy to device", "copy to host", "copy on device" };
    bool to_device = fake_in_arena(to), from_device = fake_in_arena(from);
    unsigned actual = 2u * from_device + to_device;
    Kind to_kind = kind_of(to, bytes), from_kind = kind_of(from, bytes);
    bool pageable = to_kind == PAGEABLE || from_kind == PAGEABLE;
    stream = fake_enter(stream, "cudaMemcpyAsync");
    if (bytes == 0)
        return cudaSuccess;
    if (kind != cudaMemcpyDefault && (unsigned)kind != actual)
        return fake_refuse(cudaErrorInvalidValue, "cudaMemcpy: its kind is %d, but the addresses (to, from) are those "
                           "of a %s", (int)kind, names[actual]);
    if (to_kind == TOO_SHORT || from_kind == TOO_SHORT)
        return fake_refuse(cudaErrorInvalidValue, "cudaMemcpy: there are fewer than %zu bytes of %s memory to copy %s",
                           bytes, (to_kind == TOO_SHORT ? to_device : from_device) ? "device" : "pinned",
                           to_kind == TOO_SHORT ? "to" : "from");
    if (stream->graph && pageable)
        fake_die("cudaMemcpyAsync: pageable memory in a capture");
    if (fake_strict && pageable && !idle(stream))
        fake_die("cudaMemcpyAsync: pageable memory, while the stream has work: a wait that nothing shows");
    Copy copy = { names[actual], to, from, 0, bytes }, garbage = { NULL, to, NULL, 0x5A, bytes };
    const Range ranges[] = { { to_device ? to : NULL, bytes }, { from_device ? from : NULL, bytes } };
    if (!to_device && from_device && !stream->graph)
        fake_do(stream, "garbage", do_copy, &garbage, sizeof garbage, NULL, 0);
    fake_do(stream, copy.name, do_copy, &copy, sizeof copy, ranges, 2);
    if (to_kind == PAGEABLE || (pageable && !fake_strict))
        wait_until(stream, stream->asked);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    if (!fake_in_arena(to) || !fake_in_arena(from))
        cudaStreamSynchronize(NULL);
    return error;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    Copy copy = { "fill", to, NULL, value, bytes };
    if (bytes && !fake_memory(to, bytes))
        return fake_refuse(cudaErrorInvalidValue, "cudaMemset: this is not device memory of %zu bytes", bytes);
    fake_do(stream, copy.name, do_copy, &copy, sizeof copy, RANGES({ to, bytes }));
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, NULL); }

typedef struct HostTask {
    cudaHostFn_t fn;
    void *arg;
} HostTask;

// A step's host calls run one at a time, as CUDA's driver does in its single thread.
static void do_host_call(void *arg)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    HostTask *call = arg;
    pthread_mutex_lock(&one);
    in_host_call = true;
    fake_begin("host function", NULL);
    call->fn(call->arg);
    fake_end();
    in_host_call = false;
    pthread_mutex_unlock(&one);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    HostTask call = { fn, arg };
    fake_do(stream, "host function", do_host_call, &call, sizeof call, NULL, 0);
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

cudaError_t cudaEventCreate(cudaEvent_t *made) { return cudaEventCreateWithFlags(made, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    stream = fake_enter(stream, "cudaEventRecord");
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
    stream = fake_enter(stream, "cudaStreamWaitEvent");
    if (!event->recorded)
        return cudaSuccess;
    if (event->graph)
        join_capture(stream, event);
    else if (stream->graph)
        fake_die("a captured stream waits for work that is not captured");
    else
        fake_enqueue(stream, (Op){ .other = event->stream, .until = event->until });
    return cudaSuccess;
}

bool fake_event_done(cudaEvent_t event)
{
    pthread_mutex_lock(&lock);
    bool done = !event->recorded || event->stream->done >= event->until;
    pthread_mutex_unlock(&lock);
    return done;
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

// --- the order of a communicator's calls ---------------------------------------------------------

void fake_order_before(cudaStream_t stream, const Order *order)
{
    if (stream->graph && stream->graph == order->graph)
        come_after(&stream->after, &order->node, 1);
    else if (!stream->graph && order->stream && order->stream != stream)
        fake_enqueue(stream, (Op){ .other = order->stream, .until = order->until });
}

void fake_order_after(cudaStream_t stream, Order *order)
{
    if (stream->graph)
        *order = (Order){ order->stream, order->until, stream->graph, stream->after.nodes[0] };
    else
        *order = (Order){ .stream = stream, .until = stream->asked };
}

void fake_order_wait(const Order *order)
{
    if (order->stream)
        wait_until(order->stream, order->until);
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
