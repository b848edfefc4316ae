// supervise.h - how a rank has ended, for a process that starts ranks.
#pragma once
#include <sys/types.h>

// Returns a child's exit status from waitpid's status: 128 + the signal if a signal killed it.
int exit_code(int status);
// Prints which rank has died, and how. Prints nothing if our programs end with this exit status
// only after a message.
void report_death(int rank, int size, pid_t pid, int status);
