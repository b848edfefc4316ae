// deadline.h - for a call into a library that may never return and has no timeout of its own.
#pragma once

// Unless deadline_met is called within `seconds` (0: no limit), the process ends with the message
// "WHAT within 30 s". One deadline at a time; the texts must stay valid.
void deadline_set(double seconds, const char *hint, const char *what);
void deadline_met(void);
