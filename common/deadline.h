// deadline.h - for a call into a library that may never return and has no timeout of its own.
#pragma once

// Unless deadline_met is called within so many seconds (0: any), the process ends: "WHAT within 30
// s". One at a time; the texts must stay valid.
void deadline_set(double seconds, const char *hint, const char *what);
void deadline_met(void);
