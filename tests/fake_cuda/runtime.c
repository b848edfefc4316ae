// runtime.c - the CUDA runtime of fake.h: devices, memory, streams and events, as far as the header of exercises/gpu
// declares them, and the replay of graphs. steps.c has the rest.
//
// One lock guards the queues and the allocations, and one condition variable signals the queues' changes.
// Streams and graphs are never freed.
#include "fake.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MAX_GPUS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t news = PTHREAD_COND_INITIALIZER;
static _Thread_local int current;               // this thread's device
static _Thread_local bool in_host_call;
static cudaStream_t streams, defaults[MAX_GPUS];
static Block *blocks;
__thread cudaError_t fake_last_error;
__thread bool fake_captures;

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
    return error;
}

int fake_setting(const char *name, int without)
{
    const char *text = getenv(name);
    return text ? atoi(text) : without;
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
    return memcpy(malloc(bytes), p, bytes);
}

// --- devices -------------------------------------------------------------------------------------

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

cudaError_t fake_failed(cudaError_t status) { return fake_last_error = status; }

cudaError_t cudaGetDeviceCount(int *count)
{
    fake_touch("cudaGetDeviceCount");
    *count = fake_setting("FAKE_GPUS", 1);
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    int gpus;
    cudaGetDeviceCount(&gpus);
    if (device < 0 || device >= gpus)
        return fake_refuse(cudaErrorInvalidDevice, "cudaSetDevice(%d): this machine's GPUs are 0 to %d", device,
                           gpus - 1);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t status)
{
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "cudaError %d", (int)status);
    return text;
}

// --- memory --------------------------------------------------------------------------------------

// The link to the block that contains p, or to NULL. The caller holds the lock.
static Block **find(const void *p)
{
    Block **link = &blocks;
    while (*link && ((const char *)p < (*link)->p || (const char *)p > (*link)->p + (*link)->bytes))
        link = &(*link)->next;
    return link;
}

bool fake_pageable(const void *p)
{
    pthread_mutex_lock(&lock);
    bool is = !fake_in_arena(p) && !*find(p);
    pthread_mutex_unlock(&lock);
    return is;
}

bool fake_memory(const void *p, size_t bytes)
{
    pthread_mutex_lock(&lock);
    const Block *block = *find(p);
    bool is = block && (const char *)p + bytes <= block->p + block->bytes;
    pthread_mutex_unlock(&lock);
    return is;
}

bool fake_elsewhere(const void *p)
{
    pthread_mutex_lock(&lock);
    const Block *block = *find(p);
    bool elsewhere = block && !block->pinned && block->device != current;
    pthread_mutex_unlock(&lock);
    return elsewhere;
}

