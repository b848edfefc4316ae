// supervise.h - for a process that starts ranks.
#pragma once
#include <sys/types.h>

// A child's exit status, from the status that waitpid stores: 128 + the signal if one killed it.
int exit_code(int status);
// Names a rank that has died. Prints nothing for an exit status with which our programs end only
// after they have printed why.
void report_death(int rank, int size, pid_t pid, int status);
