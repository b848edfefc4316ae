// supervise.h - for a process that starts ranks.
#pragma once
#include <sys/types.h>

// A child's exit status, from the status that waitpid stores: 128 + the signal if one killed it.
int exit_code(int status);
// Prints which rank has died, and how. Prints nothing if the exit status is one with which our
// programs end only after a message of their own.
void report_death(int rank, int size, pid_t pid, int status);
