// backend.h - each collective is a Call, which comm_run passes to the library. The path of an
// all-reduce:
//
//   comm_all_reduce     the Call { CALL_ALL_REDUCE, type, values, count }         collectives.c
//   comm_run            call_begin | call_record | ncclAllReduce | call_end       comm_nccl.c
//
//   comm_run            call_begin | stream_enqueue(run) | call_end               comm_gloo.cc
//   run, on the stream               call_record | gloo::allreduce
#pragma once
#include "comm.h"
#include "network.h"

typedef enum CallKind {
    CALL_ALL_REDUCE,
    CALL_BROADCAST,
    CALL_ALL_GATHER,
    CALL_SEND,
    CALL_RECEIVE,
    CALL_BARRIER,           // an all-reduce of Comm.one: no rank ends it before all have begun
} CallKind;

typedef struct Call {
    CallKind kind;
    CommType type;
    void *values;           // all_gather: (size, count), with this rank's values already in place
    size_t count;
    int peer;               // the root, or the rank to send to or to receive from
    // Set by call_begin:
    uint64_t number;        // number among the communicator's collectives, from 1; send, receive: 0
    const char *section;    // the timeline's span in which the call was made, or ""
} Call;

struct Comm {
    int rank, size;
    Device *device;
    char name[16];
    Network network;        // the simulated network (--slow-network)
    uint64_t calls;         // number of collectives so far
    uint64_t bytes;         // bytes of all calls so far
    float *one;             // a number on the device, for barriers
    struct Backend *backend; // the library's communicator, and what else the backend needs
};

// --- what each backend defines, besides comm_backend ---------------------------------------------

void backend_connect(Comm *comm, const World *world);
void backend_free(Comm *comm);  // called after a barrier of all ranks
void comm_run(Comm *comm, Stream *stream, Call call);

// --- call.c: what comm_run does around the library's call ----------------------------------------

// Call both in comm_run's thread. If the call has no values, call_begin returns false: then return.
bool call_begin(Comm *comm, Call *call);
void call_end(Comm *comm, Stream *stream, const Call *call);
// Call it in the thread that makes the library's call. Begins the call's span in the timeline,
// which trace_end ends, and counts the call in the record of progress.
void call_record(const Comm *comm, const Call *call);

// Ends this process because another rank is lost; `why` is the library's text. call NULL: while
// connecting. The parent process or the store may report which rank died, and end this process. So
// call_lost first waits 5 s for that, or for a signal, then fails with its own message.
void call_lost(const Comm *comm, const Call *call, const char *why) __attribute__((noreturn));

// Writes "all_reduce of 1000 (gradients), in backward", or if call is NULL, "connect (gradients)".
enum { CALL_TEXT = 112 };
const char *call_describe(const Comm *comm, const Call *call, char text[CALL_TEXT]);
size_t comm_width(CommType type);   // bytes of a value
