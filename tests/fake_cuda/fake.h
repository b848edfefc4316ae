// fake.h - a mock of CUDA and NCCL: programs run, and compute, on machines without a GPU. It has two users:
//
//   the steps       runtime.c, nccl.c, steps.c, libraries.c, simt.cc, and the real kernels, compiled for the host.
//                   They need NVIDIA's headers.
//   the exercises   runtime.c, nccl.c, exercises.c: build/libgpu_shim.so, for exercises gpu-1 to gpu-4 and
//                   docs/reuse.md. They need only the two headers of exercises/gpu.
//
//   device   memory with its own addresses, and a list of the allocations
//   stream   a queue, and a thread that runs each entry after a random delay
//   graph    the captured work and its dependencies; replayed in one of the orders that these allow
//            (FAKE_ORDER)
//   kernel   a fiber for each thread of a block; barriers, shuffles, shared memory, atomics (simt.cc)
//   cuDNN    the convolution or attention that the descriptors describe, as plain loops in f32; likewise cuBLASLt's
//            products
//   NCCL     ranks meet, and add up their values, in a file that all of them map
//
// So tests can compare results with PyTorch's and the CPU backend's. If a program misses a wait, its weights may differ
// from those of a program that always waits. A program gets an error, or ends with a line that says why, if it does
// something that CUDA forbids, that hangs on a GPU, or that our programs should never do:
//
//   - in a capture: waiting, allocating, copying from pageable memory, making a cuDNN plan, forking a
//     stream without joining it, waiting for work that is not captured
//   - a step that copies to or from pageable memory while the stream has work: a wait that the watchdog does not see
//   - destroying a communicator that a graph still uses; two of a step's communicators on a device without
//     NCCL_LAUNCH_ORDER_IMPLICIT=1
//   - ranks that share a GPU and look like one machine, without NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL 2.30
//   - using a stream of a different device, or one that is destroyed
//   - using memory that is not allocated, too short or freed, or host memory in place of device memory, checked at each
//     access of a kernel; shared memory without a barrier; a workspace that is too small. An exercise may not touch
//     device memory on the host
//   - using CUDA before a fork, or in a host function; ranks that call different collectives
//
// The mock cannot show:
//
//   - speed, and the turns that processes take on a GPU
//   - what the real libraries accept, choose and round (TF32, the order of sums), how they fail, whether NCCL hangs
//   - hardware effects: memory that other blocks or streams see late, blocks that run at the same time
//   - every missing wait: only those for which the delays produce a wrong order
//
// Environment variables: FAKE_GPUS (number of GPUs; 1), FAKE_DELAY (mean delay of work in microseconds; 0), FAKE_SEED
// (of the delays), FAKE_ORDER (last: of graph nodes or threads that can run next, take the last; else the first),
// FAKE_NCCL_VERSION, FAKE_MAJOR (of the compute capability; 9), CUDA_VISIBLE_DEVICES (a process sees the GPUs from this
// number on). exercises.c has three more.
#pragma once
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

__attribute__((noreturn)) void fake_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
// For a wrong call of the program: prints what is wrong, and returns `error`.
int fake_refuse(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fake_setting(const char *name, int without);

// --- defined in steps.c and in exercises.c ---------------------------------------------------------------------------

extern const bool fake_step;                    // the steps' mock: kernels run on the host, and a watchdog watches
extern char fake_name[];                        // what a message begins with
void fake_beat(void);                           // the program has made a call
void fake_thread(const char *name);             // this thread runs a stream
// In the thread of a stream: work begins and ends. The name, for a timeline, must stay valid.
void fake_begin(const char *name);
void fake_end(void);
void fake_wait(const char *call);               // from here on the thread waits in this call; NULL: in none
void fake_offer(void *id, size_t bytes);        // rank 0 adds to NCCL's id what the ranks need to find each other

// --- memory ----------------------------------------------------------------------------------------------------------

// Each address of device memory is used only once, so accesses to freed memory are always found. Blocks begin on a
// page; a table maps pages to blocks. Programs get addresses in the arena; the memory is fake_shift bytes after them.
typedef struct Block {
    struct Block *next;
    char *p;
    size_t bytes;
    bool pinned;
    int device;
} Block;
enum { FAKE_PAGE = 4096, FAKE_PAGES = 1 << 24 };
extern char *fake_arena;
extern ptrdiff_t fake_shift;
extern Block **fake_pages;

static inline bool fake_in_arena(const void *p)
{
    return fake_arena && (size_t)((const char *)p - fake_arena) < (size_t)FAKE_PAGE * FAKE_PAGES;
}

static inline bool fake_on_device(const void *p, size_t bytes)
{
    const Block *b = fake_in_arena(p) ? fake_pages[(size_t)((const char *)p - fake_arena) / FAKE_PAGE] : NULL;
    return b && (const char *)p + bytes <= b->p + b->bytes;
}

// Where the mock itself finds the memory at p, of any kind.
static inline void *fake_at(const void *p) { return (char *)(uintptr_t)p + (fake_in_arena(p) ? fake_shift : 0); }
bool fake_pageable(const void *p);
bool fake_memory(const void *p, size_t bytes);  // whether all of it is allocated on the device, or pinned
bool fake_elsewhere(const void *p);             // whether it is memory of a GPU that this thread does not use
void fake_need(const void *p, size_t bytes, const char *name);      // checks memory that running work uses

// --- streams, events, graphs -----------------------------------------------------------------------------------------

enum { MAX_AFTER = 64, MAX_HELD = 8, MAX_FORKS = 64 };

typedef struct Work {
    const char *name;
    void (*fn)(void *arg);
    void *arg;
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
    bool blocking;                              // this stream and the default stream wait for each other
    Op *first, **end;
    uint64_t asked, done;                       // number of ops
    bool destroyed;
    Graph *graph;                               // under capture, or NULL
    After after;                                // in the capture: the stream's last nodes
};

struct CUevent_st {
    bool recorded;
    cudaStream_t stream;
    uint64_t until;                             // the event comes after this many ops of the stream
    Graph *graph;                               // or, in a capture, after these nodes
    After after;
};

extern __thread bool fake_captures;        // this thread captures
extern __thread cudaError_t fake_last_error;
cudaError_t fake_failed(cudaError_t status);    // cudaGetLastError returns it
void fake_touch(const char *name);              // the program calls CUDA
void fake_not_in_capture(const char *name);
// Checks that this thread may use the stream. Returns the stream: the default stream for NULL.
cudaStream_t fake_enter(cudaStream_t stream, const char *name);
void fake_enqueue(cudaStream_t stream, Op op);
// Queues fn(a copy of arg) or, in a capture, records it.
void fake_do(cudaStream_t stream, const char *name, void (*fn)(void *arg), const void *arg, size_t bytes);
bool fake_event_done(cudaEvent_t event);
// If the stream is being captured, adds 1 to *users (once per graph) until the graph is freed.
void fake_hold(cudaStream_t stream, int *users);
