// supervise.h - watches processes that compute together: which one has died or hangs, and which one
// is at fault.
#pragma once
#include "alive.h"
#include "check.h"
#include <signal.h>
#include <sys/types.h>

typedef struct Child {
    pid_t pid;
    const char *host;       // whose process that is, where it is another machine's; else NULL
    double heard;           // of one that is heard of over a network: when (s); 0: our own child
    Alive *alive;           // its signs of life: in shared memory, or what was heard
    uint64_t beats;         // at the last look
    double beaten;          // when they were seen to change (s)
    double stopped;         // when SIGSTOP or the like stopped it (s), or 0
    double ended;           // when it was reaped, or its connection closed (s), or 0
    int status;             // of our own child, then: as waitpid gave it
} Child;

typedef struct Supervisor {
    int size;
    Child *children;        // (size) by rank
    double timeout;         // s; 0: any
    sigset_t passed;        // signals that were passed on to them: to end with one is no fault
    bool foreign;           // they may be programs that give no signs of life: those are not missed;
                            // and nobody else notices one that is stopped when all others are done
    double looked;          // when supervise_look was last called (s)
    Error verdict;          // what supervise_judge has said
} Supervisor;

Supervisor supervise_new(int size, double timeout);
bool supervise_lives(const Supervisor *watch);   // does any of them?
void supervise_signal(const Supervisor *watch, int signal);  // to every one that lives, and its children

// Reaps who has ended, notes who was stopped. Call it a few times a second; after a second without
// it, all clocks start anew: we were stopped ourselves.
void supervise_look(Supervisor *watch);
// Has one of them died, or is one lost? Then says which, and why, and returns the exit status for
// all of them; else 0. Once it has, the rest should be ended.
int supervise_judge(Supervisor *watch);
// When all have ended as they should: the exit status.
int supervise_status(const Supervisor *watch);
