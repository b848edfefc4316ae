// fake.h - CUDA without a GPU: to test in what order programs ask a GPU for what.
//
// runtime.c, libraries.c, nccl.c and kernels.c define what common/cuda and common/comm/nccl call. A
// program that is linked with them, in place of CUDA's libraries and kernels_*.cu, runs on any
// machine:
//
//   device   memory of the host, and a list of what has been allocated
//   stream   a queue, and a thread that does what is in it, each time after a random delay
//   graph    what a capture noted down, and what of it comes after what; replayed in one of the
//            orders that this allows (FAKE_ORDER)
//   kernel   writes numbers that depend on all that it reads, and on nothing else
//   NCCL     ranks meet, and exchange, through a file that all of them map
//
// So where a program does not wait for something, its weights come out other than those of a
// program that always waits. And it ends, with a line that begins with "fake:", where it does what
// CUDA forbids, or what makes it hang, or what our programs never mean to do:
//
//   - in a capture: waits, allocates, copies from pageable memory, makes a cuDNN plan, forks a
//     stream and never joins it, waits for what is not captured
//   - destroys a communicator that a graph still uses
//   - works in the legacy stream, a blocking one, one of another device, or in a thread that has
//     set no device
//   - uses memory that is not there, too short or freed, or the host's where the device's is meant;
//     a workspace that is too small
//   - uses CUDA before a fork; or ranks call different collectives
//
// What it does not show:
//
//   - that a number is right: nothing is computed as a GPU does it, and kernels_*.cu are not there
//   - what the libraries accept, how they fail, what they cost, that NCCL does not hang: they do
//     here what their manuals say, as far as our programs ask for it
//   - that kernels touch what kernels.c says that they touch
//   - every missing wait: it shows if the delays bring the wrong order about
//
// In the environment: FAKE_GPUS (how many; 1), FAKE_DELAY (of work, on average; microseconds; 0),
// FAKE_SEED (of delays), FAKE_ORDER (last: of the work in a graph that could be next, what was
// asked for last; else what was asked for first), FAKE_OVERFLOW (N: every Nth message of averaged
// gradients is said to have overflowed).
#pragma once
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

_Noreturn void fake_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
// A number in the environment, or what it is without.
int fake_setting(const char *name, int without);

// Device memory that a piece of work reads or writes; nothing if p is NULL.
typedef struct Range {
    const void *p;
    size_t bytes;
    int use;
} Range;
enum { FAKE_READ = 1, FAKE_WRITE = 2 };
#define READ(p, bytes) { p, bytes, FAKE_READ }
#define WRITE(p, bytes) { p, bytes, FAKE_WRITE }
#define CHANGE(p, bytes) { p, bytes, FAKE_READ | FAKE_WRITE }
#define RANGES(...) \
    (const Range[]){ __VA_ARGS__ }, (int)(sizeof((const Range[]){ __VA_ARGS__ }) / sizeof(Range))

// Queues fn(a copy of arg), or notes it down. Its ranges are looked at now, and when it runs.
void fake_do(cudaStream_t stream, const char *name, void (*fn)(void *arg), const void *arg,
             size_t bytes, const Range *ranges, int count);
// A kernel: what it writes depends on what it reads, on its name and on salt.
void fake_mix(cudaStream_t stream, const char *name, uint64_t salt, const Range *ranges, int count);
uint64_t fake_hash(uint64_t hash, const void *p, size_t bytes);
void fake_fill(void *p, size_t bytes, uint64_t hash);   // with floats from 0.25 to 0.75

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
