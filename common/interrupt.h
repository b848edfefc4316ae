// interrupt.h - Ctrl-C and SIGTERM: the first asks the program to end after the step under way, the
// second ends it at once. SIGUSR1, which a batch system sends some time before it ends a job, asks for
// the same, but is never impatient: neither a second one, nor the first of the others after it, ends
// the program at once.
#pragma once
#include <stdbool.h>

// speak: the first signal is answered with a line on stderr.
void interrupt_install(bool speak);
// The signal that came, or 0. Its exit status is 128 + the signal: 130 for Ctrl-C.
int interrupt_requested(void);
// Where one process answers for several: the others are silent, whatever interrupt_install says,
// and this one prints the line. May be called in a signal handler.
void interrupt_silence(void);
void interrupt_answer(void);

// Processes that compute together must stop after the same step. From interrupt_defer on a signal
// is only a wish, and interrupt_requested stays 0, until they have agreed and it is granted.
void interrupt_defer(void);
int interrupt_wish(void);       // the signal that came to this process, or 0
void interrupt_grant(int signal);
// There is nothing left to agree on: a signal counts as soon as it comes, or has come.
void interrupt_settle(void);
// For a process that waits before there is anything to agree on: if a signal came, it ends here.
void interrupt_leave(void);
