// simt.cc - runs kernels on the host, for fake.h: block after block, with a fiber for each thread that has to wait.
// Threads run from one barrier or shuffle to the next, in rising or falling order (FAKE_ORDER), so a thread that misses
// a wait reads values that are not written yet. A kernel ends the program if
//
//   - it accesses memory that is not on the device, not allocated, or beyond the end of an allocation
//   - it accesses 2 to 16 bytes at an address that is not a multiple of their number
//   - two threads access the same shared memory without a barrier between them, and one of them writes
//   - threads of a block deadlock: some are at a barrier, some at a shuffle, or lanes of a warp are missing
//
// Kernels are compiled with -fsanitize=kernel-address: before each access they call __asan_load4_noabort or the like.
#include "simt.h"

extern "C" {
#include "fake.h"
}

#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 gridDim, blockDim;

namespace {

enum { WARP = 32, MAX_THREADS = 1024, STACK = 64 << 10, JOB = 4096 };
enum State { ABSENT, READY, AT_BARRIER, AT_SHUFFLE, DONE };

struct Thread {
    State state;
    int fiber;
    int shuffles;               // so far
    alignas(16) char said[2][16];   // the values that it has shown in this shuffle and the previous one
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;   // one kernel runs at a time, and owns the variables below
thread_local bool in_kernel;        // false: ignore accesses, since launching functions are also instrumented
void (*kernel_thread)(const void *job);
alignas(16) char kernel_job[JOB];
int threads, begun;
bool downwards;
Thread table[MAX_THREADS];
Thread *self;
jmp_buf scheduler;
jmp_buf fibers[MAX_THREADS];    // where each stopped
int made;                       // fibers so far
std::vector<int> idle;
char *stacks;                   // (MAX_THREADS, STACK)
unsigned epoch;                 // number of barriers and blocks so far

[[noreturn]] void die(const char *what)
{
    fake_die("a kernel: block (%u, %u), thread %u: %s", blockIdx.x, blockIdx.y, threadIdx.x, what);
}

void become(int thread)
{
    self = &table[thread];
    threadIdx.x = (unsigned)thread;
}

// --- fibers --------------------------------------------------------------------------------------

int next_thread()
{
    int i = begun++;
    return downwards ? threads - 1 - i : i;
}

// Runs the block's threads that have not begun, one after the other: most kernels never wait and need only one fiber.
void fiber_main(int fiber)
{
    for (;;) {
        while (begun < threads) {
            int thread = next_thread();
            become(thread);
            *self = Thread{};
            self->state = READY;
            self->fiber = fiber;
            kernel_thread(kernel_job);
            self->state = DONE;
        }
        idle.push_back(fiber);
        if (_setjmp(fibers[fiber]) == 0)
            _longjmp(scheduler, 1);
    }
}

void fiber_start()
{
    if (!idle.empty()) {
        int fiber = idle.back();
        idle.pop_back();
        if (_setjmp(scheduler) == 0)
            _longjmp(fibers[fiber], 1);
        return;
    }
    static ucontext_t here;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks + (size_t)made * STACK;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, reinterpret_cast<void (*)()>(fiber_main), 1, made++);
    if (_setjmp(scheduler) == 0)
        swapcontext(&here, &context);
}

void wait_at(State state)
{
    Thread *me = self;
    me->state = state;
    if (_setjmp(fibers[me->fiber]) == 0)
        _longjmp(scheduler, 1);
    become((int)(me - table));
}

void resume(Thread *thread)
{
    thread->state = READY;
    if (_setjmp(scheduler) == 0)
        _longjmp(fibers[thread->fiber], 1);
}

// --- the scheduler -------------------------------------------------------------------------------

int count_at(State state, int begin, int end)
{
    int n = 0;
    for (int i = begin; i < end; i++)
        n += table[i].state == state;
    return n;
}

int warp_to_release()
{
    for (int warp = 0; warp < threads; warp += WARP) {
        int end = warp + WARP < threads ? warp + WARP : threads;
        int here = count_at(AT_SHUFFLE, warp, end);
        if (here == WARP)
            return warp;
        if (here > 0 && here + count_at(DONE, warp, end) == end - warp) {
            become(warp);
            die("lanes of this warp have ended, and the others shuffle with them");
        }
    }
    return -1;
}

void release(int begin, int end)
{
    for (int k = begin; k < end; k++) {
        int i = downwards ? end - 1 - (k - begin) : k;
        if (table[i].state == AT_BARRIER || table[i].state == AT_SHUFFLE)
            resume(&table[i]);
    }
}

void run_block()
{
    begun = 0;
    epoch++;
    for (int i = 0; i < threads; i++)
        table[i].state = ABSENT;
    while (begun < threads)
        fiber_start();
    for (;;) {
        int warp = warp_to_release();
        if (warp >= 0) {
            release(warp, warp + WARP);
            continue;
        }
        int done = count_at(DONE, 0, threads), waiting = count_at(AT_BARRIER, 0, threads);
        if (done == threads)
            return;
        if (done + waiting < threads)
            die("some threads of the block are at a barrier, and others at a shuffle");
        epoch++;
        release(0, threads);
    }
}

struct Queued {
    dim3 grid;
    unsigned threads;
    void (*thread)(const void *job);
    size_t bytes;
    alignas(16) char job[JOB];
};

void run(void *arg)
{
    const Queued *q = static_cast<const Queued *>(arg);
    const char *order = getenv("FAKE_ORDER");
    pthread_mutex_lock(&lock);
    if (!stacks)
        stacks = static_cast<char *>(malloc((size_t)MAX_THREADS * STACK));
    kernel_thread = q->thread;
    memcpy(kernel_job, q->job, q->bytes);
    threads = (int)q->threads;
    downwards = order && strcmp(order, "last") == 0;
    gridDim = q->grid;
    blockDim = dim3(q->threads);
    in_kernel = true;
    for (unsigned y = 0; y < gridDim.y; y++)
        for (unsigned x = 0; x < gridDim.x; x++) {
            blockIdx = uint3{ x, y, 0 };
            run_block();
        }
    in_kernel = false;
    pthread_mutex_unlock(&lock);
}

} // namespace

