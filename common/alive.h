// alive.h - heartbeats: a page of memory on which this process shows that it makes progress.
//
// The page is shared with the supervisor that started this process, or is private. Among several
// ranks, rank 0 gets copies of all pages. A process that reads heartbeats is called a watcher. The
// training thread beats as it works, for example at each batch. Before it waits for another rank,
// for the device or for something outside the program, it marks itself as waiting. The table at the
// top of watch.c has the time limits.
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { ALIVE_KEPT = 16, ALIVE_TEXT = 112, ALIVE_DOING = 240 };
enum { ALIVE_PATIENCE = 600 };          // s: the default of --patience
enum { ALIVE_PATIENT = 1, ALIVE_ENDLESS };     // waits limited by the patience, or not at all

// A collective, send or receive that has begun. A watcher may see half of it and half of another.
typedef struct AliveCollective {
    _Atomic uint64_t place;         // among this process's calls, from 1
    _Atomic int64_t count;          // values
    _Atomic uint64_t operation[3], communicator[3], section[3];     // names of up to 23 letters
} AliveCollective;

typedef struct Alive {
    _Atomic int waits_for_ranks;    // above 0: a thread waits for ranks or the device
    _Atomic int outside;            // 0, or the kind of a wait for something outside the program
    _Atomic uint64_t doing[ALIVE_DOING / 8];    // what it waits for: "reading train/1.jpg"
    _Atomic uint64_t beats;
    _Atomic bool joined;            // this rank has met the others
    _Atomic bool done;              // the process is about to exit
    _Atomic bool watched;           // a supervisor of ours or rank 0 watches this page
    _Atomic double timeout, patience;   // s; 0 or INFINITY: no limit
    _Atomic double device_step;     // s: a GPU's longest measured step; -1: none yet; 0: a CPU
    _Atomic int64_t epoch, step;    // the host's last finished step, from 1; 0: none yet
    // Of this epoch; times in s. waited: for data. own: from a step's beginning to its first
    // message to other ranks, summed over `messages` steps. spent: from the end of the first step
    // to the end of the last.
    _Atomic int64_t steps, messages;
    _Atomic double waited, own, spent;
    _Atomic uint64_t section[3];    // the main thread's innermost span (trace.h), up to 23 letters
    _Atomic uint64_t begun, ended;  // calls; of NCCL's, only barriers count as ended
    _Atomic uint64_t latest;        // place of the last call that began
    AliveCollective collectives[ALIVE_KEPT];    // the last calls, at place % ALIVE_KEPT
    int64_t supervisor;             // pid of the supervisor that shares this page, or 0
    uint64_t pid_namespace;         // of that pid (launcher_namespace)
} Alive;

// From now on heartbeats go to `where`, in memory that must stay mapped.
void alive_publish(Alive *where);

// Zeroed pages for `count` processes, shared with children that are forked later and, through the
// descriptor, with the programs that they execute.
Alive *alive_pages(int count, int *descriptor);
void alive_pages_free(Alive *pages, int count);
// Before exec: the new program's alive_inherit finds page `number` through this descriptor.
void alive_bequeath(int descriptor, int number);
// Call it in the new program before it starts threads. True: heartbeats now go to the page that
// alive_bequeath named.
bool alive_inherit(void);

void alive_copy(Alive *to, const Alive *from);
// Has the page's process sent a beat, or has its timeout been set? False for programs other than
// ours.
bool alive_seen(const Alive *page);
const Alive *alive_here(void);

// The next three are safe in any thread.
void alive_beat(void);
void alive_wait_begin(void);
void alive_wait_end(void);

// Marks a wait for something outside the program, until the end of the block. If the wait is long,
// the watcher may print `doing` and `what` ("rank 1 ... has been reading train/1.jpg"). Both must
// stay valid.
#define ALIVE_OUTSIDE(doing, what) ALIVE_OUTSIDE_(doing, what, ALIVE_PATIENT)
// Marks a wait for writing, which has no time limit. In other threads than the main thread it
// marks nothing: their slow writes must not hide that the main thread hangs.
#define ALIVE_WRITING(what) ALIVE_OUTSIDE_("writing", what, ALIVE_ENDLESS)
#define ALIVE_OUTSIDE_(...)                                                                \
    __attribute__((cleanup(alive_outside_end))) AliveOutside outside_ = { NULL, __VA_ARGS__ }; \
    alive_outside_begin(&outside_)
typedef struct AliveOutside {
    struct AliveOutside *newer;     // the next wait, of any thread
    const char *doing, *what;
    int kind;
} AliveOutside;
void alive_outside_begin(AliveOutside *wait);
void alive_outside_end(AliveOutside *wait);
void alive_outside_changed(void);   // call it when the text of a wait has changed

void alive_joined(void);
void alive_step(int64_t epoch, int64_t step);
void alive_section(const char *name);
// section: the part of the program that made the call, or "".
void alive_collective_begin(uint64_t place, const char *communicator, const char *operation,
                            int64_t count, const char *section);
void alive_collective_end(void);
void alive_device_step(double seconds);     // -1: from now on the device is a GPU
void alive_waited(double seconds);          // for the data of the next step
void alive_own(double seconds);             // of a step, from its beginning to its first message
void alive_done(void);
void alive_watched(void);
void alive_limits(double timeout, double patience);     // s, 0: no limit

// Writes for example "after epoch 1, step 12, in save; last collective: #212 all_reduce of 11181648
// (gradients), in backward, completed". With NCCL, "completed" is usually missing: the host sees
// only the ends of barriers.
void alive_progress(const Alive *alive, char *text, int size);
// The rank for which the others wait, with its times (watch_slowest), or "". Set by rank 0's store.
void alive_slowest_set(const char *text);
void alive_slowest(char text[ALIVE_DOING]);
void alive_doing(const Alive *alive, char text[ALIVE_DOING]);
// The collective at this place, or NULL if it has not begun or is no longer among the last
// ALIVE_KEPT.
const AliveCollective *alive_collective(const Alive *alive, uint64_t place);
// "all_reduce of 11181648 (gradients), in backward"
void alive_describe(const AliveCollective *collective, char text[ALIVE_TEXT]);
