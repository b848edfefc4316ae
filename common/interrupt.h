// interrupt.h - Ctrl-C or SIGTERM: the first such signal ends the program after the current step,
// the second at once. Batch systems send SIGUSR1 some time before they end a job. It also ends the
// program after the current step, but never counts as the first of two: repeating it is harmless,
// and so is one Ctrl-C or SIGTERM after it.
#pragma once
#include <stdbool.h>

// speak: the first signal prints a line on stderr.
void interrupt_install(bool speak);
// The signal that came, or 0. A program that it ends exits with 128 + the signal: 130 for Ctrl-C.
int interrupt_requested(void);
// If one process prints the line for several, it calls interrupt_announce, which a signal handler
// may do. The others call interrupt_silence, which overrides `speak`.
void interrupt_silence(void);
void interrupt_announce(void);

// Ranks must all stop after the same step. After interrupt_hold a signal only waits:
// interrupt_requested stays 0 until the ranks have agreed and call interrupt_stop.
void interrupt_hold(void);
int interrupt_received(void);   // the signal that came to this process, or 0
void interrupt_stop(int signal);
// Signals count at once again, including one that has already come.
void interrupt_release(void);
// For a process that waits before training has begun: if a signal has come, it ends here.
void interrupt_leave(void);