void fake_need(const void *p, size_t bytes, const char *name)
{
    if (bytes > 0 && !fake_memory(p, bytes))
        fake_die("%s: %zu bytes at %p are not device memory", name, bytes, p);
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

// The steps' kernels run on the host, so the memory must be at the program's addresses. For the exercises it is not: a
// program that uses such an address on the host must fail.
static char *arena_take(size_t bytes)
{
    size_t all = (size_t)FAKE_PAGE * FAKE_PAGES;
    if (!fake_arena) {
        mallopt(M_MMAP_THRESHOLD, 32 << 20);    // reuse freed memory, to save page faults
        mallopt(M_TRIM_THRESHOLD, 1 << 30);
        fake_pages = map(FAKE_PAGES * sizeof *fake_pages, PROT_READ | PROT_WRITE);
        fake_arena = arena_end = map(all, PROT_NONE);
        fake_shift = fake_step ? 0 : (char *)map(all, PROT_NONE) - fake_arena;
    }
    char *p = arena_end;
    arena_end += (bytes / FAKE_PAGE + 2) * FAKE_PAGE;
    if (arena_end > fake_arena + all || mprotect(p + fake_shift, bytes + 1, PROT_READ | PROT_WRITE) != 0)
        fake_die("cannot make device memory");
    return p;
}

static void arena_mark(const Block *where, Block *block)
{
    for (size_t i = 0; i <= where->bytes / FAKE_PAGE; i++)
        fake_pages[(where->p - fake_arena) / FAKE_PAGE + (int64_t)i] = block;
}

// Fills the memory with NaN (integers: -1), so that a program that does not set it is seldom right by luck.
static cudaError_t allocate(void **p, size_t bytes, bool pinned, const char *name)
{
    fake_not_in_capture(name);
    fake_touch(name);
    Block *block = malloc(sizeof *block);
    pthread_mutex_lock(&lock);
    *p = pinned ? malloc(bytes + 1) : arena_take(bytes);
    memset(fake_at(*p), 0xFF, bytes);
    *block = (Block){ blocks, *p, bytes, pinned, current };
    blocks = block;
    if (!pinned)
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

static cudaError_t release(void *p, bool pinned, const char *name)
{
    fake_not_in_capture(name);
    fake_touch(name);
    wait_for_all();
    if (!p)
        return cudaSuccess;
    pthread_mutex_lock(&lock);
    Block **link = find(p), *block = *link;
    bool known = block && block->p == p && block->pinned == pinned;
    if (known)
        *link = block->next;
    pthread_mutex_unlock(&lock);
    if (!known)
        return fake_refuse(cudaErrorInvalidValue, "%s: not allocated, or already freed", name);
    if (pinned) {
        memset(p, 0x5A, block->bytes);
        free(p);
    } else {
        arena_mark(block, NULL);
        madvise((char *)p + fake_shift, block->bytes + 1, MADV_DONTNEED);
        mprotect((char *)p + fake_shift, block->bytes + 1, PROT_NONE);
    }
    free(block);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes) { return allocate(p, bytes, false, "cudaMalloc"); }
cudaError_t cudaMallocHost(void **p, size_t bytes) { return allocate(p, bytes, true, "cudaMallocHost"); }
cudaError_t cudaFree(void *p) { return release(p, false, "cudaFree"); }
cudaError_t cudaFreeHost(void *p) { return release(p, true, "cudaFreeHost"); }

// --- the threads of streams ----------------------------------------------------------------------

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
        graph->nodes[next].work.fn(graph->nodes[next].work.arg);
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

// Called by a stream's thread with the lock held. Releases the lock while the op works.
static void op_run(Op *op, unsigned *seed)
{
    while (op->other && op->other->done < op->until)
        pthread_cond_wait(&news, &lock);
    pthread_mutex_unlock(&lock);
    delay(op, seed);
    if (op->graph)
        graph_run(op->graph);
    if (op->work.fn)
        op->work.fn(op->work.arg);
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
    fake_touch("cudaStreamCreate");
    new_stream(flags != cudaStreamNonBlocking, made);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *made) { return cudaStreamCreateWithFlags(made, cudaStreamDefault); }

static cudaStream_t find_stream(cudaStream_t stream, const char *name)
{
    stream = stream ? stream : defaults[current] ? defaults[current] : new_stream(true, &defaults[current]);
    if (stream->destroyed)
        fake_die("%s: the stream is destroyed", name);
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
    fake_touch(name);
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

// A query does not count as progress, and any thread may make one.
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    stream = find_stream(stream, "cudaStreamQuery");
    check_look(stream, "cudaStreamQuery");
    return idle(stream) ? cudaSuccess : fake_failed(cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
    fake_not_in_capture("cudaDeviceSynchronize");
    fake_touch("cudaDeviceSynchronize");
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

void fake_do(cudaStream_t stream, const char *name, void (*fn)(void *arg), const void *arg, size_t bytes)
{
    stream = fake_enter(stream, name);
    Work work = { name, fn, copy_of(arg, bytes) };
    if (stream->graph)
        note_down(stream, work);
    else
        fake_enqueue(stream, (Op){ .work = work });
}

typedef struct Copy {
    const char *name;           // NULL: it writes garbage
    void *to;
    const void *from;           // NULL: `value` is written
    int value;
    size_t bytes;
} Copy;

static void do_copy(void *arg)
{
    const Copy *c = arg;
    if (c->name)
        fake_begin(c->name);
    if (fake_in_arena(c->to))
        fake_need(c->to, c->bytes, "a copy or fill");
    if (fake_in_arena(c->from))
        fake_need(c->from, c->bytes, "a copy");
    if (c->from)
        memmove(fake_at(c->to), fake_at(c->from), c->bytes);
    else
        memset(fake_at(c->to), c->value, c->bytes);
    if (c->name)
        fake_end();
}

// A copy to or from pageable memory may wait for the stream. The watchdog cannot see that wait, so a step must have
// waited before. Host memory gets garbage before it gets the data, so that a program that reads it without a wait is
// noticed.
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    static const char *const names[] = { "copy", "copy to device", "copy to host", "copy on device" };
    bool to_device = fake_in_arena(to), from_device = fake_in_arena(from);
    unsigned actual = 2u * from_device + to_device;
    bool to_pageable = fake_pageable(to), from_pageable = fake_pageable(from);
    bool pageable = to_pageable || from_pageable;
    stream = fake_enter(stream, "cudaMemcpyAsync");
    if (bytes == 0)
        return cudaSuccess;
    if (kind != cudaMemcpyDefault && (unsigned)kind != actual)
        return fake_refuse(cudaErrorInvalidValue, "cudaMemcpy: its kind is %d, but the addresses (to, from) are those "
                           "of a %s", (int)kind, names[actual]);
    bool short_to = !to_pageable && !fake_memory(to, bytes), short_from = !from_pageable && !fake_memory(from, bytes);
    if (short_to || short_from)
        return fake_refuse(cudaErrorInvalidValue, "cudaMemcpy: there are fewer than %zu bytes to copy %s", bytes,
                           short_to ? "to" : "from");
    if (stream->graph && pageable)
        fake_die("cudaMemcpyAsync: pageable memory in a capture");
    if (fake_step && pageable && !idle(stream))
        fake_die("cudaMemcpyAsync: pageable memory, while the stream has work: a wait that nothing shows");
    Copy copy = { names[actual], to, from, 0, bytes }, garbage = { NULL, to, NULL, 0x5A, bytes };
    if (!to_device && from_device && !stream->graph)
        fake_do(stream, "garbage", do_copy, &garbage, sizeof garbage);
    fake_do(stream, copy.name, do_copy, &copy, sizeof copy);
    if (pageable)
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
    fake_do(stream, copy.name, do_copy, &copy, sizeof copy);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, NULL); }

typedef struct HostTask {
    cudaHostFn_t fn;
    void *arg;
} HostTask;

// Host functions run one at a time, as CUDA's driver runs them in its single thread.
static void do_host_call(void *arg)
{
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    HostTask *call = arg;
    pthread_mutex_lock(&one);
    in_host_call = true;
    fake_begin("host function");
    call->fn(call->arg);
    fake_end();
    in_host_call = false;
    pthread_mutex_unlock(&one);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *arg)
{
    HostTask call = { fn, arg };
    fake_do(stream, "host function", do_host_call, &call, sizeof call);
    return cudaSuccess;
}

// --- events --------------------------------------------------------------------------------------

static void come_after(After *after, const After *other)
{
    for (int i = 0; i < other->count; i++) {
        bool known = false;
        for (int k = 0; k < after->count; k++)
            known = known || after->nodes[k] == other->nodes[i];
        if (!known && after->count == MAX_AFTER)
            fake_die("work that depends on more than %d nodes", MAX_AFTER);
        if (!known)
            after->nodes[after->count++] = other->nodes[i];
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
    come_after(&stream->after, &event->after);
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
