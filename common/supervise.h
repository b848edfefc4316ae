// supervise.h - a process that starts ranks, detects lost ones, and ends all of them with the run.
//
//   supervisor   fork fork | watches: deaths, heartbeats, signals      | ends all, reaps all
//   rank 0       |     | step | step | step | step, waiting for 1 ...  | cleans up, ends
//   rank 1            || step | step X
#pragma once
#include <stdbool.h>
#include <sys/types.h>

// Call supervise_new before starting threads. It blocks INT, TERM and other signals; supervise and
// supervise_pause handle them.
typedef struct Supervisor Supervisor;
Supervisor *supervise_new(int ranks, int first, int size);  // the ranks from `first` on, of `size`
void supervise_free(Supervisor *supervisor);

// Like fork. The child leads its own process group and is killed if the supervisor dies. The
// supervisor sees the child's heartbeats (alive.h), also after exec (alive_inherit). timeout: the
// rank is lost after so many s without a heartbeat. INFINITY: no limit. 0: a program that sends
// heartbeats sets the limit itself. Returns -1 and sets errno if it fails.
pid_t supervise_fork(Supervisor *supervisor, int rank, double timeout);
// Waits until all ranks have ended. Meanwhile passes signals on, and if a rank is lost
// (watch_judge), ends the others. Then ends the rest of their process groups, and returns the exit
// status of the run. Afterwards ranks may be started again.
int supervise(Supervisor *supervisor);
// Waits, and returns 0. If a signal asks this process to end, returns that signal at once. If INT
// or TERM came earlier, or a signal asked the ranks to end, returns a number other than 0 at once.
int supervise_pause(Supervisor *supervisor, double seconds);

// For a program that a launcher may have started, even through scripts. This process then ends when
// the launcher dies, if the launcher's pid is known. True: our supervisor watches this process, and
// prints the message about Ctrl-C for it. False: this process watches itself until it has joined
// rank 0 (tcp_store.h).
bool supervise_inherit(void);
