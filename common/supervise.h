// supervise.h - for a process that starts ranks, and for a rank that a launcher may have started.
#pragma once
#include <stdbool.h>
#include <sys/types.h>

// A child's exit status, from the status that waitpid stores: 128 + the signal if one killed it.
int exit_code(int status);
// Names a rank that has died. Prints nothing if its exit status is one before which our programs
// have always printed why.
void report_death(int rank, int size, pid_t pid, int status);

// For a program that a launcher may have started, even through scripts. This process then ends when
// the launcher dies, if the launcher's pid is known. True: launch or torchrun has started it, which
// reports the deaths of its ranks. False: this process watches itself until it has joined rank 0
// (tcp_store.h).
bool supervise_inherit(void);