void simt_barrier() { wait_at(AT_BARRIER); }

void simt_shuffle(const void *mine, void *theirs, size_t bytes, int other)
{
    int slot = self->shuffles++ % 2, warp = (int)threadIdx.x / WARP * WARP;
    if (bytes > sizeof self->said[0])
        die("a shuffle of more than 16 bytes");
    memcpy(self->said[slot], mine, bytes);
    wait_at(AT_SHUFFLE);
    memcpy(theirs, table[warp + other].said[slot], bytes);
}

void simt_queue(dim3 grid, unsigned threads, cudaStream_t stream, void (*thread)(const void *job), const void *job,
                size_t bytes)
{
    Queued q = { grid, threads, thread, bytes, {} };
    if (threads < 1 || threads > MAX_THREADS || grid.x < 1 || grid.y < 1 || grid.y > 65535 || bytes > JOB)
        fake_die("a kernel: a grid of (%u, %u), blocks of %u threads, %zu bytes of arguments", grid.x, grid.y, threads,
                 bytes);
    memcpy(q.job, job, bytes);
    fake_do(stream, "a kernel", run, &q, sizeof q);
}

// --- memory accesses of kernels ------------------------------------------------------------------

extern "C" char __executable_start, _end;

namespace {

// The threads that have accessed four bytes of shared memory since the last barrier.
struct Touch {
    unsigned epoch;
    int writer, reader;         // thread; -1: none; reader -2: several
};

void touch_shared(const char *p, bool write)
{
    static Touch *shadow = static_cast<Touch *>(
        calloc((size_t)(&_end - &__executable_start) / 4 + 1, sizeof *shadow));
    Touch *t = &shadow[(p - &__executable_start) / 4];
    int me = (int)threadIdx.x;
    if (t->epoch != epoch)
        *t = Touch{ epoch, -1, -1 };
    if (t->writer >= 0 && t->writer != me)
        die(write ? "writes to shared memory that another thread has written, with no barrier between"
                  : "reads shared memory that another thread has written, with no barrier between");
    if (write && t->reader != -1 && t->reader != me)
        die("writes to shared memory that another thread has read, with no barrier between");
    if (write)
        t->writer = me;
    else
        t->reader = t->reader == -1 || t->reader == me ? me : -2;
}

void touch_elsewhere(const char *at, size_t bytes, bool write)
{
    if (at >= stacks && at < stacks + (size_t)MAX_THREADS * STACK)
        return;
    if (at >= kernel_job && at < kernel_job + JOB)
        return;
    if (at >= &__executable_start && at < &_end) {
        for (size_t i = 0; i < bytes; i += 4)
            touch_shared(at + i, write);
        return;
    }
    fake_die("a kernel: block (%u, %u), thread %u %s %zu bytes at %p: not device memory", blockIdx.x, blockIdx.y,
             threadIdx.x, write ? "writes" : "reads", bytes, static_cast<const void *>(at));
}

inline void touch(const void *p, size_t bytes, bool write)
{
    if (in_kernel && !fake_on_device(p, bytes))
        touch_elsewhere(static_cast<const char *>(p), bytes, write);
}

inline void touch_whole(const void *p, size_t bytes, bool write)
{
    touch(p, bytes, write);
    if (in_kernel && reinterpret_cast<uintptr_t>(p) % bytes != 0 && fake_on_device(p, bytes))
        fake_die("a kernel: %s %zu bytes at %p, which is not a multiple", write ? "writes" : "reads", bytes, p);
}

} // namespace

#define TOUCH(bytes)                                                                              \
    extern "C" void __asan_load##bytes##_noabort(const void *p) { touch_whole(p, bytes, false); } \
    extern "C" void __asan_store##bytes##_noabort(const void *p) { touch_whole(p, bytes, true); }
TOUCH(1)
TOUCH(2)
TOUCH(4)
TOUCH(8)
TOUCH(16)
extern "C" void __asan_loadN_noabort(const void *p, size_t bytes) { touch(p, bytes, false); }
extern "C" void __asan_storeN_noabort(const void *p, size_t bytes) { touch(p, bytes, true); }
extern "C" void __asan_handle_no_return() { }
