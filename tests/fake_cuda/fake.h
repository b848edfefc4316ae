// fake.h - CUDA without a GPU: the programs of the cuda backend run, and compute, on any machine.
//
// runtime.c, libraries.c, nccl.c and simt.cc define what common/cuda and common/comm/nccl call. CMake links programs with
// them in place of CUDA's libraries, and with the kernels' own sources, compiled for the host:
//
//   device   memory with addresses of its own, and a list of what has been allocated
//   stream   a queue, and a thread that does what is in it, each time after a random delay
//   graph    what a capture noted down, and what of it comes after what; replayed in one of the
//            orders that this allows (FAKE_ORDER)
//   kernel   a fiber for each thread of a block; barriers, shuffles, shared memory, atomics (simt.cc)
//   cuDNN    the convolution that the descriptors describe, with plain loops in f32; cuBLASLt likewise
//   NCCL     ranks meet, and add up, through a file that all of them map
//
// So numbers are compared with PyTorch's and with the CPU's; and where a program does not wait for something, its weights
// come out other than those of a program that always waits. It ends, with a line that begins with "fake:", where it does
// what CUDA forbids, or what makes it hang, or what our programs never mean to do:
//
//   - in a capture: waits, allocates, copies from pageable memory, makes a cuDNN plan, forks a
//     stream and never joins it, waits for what is not captured
//   - destroys a communicator that a graph still uses; has two whose order NCCL does not keep
//   - works in the legacy stream, a blocking one, one of another device, or in a thread that has
//     set no device
//   - uses memory that is not there, too short or freed, or the host's where the device's is meant, also at any single
//     access of a kernel; shared memory without a barrier; a workspace that is too small
//   - uses CUDA before a fork; or ranks call different collectives
//
// What it does not show:
//
//   - speed
//   - what the real libraries accept, choose and round (TF32, the order of sums), how they fail, that NCCL does not hang
//   - what only hardware does: memory that another block or stream sees late, blocks that run at the same time
//   - every missing wait: it shows if the delays bring the wrong order about
//
// In the environment: FAKE_GPUS (how many; 1), FAKE_DELAY (of work, on average; microseconds; 0),
// FAKE_SEED (of delays), FAKE_ORDER (last: of the work in a graph, or the threads of a block, that could be next, the
// last; else the first), FAKE_LOAD (for so long the first use of CUDA loads it, and cudnnCreate cuDNN; milliseconds; 0),
// FAKE_NCCL_VERSION, FAKE_FAILURE (of the GPU: memory, crash, hang, numbers).
#pragma once
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

__attribute__((noreturn)) void fake_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
// A number in the environment, or what it is without.
int fake_setting(const char *name, int without);
// Whether FAKE_FAILURE says so.
bool fake_fails(const char *how);

// Device memory that a piece of work reads or writes; nothing if p is NULL.
typedef struct Range {
    const void *p;
    size_t bytes;
} Range;
#define RANGES(...) \
    (const Range[]){ __VA_ARGS__ }, (int)(sizeof((const Range[]){ __VA_ARGS__ }) / sizeof(Range))

// Queues fn(a copy of arg), or notes it down. Its ranges are looked at now, and when it runs.
void fake_do(cudaStream_t stream, const char *name, void (*fn)(void *arg), const void *arg,
             size_t bytes, const Range *ranges, int count);
// Device memory has addresses of its own, each of which is used once: so what is freed stays known as such. Every block
// begins on a page, of which a table says whose it is: kernels ask at every access.
typedef struct Block {
    struct Block *next;
    char *p;
    size_t bytes;
    int kind;
} Block;
enum { FAKE_PAGE = 4096, FAKE_PAGES = 1 << 24 };
extern char *fake_arena;
extern Block **fake_pages;

// Is all of this in one piece of device memory?
static inline bool fake_on_device(const void *p, size_t bytes)
{
    size_t at = (size_t)((const char *)p - fake_arena);
    const Block *b = at < (size_t)FAKE_PAGE * FAKE_PAGES ? fake_pages[at / FAKE_PAGE] : NULL;
    return b && (const char *)p + bytes <= b->p + b->bytes;
}

// Takes as long as loading a library.
void fake_load(void);
// Fails if this thread captures.
void fake_not_in_capture(const char *name);
// *users counts the graphs that hold what the stream is asked for now.
void fake_hold(cudaStream_t stream, int *users);

// What one communicator does, it does in the order in which it was asked, on whatever stream.
typedef struct Order {
    cudaStream_t stream;        // where it was last,
    uint64_t until;             // and up to here
    const void *graph;          // or: in this capture,
    int node;                   // this one
} Order;
void fake_order_before(cudaStream_t stream, const Order *order);
void fake_order_after(cudaStream_t stream, Order *order);
