// subprocess.h - starts other programs, and leaves no process of theirs behind.
#pragma once
#include "check.h"
#include <sys/types.h>

// This process is about to start programs, with one thread and for as long as it lives. From now on
// signals come through the descriptor that is returned, to be read as signalfd(2) says: SIGCHLD and
// those that ask for something. One that was ignored (nohup) stays so, but INT and TERM, which a
// shell lets those in the background ignore. Nobody reading what we print is no reason to die.
int subprocess_parent(void);

typedef struct Subprocess {
    char **words;           // the program, looked for in PATH, and its arguments; then NULL
    int output[2];          // what become its stdout and stderr
    int keep[2];            // descriptors that it gets too, by the same numbers; -1: none
} Subprocess;
// It gets our environment and the signals that we were started with, heads a group of its own, and
// is killed when we die. 0: there is no such program; -1: the system has no room for one more.
pid_t subprocess_start(const Subprocess *program, Error *err);

// Those that a program left behind in its group when it ended, and was waited for: they are our
// children now. Reaps who is dead, sends the others a signal (0: none); false: there are none.
bool subprocess_orphans(pid_t group, int signal);
