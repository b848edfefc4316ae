// comm.h - what processes that compute together exchange.
//
// Two implementations, chosen when linking: comm/nccl/comm_nccl.c and comm/gloo/comm_gloo.c. Every
// rank makes the same calls in the same order on a communicator, from one thread. A call enqueues
// its work on a stream of the device and returns; buffers are device memory, and stay as they are
// until the stream is past. Calls of one communicator happen one after the other, whatever their
// streams; so a stream lives as long as the communicators that it was used with.
#pragma once
#include "device.h"
#include "world.h"
#include <stdint.h>

// BF16 and F16 add up in f32, two at a time: each sum of two is rounded to the type.
typedef enum { COMM_U8, COMM_I64, COMM_F32, COMM_F64, COMM_BF16, COMM_F16 } CommType;
typedef enum { COMM_SUM, COMM_MAX } CommOp;

extern const char *const comm_backend;  // "nccl" or "gloo"
extern const bool comm_shares_devices;  // may two ranks use one GPU?

// This rank's device: of the GPUs that it sees the one with its local rank as number, counted
// round; or its share of the cores (threads as in device_share). All ranks call it, and all fail
// with a clear line when two of them come to the same GPU, unless they may share it.
Device *comm_open_device(const World *world, int threads);

// For debugging and for teaching. With either the host has a part in every call, so that steps are
// not recorded (device.h).
typedef struct CommConfig {
    bool checked;           // ranks compare their calls before each collective, and fail if they differ
    double slow_network;    // MB/s: each call takes as long as on such a network; 0: no longer than it does
} CommConfig;
typedef struct Args Args;
void comm_options(Args *args, CommConfig *config);

// Meets the other ranks: returns when all are there. The name (at most 15 letters, the same on all
// ranks, a different one for each communicator) appears in the timeline and in messages. If another
// rank dies, all calls here end the program, without a message if the process that started it ends
// it, too. config may be NULL.
typedef struct Comm Comm;
Comm *comm_new(const World *world, Device *device, const char *name, const CommConfig *config);
// Waits for the others to come here too; when one is gone, it only closes. Recorded steps with
// calls of this communicator must have been freed by then.
void comm_free(Comm *comm);
int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
// How much this rank has put into collectives, sends and receives so far: their counts times their
// values' widths. What a call sends through the network is a multiple of that, by its algorithm. A
// recorded step counts once, when it is recorded.
uint64_t comm_bytes(const Comm *comm);

// In place: values of all ranks, added or compared, on all ranks.
void comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                     CommOp op);
// In place: on rank `root`; on the other ranks the contents are undefined.
void comm_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type, CommOp op,
                 int root);
void comm_broadcast(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                    int root);
// all: (size, count), by rank.
void comm_all_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                     CommType type);
// all on rank root only: (size, count).
void comm_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                 CommType type, int root);
// Between two ranks: each send meets a receive of the same count. A stream waits in a send until
// it is met: if both ranks send before they receive, on one stream each, both wait for ever.
void comm_send(Comm *comm, Stream *stream, const void *values, size_t count, CommType type, int to);
void comm_receive(Comm *comm, Stream *stream, void *values, size_t count, CommType type, int from);
// The host waits until all ranks have come here.
void comm_barrier(Comm *comm);

// In place, on the host: rank 0's bytes on every rank.
void comm_broadcast_host(Comm *comm, void *bytes, size_t count);
// Returns this rank's hash of the weights if it is every rank's, else fails and names the ranks.
uint64_t comm_compare(Comm *comm, uint64_t hash);
// BatchNorm's statistics are of all ranks' batches from now on. The communicator is for nothing
// else: they must not queue behind gradients.
typedef struct Ops Ops;
void comm_share_norms(Comm *comm, Ops *ops);
