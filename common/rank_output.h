// rank_output.h - where the output of other programs goes: to our own stdout and stderr, to a file,
// or line by line with a prefix, so that the lines of several programs never mix.
#pragma once
#include "check.h"

// ends: what become the program's stdout and stderr; close them once it has them. file: appended
// to; else prefix: put in front of each line; else both go where ours go.
bool output_open(int ends[2], const char *file, const char *prefix, Error *err);
// The programs have ended: is there still output on its way?
bool output_left(void);
