// supervise.h - a process that starts ranks, judges them by what it sees, and leaves none behind.
//
//   supervisor   fork fork | watches: deaths, signs of life, signals   | ends all, reaps all
//   rank 0       |     | step | step | step | step, waiting for 1 ...  | cleans up, ends
//   rank 1            || step | step X
#pragma once
#include <stdbool.h>
#include <sys/types.h>

// Call it with one thread. From now on signals are read by the calls below.
typedef struct Supervisor Supervisor;
Supervisor *supervise_new(int ranks, int first, int size);  // the ranks from `first` on, of `size`
void supervise_free(Supervisor *supervisor);

// As fork. The child is killed when the supervisor dies, heads a process group of its own, and
// shows its signs of life (alive.h) to the supervisor, also after exec (alive_inherit). patience: s
// without one until it is lost; 0: until the child says so, it may be any program. -1: it cannot,
// see errno.
pid_t supervise_fork(Supervisor *supervisor, int rank, double patience);
// Returns when all ranks and the rest of their process groups have ended: the exit status for all.
// If a rank is lost, it is named, and the others are ended. Passes signals on; then this may start
// again.
int supervise(Supervisor *supervisor);
// Waits. Returns 0; or, at once, the signal that asks or has asked this process to end.
int supervise_pause(Supervisor *supervisor, double seconds);

// In a program that a launcher may have started: it is killed when the launcher dies. Returns
// whether a supervisor of ours watches it, and answers Ctrl-C for it.
bool supervise_inherit(void);
