// interrupt.h - ends training after Ctrl-C, SIGTERM or SIGUSR1. The first Ctrl-C or SIGTERM asks
// the program to stop; the second ends it at once. (A rank that stopped alone would leave the
// others waiting. So until it has called interrupt_hold, even the first ends it at once.) SIGUSR1,
// which batch systems send some time before they end a job, also asks the program to stop. SIGUSR1
// never counts as the first of two signals, so repeating it is harmless. A signal that comes again
// within 0.2 s counts once.
#pragma once

// From now on handles these signals, and ignores SIGPIPE and SIGXFSZ. The first Ctrl-C or SIGTERM
// also prints a line on stderr. If one process prints the line for several, it calls
// interrupt_announce, which is safe in a signal handler; the others call interrupt_silence.
void interrupt_install(void);
void interrupt_announce(void);
void interrupt_silence(void);
// Returns the signal that asks this program to end, or 0. The program then exits with 128 + the
// signal: 130 for Ctrl-C.
int interrupt_requested(void);

// Ranks must all stop after the same step. After interrupt_hold the first signal is only
// remembered: interrupt_requested returns 0 until the ranks have agreed and call interrupt_stop.
void interrupt_hold(void);
int interrupt_received(void);   // the signal that came to this process, or 0
void interrupt_stop(int signal);
// Ends interrupt_hold: interrupt_requested returns a received signal again, even an earlier one.
void interrupt_release(void);
// Ends the process if a signal has come. Call it while waiting before training has begun.
void interrupt_leave(void);
