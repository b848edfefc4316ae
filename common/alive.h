// alive.h - heartbeats: what this process is doing, visible to the process that started it.
//
// A few words of memory, shared with the watcher if there is one, else private. The training
// thread beats whenever it makes progress: at each layer, batch and piece of a file. Before it
// waits for another rank or for the device, it marks itself as waiting, and the watcher then
// expects no beats.
//
// A rank that neither beats nor waits is hung. If all ranks wait, they are deadlocked.
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { ALIVE_KEPT = 16, ALIVE_TEXT = 112 };

// A collective that began. A watcher may see a mixture of it and the one that replaces it.
typedef struct AliveCollective {
    _Atomic uint64_t place;         // among all collectives of the program, from 1
    _Atomic int64_t count;          // values
    _Atomic uint64_t operation[3], communicator[3], section[3];     // names of up to 23 letters
} AliveCollective;

typedef struct Alive {
    _Atomic int waits_for_ranks;    // above 0: the training thread waits for them or the device
    _Atomic int waits_for_system;   // above 0: for the disk, terminal or driver, without limit
    _Atomic uint64_t beats;
    _Atomic bool joined;            // it has met the other ranks
    _Atomic bool done;              // the work is finished; the process is about to exit
    _Atomic double timeout;         // s without a beat after which the rank is lost; 0: no limit
    _Atomic int64_t epoch, step;    // the last finished step, from 1; 0 before the first
    _Atomic uint64_t section[3];    // the main thread's innermost span (trace.h), up to 23 letters
    _Atomic uint64_t begun, ended;  // collectives so far, over all communicators
    _Atomic uint64_t latest;        // the place of the last one that began
    AliveCollective collectives[ALIVE_KEPT];    // the last: each at its place modulo ALIVE_KEPT
    int64_t supervisor;             // pid of the process that watches this page, or 0
    uint64_t pid_namespace;         // of that pid (launcher_namespace)
} Alive;

// From now on this process publishes its heartbeats here, in shared memory that stays mapped.
void alive_publish(Alive *where);

// Zeroed pages for `count` processes, shared with children that are forked later and, through the
// descriptor, with the programs that those execute.
Alive *alive_pages(int count, int *descriptor);
void alive_pages_free(Alive *pages, int count);
// Before exec: in the new program alive_inherit finds page `number` through this descriptor.
void alive_bequeath(int descriptor, int number);
// In the new program, before it starts threads: publishes on that page. False: there is no page.
bool alive_inherit(void);

void alive_copy(Alive *to, const Alive *from);
// Has the process ever published anything? False for programs other than ours.
bool alive_seen(const Alive *page);
// The page on which this process publishes, to send a copy to another machine.
const Alive *alive_here(void);

// All are safe in any thread. Threads that work for the training thread beat, too, as the loader's
// do. alive_system_wait_begin counts in the main thread only, which trains.
void alive_beat(void);
void alive_wait_begin(void);
void alive_wait_end(void);
void alive_system_wait_begin(void);
void alive_system_wait_end(void);
void alive_joined(void);
void alive_step(int64_t epoch, int64_t step);
void alive_section(const char *name);
// section: the part of the program that made the call, or "".
void alive_collective_begin(uint64_t place, const char *communicator, const char *operation,
                            int64_t count, const char *section);
void alive_collective_end(void);
void alive_done(void);
void alive_timeout(double seconds);

// "after epoch 1, step 12, in save; last collective: #212 all_reduce of 11181648 (gradients), in
// backward, completed". With NCCL never "completed": the host does not see when a call ends.
void alive_progress(const Alive *alive, char *text, int size);
// The collective at this place, or NULL: it has not begun, or is no longer among the last ones.
const AliveCollective *alive_collective(const Alive *alive, uint64_t place);
// "all_reduce of 11181648 (gradients), in backward"
void alive_describe(const AliveCollective *collective, char text[ALIVE_TEXT]);
