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
//   cuDNN    the convolution that the descriptors describe, as plain loops in f32; likewise cuBLASLt's products
//   NCCL     ranks meet, and add up their values, in a file that all of them map
//
// So tests can compare results with PyTorch's and the CPU backend's. If a program misses a wait, its weights may differ
// from those of a program that always waits. With the exercises, a mistake makes a call return an error, and its reason
// is printed; the host faults if it touches device memory. A step ends, with a line that begins with "fake:", if it
// does something that CUDA forbids, that hangs on a GPU, or that our programs should never do:
//
//   - in a capture: waiting, allocating, copying from pageable memory, making a cuDNN plan, forking a
//     stream without joining it, waiting for work that is not captured
//   - copying to or from pageable memory while the stream has work: a wait that the watchdog does not see
//   - destroying or aborting a communicator that a graph still uses, or after its stream; two communicators
//     on a device without NCCL_LAUNCH_ORDER_IMPLICIT=1
//   - ranks that share a GPU without NCCL_NVLS_ENABLE=0, or look like two machines without NCCL_NET=Socket. As in NCCL,
//     the communicator fails if they look like one machine, without NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL 2.30
//   - using the legacy stream, a blocking one, one of a different device, or a thread without a device
//   - using memory that is not allocated, too short or freed, or host memory in place of device memory, checked at each
//     access of a kernel; shared memory without a barrier; a workspace that is too small
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
// FAKE_NCCL_VERSION, FAKE_MAJOR (of the compute capability; 9), FAKE_FAIL ("cudnnCreate 1002": this function returns
// this status), FAKE_PRINT (1: prints the operations, and how many nodes a graph has), FAKE_INIT_HANGS (the rank on
// which NCCL's start never ends). exercises.c has three more.
#pragma once
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

__attribute__((noreturn)) void fake_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
// A call of the program is wrong. Prints why and returns `error`; where fake_strict, ends the program.
int fake_refuse(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fake_setting(const char *name, int without);
int fake_status(const char *function);          // as FAKE_FAIL says; else 0

// --- of steps.c, and of exercises.c ----------------------------------------------------------------------------------

extern const bool fake_strict;                  // the steps' rules, which are stricter than CUDA's
extern char fake_name[];                        // what a message begins with
void fake_beat(void);                           // the program has made a call
void fake_thread(const char *name);             // this thread runs a stream
// A copy, fill, host function or call of NCCL begins and ends, in the thread of its stream. name: for a timeline; NULL:
// none. call: what NCCL waits for, or NULL. Both texts must stay valid until the end.
void fake_begin(const char *name, const char *call);
void fake_end(void);
void fake_offer(void *id, size_t bytes);        // rank 0 adds to NCCL's id what the ranks need to find each other

// --- work ------------------------------------------------------------------------------------------------------------

// Device memory that a piece of work reads or writes; nothing if p is NULL.
typedef struct Range {
    const void *p;
    size_t bytes;
} Range;
#define RANGES(...) \
    (const Range[]){ __VA_ARGS__ }, (int)(sizeof((const Range[]){ __VA_ARGS__ }) / sizeof(Range))

// Queues fn(a copy of arg) or, in a capture, records it. Checks the ranges now, and again when fn runs.
void fake_do(cudaStream_t stream, const char *name, void (*fn)(void *arg), const void *arg,
             size_t bytes, const Range *ranges, int count);
// Checks that this thread may use the stream. Returns the stream: the default stream for NULL.
cudaStream_t fake_enter(cudaStream_t stream, const char *name);
void fake_need_stream(cudaStream_t stream, const char *name);
void fake_not_in_capture(const char *name);
// If the stream is being captured, adds 1 to *users (once per graph) until the graph is freed.
void fake_hold(cudaStream_t stream, int *users);

// A communicator's last call: entry number `until` of `stream` or, in a capture, `node` of `graph`. The
// next call, on any stream, runs after it.
typedef struct Order {
    cudaStream_t stream;
    uint64_t until;
    const void *graph;
    int node;
} Order;
void fake_order_before(cudaStream_t stream, const Order *order);
void fake_order_after(cudaStream_t stream, Order *order);
void fake_order_wait(const Order *order);       // the host waits for it

// --- memory ----------------------------------------------------------------------------------------------------------

// Each address of device memory is used only once, so accesses to freed memory are always found. Blocks begin on a
// page; a table maps pages to blocks. Programs get addresses in the arena; the memory is fake_shift bytes after them.
typedef struct Block {
    struct Block *next;
    char *p;
    size_t bytes;
    int kind;
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
bool fake_memory(const void *p, size_t bytes);  // of the device or, unless fake_strict, pinned
