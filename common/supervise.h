// supervise.h - for a process that starts ranks.
#pragma once
#include <sys/types.h>

// A child's exit status, from the status that waitpid stores: 128 + the signal if one killed it.
int exit_code(int status);
// Prints which rank has died, and how. Prints nothing if our programs end with this exit status
// only after a message.
void report_death(int rank, int size, pid_t pid, int status);
