// deadline.h - for a call into a library that may never return, and cannot be told to give up.
#pragma once

// Unless deadline_met is called within so many seconds (0: any), the process ends: "WHAT within 30
// s". One at a time; the texts must stay.
void deadline_set(double seconds, const char *hint, const char *what);
void deadline_met(void);
