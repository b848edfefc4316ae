// backend.h - the interface between comm.c and the two backends, gloo/ and nccl/.
#pragma once
#include "comm.h"

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

// One call of one rank.
typedef struct Call {
    CallKind kind;
    CommType type;
    int other;              // the root, or the rank to send to or to receive from; or -1
    size_t count, bytes;    // values, as the caller passed it, and their bytes
    uint64_t number;        // among this communicator's calls, from 1; sends and receives count
                            // separately: only two ranks make them. 0: an internal call, to compare
    const void *from;       // this rank's input and output; from == to: in place
    void *to;
    size_t from_bytes, to_bytes;    // 0: this rank has none
} Call;

// The backend's half of a communicator.
typedef struct Link Link;

struct Comm {
    int rank, size;
    Device *device;
    char name[16];
    CommConfig config;
    uint64_t calls, pair_calls; // so far: collectives; sends and receives
    uint64_t bytes;             // of the calls' values so far
    Link *link;
};

// --- functions of the backend --------------------------------------------------------------------

Link *link_new(const Comm *comm, const World *world);
void link_free(Link *link);     // after link_barrier: all ranks called it, or one is gone
void link_enqueue(Link *link, Stream *stream, const Call *call);
// The host waits for all ranks, at most this long (0: no limit). Returns NULL, or the library's
// error if a rank is gone.
const char *link_barrier(Link *link, double seconds);
// For measuring: only the library's own call, in this thread; returns when it is done.
// False: this library has no such call.
bool link_bare(Link *link, const Call *call);

// --- calls.c: a call as text, in the timeline and in the heartbeats ------------------------------

extern const char *const call_names[CALL_KINDS];
extern const char *const call_peers[CALL_KINDS];   // " from rank ": before call->other; or NULL

// Before and after the work of a call, in the thread that does it: for timeline and watchdog.
void comm_call_begin(const Comm *comm, const Call *call);
void comm_call_end(void);
void comm_call_asked(void);     // instead of comm_call_end, if the work was only enqueued

// Call it if the library reports in `text` that a rank is gone. call: the current one; NULL: while
// connecting. The parent process knows which rank died and why, and will end this one. So this
// waits first, and fails with a message only if that does not happen.
__attribute__((noreturn)) void comm_lost(const Comm *comm, const Call *call, const char *text);

// The call as text: "all_reduce #12 of 1000 f32"
enum { CALL_TEXT = 96 };
const char *comm_describe(const Call *call, char text[CALL_TEXT]);
size_t comm_width(CommType type);   // bytes of a value
const char *comm_type_name(CommType type);
