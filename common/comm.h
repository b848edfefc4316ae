// comm.h - calls between ranks, as torch.distributed has them: all_reduce, broadcast, all_gather,
// send, receive, barrier.
//
// Two implementations, chosen when linking: comm/nccl/comm_nccl.c and comm/gloo/comm_gloo.cc. Every
// rank makes the same calls in the same order on a communicator, from one thread; only sends and
// receives involve just two ranks. A call with a stream enqueues its work there and returns. Its
// buffers are device memory and must stay untouched until that work is done. Calls on one
// communicator run one after the other, even on different streams: a call may wait for the stream
// of the call before it. So a stream must outlive the communicators that used it.
#pragma once
#include "device.h"
#include "world.h"
#include <stdint.h>

// Gloo adds two BF16 or F16 numbers in f32, and rounds their sum to the type.
typedef enum { COMM_U8, COMM_I64, COMM_F32, COMM_F64, COMM_BF16, COMM_F16 } CommType;

extern const char *const comm_backend;  // "nccl" or "gloo"
typedef struct Comm Comm;

// In place: all ranks get the sum over all ranks.
void comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type);
// In place: all ranks get rank root's values.
void comm_broadcast(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                    int root);
// `all` has (size, count) values, in rank order. `mine` may be this rank's part of `all`.
void comm_all_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                     CommType type);
// Each send needs a receive of the same count and type, and may wait for it: two ranks that both
// send first can deadlock.
void comm_send(Comm *comm, Stream *stream, const void *values, size_t count, CommType type, int to);
void comm_receive(Comm *comm, Stream *stream, void *values, size_t count, CommType type, int from);
// The host waits until all ranks have called comm_barrier and the compute stream's work is done.
void comm_barrier(Comm *comm);
// In place, in host memory: all ranks get rank 0's bytes before the call returns.
void comm_broadcast_host(Comm *comm, void *bytes, size_t count);

int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
// Returns the sum, over this rank's calls so far, of `count` times the bytes of a value. Traffic on
// the network differs by a factor that depends on the algorithm. The calls in a recorded step
// count when the step is recorded, not when it is replayed.
uint64_t comm_bytes(const Comm *comm);

// For teaching. With slow_network, and always with Gloo, the host takes part in calls, so steps are
// not recorded (device.h).
typedef struct CommConfig {
    double slow_network;    // MB/s: delay calls as if each rank had a link of this rate; 0: off
} CommConfig;
typedef struct Args Args;
void comm_options(Args *args, CommConfig *config);

// Returns when all ranks have called comm_new. The name (at most 15 letters, unique, the same on
// all ranks) appears in the timeline and in messages. If another rank dies, this rank's parent, the
// store or a call on the communicator ends this process. config may be NULL.
Comm *comm_new(const World *world, Device *device, const char *name, const CommConfig *config);
// Waits for all ranks. Call it after freeing all recorded steps with calls on this communicator.
void comm_free(Comm *comm);

// From now on BatchNorm's statistics in training are over the batches of all ranks. Returns a
// communicator only for the statistics, which must not queue after gradients. The caller frees it.
typedef struct Ops Ops;
Comm *comm_share_norms(const World *world, Device *device, Ops *ops, const CommConfig *config);

// Opens this rank's device: GPU local_rank % (visible GPUs), or on a CPU a share of the cores,
// with `threads` threads (0: see device_share). All ranks call it. On GPUs, sets world->gpu_place
// and gpus_shared, which comm_new needs, and rank 0 prints a line if ranks share a GPU.
Device *comm_open_device(World *world, int threads);

// Returns 0 with the cpu backend; else the number of GPUs that ranks may use, and fails if there is
// none. Unlike device_count, comm_gpus does not start CUDA: a process that has started CUDA cannot
// fork ranks that use CUDA.
int comm_gpus(void);
