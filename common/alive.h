// alive.h - signs of life: what this process is doing, where whoever started it can see it.
//
// A few words of memory. Without a watcher they are this process's own, and cost nothing. The
// training thread beats whenever it gets on: with each layer, batch, and piece of a file. When
// it can get no further by itself (another rank or the device has to do something first) it says
// that it waits: nobody expects it to beat then.
//
// So a watcher knows: who neither beats nor waits hangs; when all wait, they wait for each other.
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { ALIVE_NAME = 16 };

typedef struct Alive {
    _Atomic uint64_t beats;
    _Atomic int waiting;            // more than 0: the training thread waits
    _Atomic int outside;            // more than 0: for a disk, a terminal or a driver, however long
    _Atomic bool joined;            // it has met the other ranks
    _Atomic bool done;              // all that was to do is done; the process is about to exit
    _Atomic double patience;        // s without a sign of life until it is lost; 0: any
    _Atomic int64_t epoch, step;    // the last step that was finished, from 1; 0 before the first
    // The last collective that was begun. The words are not read and written as one: whoever looks
    // from outside may see a mixture of two that follow each other closely.
    _Atomic uint64_t begun, ended;  // how many so far, over all communicators
    _Atomic int64_t count;          // values
    _Atomic char operation[ALIVE_NAME], communicator[ALIVE_NAME];
} Alive;

// From now on this process writes here (shared memory that stays mapped); NULL: for itself again.
void alive_publish(Alive *where);

// Memory for `count` processes, all zero, shared with those that are forked later, and through the
// descriptor (NULL: none) with programs that they become.
Alive *alive_pages(int count, int *descriptor);
void alive_pages_free(Alive *pages, int count);
// Before exec: the program will find page `number` behind this descriptor, by alive_inherit.
void alive_bequeath(int descriptor, int number);
// In such a program, before it has threads: publishes on that page. False: there is none.
bool alive_inherit(void);

void alive_copy(Alive *to, const Alive *from);
// Does the process give signs of life at all? Another program than ours does not.
bool alive_seen(const Alive *page);
// What is published at this moment, as it would be sent to somebody who cannot see the memory.
const Alive *alive_here(void);

// All are safe in any thread; beats and waits are the training thread's to tell.
void alive_beat(void);
void alive_wait_begin(void);
void alive_wait_end(void);
void alive_outside_begin(void);
void alive_outside_end(void);
void alive_joined(void);
void alive_step(int64_t epoch, int64_t step);
void alive_collective_begin(const char *communicator, const char *operation, int64_t count);
void alive_collective_end(void);
void alive_done(void);
void alive_patience(double seconds);

// "all_reduce #212 of 11181648 values (gradients)", for a message about this or another process.
void alive_describe(const Alive *alive, char *text, int size);
// "after epoch 1, step 12; last collective: all_reduce #212 of 11181648 values (gradients)"
void alive_progress(const Alive *alive, char *text, int size);
