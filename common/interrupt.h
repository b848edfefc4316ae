// interrupt.h - Ctrl-C and SIGTERM: the first asks the program to end after the step under way, the
// second ends it at once.
#pragma once

void interrupt_install(void);
// The signal that came, or 0. Its exit status is 128 + the signal: 130 for Ctrl-C.
int interrupt_requested(void);
