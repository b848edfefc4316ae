// backend.h - what comm.c shares with the two backends, gloo/ and nccl/.
#pragma once
#include "comm.h"

typedef enum CallKind {
    CALL_ALL_REDUCE,
    CALL_REDUCE,
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
    CommOp op;
    int other;              // the root, or the rank to send to or to receive from; or -1
    size_t count;           // values, as the caller said it
    uint64_t number;        // among this communicator's calls, from 1 (sends and receives apart:
                            // only two ranks make them); 0: one of our own, to compare
    const void *from;       // what this rank gives: count or count * size values; NULL: nothing
    void *to;               // what it gets, likewise; from == to: in place
    size_t from_bytes, to_bytes;
} Call;

// The backend's half of a communicator.
typedef struct Link Link;

struct Comm {
    int rank, size;
    Device *device;
    char name[16];
    CommConfig config;
    uint64_t calls, pair_calls; // so far: of all ranks together; sends and receives
    uint64_t bytes;             // of the calls' values so far
    char *mine, *all;           // checked: calls in words, on the device; one, and every rank's
    Link *link;
};

// --- what a backend does -------------------------------------------------------------------------

Link *link_new(const Comm *comm, const World *world);
void link_free(Link *link);     // all ranks are here, or one is gone
void link_enqueue(Link *link, Stream *stream, const Call *call);
// The host waits for all ranks, so many seconds (0: any). Returns NULL, or what the library says when
// one is gone.
const char *link_barrier(Link *link, double seconds);
// For measuring: the library's own call and nothing else, in this thread; returns when it is done.
// False: this library has no such call.
bool link_bare(Link *link, const Call *call);

// --- calls.c: a call in words, and what goes with its work ---------------------------------------

extern const char *const call_names[CALL_KINDS];
extern const char *const call_peers[CALL_KINDS];   // what call->other is: " from rank "; or NULL

// Around the work of a call, in the thread that does it: for the timeline, and for those who watch.
void comm_call_begin(const Comm *comm, const Call *call);
void comm_call_end(void);
void comm_call_asked(void);     // instead, where nobody knows when it ends

// Another rank has gone away, says the library in `text`. call: what we were doing; NULL: meeting
// the others. Whoever started us knows which rank died and why, and is about to end us: waits for
// that without a word. Only when nobody does, fails.
_Noreturn void comm_lost(const Comm *comm, const Call *call, const char *text);

// "all_reduce #12 of 1000 f32 (sum)"
enum { CALL_TEXT = 96 };
const char *comm_describe(const Call *call, char text[CALL_TEXT]);
size_t comm_width(CommType type);   // bytes of a value
const char *comm_type_name(CommType type);
