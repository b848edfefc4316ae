// rank_output.h - the output of child programs goes to our own stdout and stderr, to a file, or
// line by line with a prefix, so that the lines of several programs never mix.
#pragma once
#include "check.h"

// ends: the program's stdout and stderr; close them once it has started. file: append to it; else
// prefix: put it in front of each line; if both are NULL, use our own stdout and stderr.
bool output_open(int ends[2], const char *file, const char *prefix, Error *err);
// After the programs have ended: is there output that has not been written yet?
bool output_left(void);
