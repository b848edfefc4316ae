// backend.h - the interface between the two halves of a communicator.
//
//   call.c, comm.c, sync_bn.c        what both backends share
//   gloo/comm_gloo.cc, nccl/comm_nccl.c   the backends: each defines comm.h's constants and calls
//                                    with a stream, and the three functions below
#pragma once
#include "comm.h"
#include "network.h"

typedef enum CallKind {
    CALL_ALL_REDUCE,
    CALL_BROADCAST,
    CALL_ALL_GATHER,
    CALL_GATHER,
    CALL_SEND,
    CALL_RECEIVE,
    CALL_BARRIER,
    CALL_FREE,
    CALL_KINDS
} CallKind;

typedef struct Call {
    CallKind kind;
    CommType type;
    size_t count;           // values, as the caller passed it
    int peer;               // the root, or the rank to send to or to receive from
    uint64_t number;        // among this communicator's calls, from 1; sends and receives count
                            // separately: only two ranks make them. 0: made by --check-collectives
    const char *section;    // the span of the timeline in which it was made, or ""
} Call;

struct Comm {
    int rank, size;
    Device *device;
    char name[16];
    CommConfig config;
    Network network;            // that --slow-network and --shared-link simulate
    uint64_t calls, pair_calls; // collectives; sends and receives
    uint64_t bytes;
    // --check-collectives: called before each collective; else NULL. While it runs, `checking` is
    // true, and its own calls change neither `calls` nor `bytes`.
    void (*check)(Comm *comm, Stream *stream, const Call *call);
    bool checking;
    struct Backend *backend;    // the library's communicator, and what the backend needs beside it
};

// --- the backend, besides comm.h's constants and calls with a stream -----------------------------

void backend_connect(Comm *comm, const World *world);
void backend_free(Comm *comm);  // after a barrier of all ranks, unless a rank is gone
// The host waits for all ranks. Returns NULL, or with Gloo an error if a rank is gone. If NCCL
// reports that a rank is gone, call_lost ends this process.
const char *backend_barrier(Comm *comm);

// --- call.c: what every call does around the library's work --------------------------------------

// In the host's thread, before and after it enqueues a call. False: the call has no values, so
// there is nothing to enqueue or end.
bool call_begin(Comm *comm, Stream *stream, Call *call);
void call_end(Comm *comm, Stream *stream, const Call *call);

// In the thread that does the work, for the timeline and the watchdog. If the thread has only
// enqueued the work (NCCL), it calls trace_end instead of call_work_end.
void call_work_begin(Comm *comm, const Call *call);
void call_work_end(Comm *comm, const Call *call);

// Ends this process because another rank is lost; `text` says why. call NULL: while connecting. The
// parent process or the store may report which rank died, and end this process. So call_lost first
// waits 5 s for that. It fails with a message of its own only if nothing happens.
void call_lost(const Comm *comm, const Call *call, const char *text) __attribute__((noreturn));

// "all_reduce #12 of 1000 f32"
enum { CALL_TEXT = 96 };
const char *call_describe(const Call *call, char text[CALL_TEXT]);
size_t comm_width(CommType type);
const char *comm_type_name(CommType type);
