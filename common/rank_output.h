// rank_output.h - where the output of other processes goes: to our own stdout and stderr, to a file,
// or line by line with a prefix, so that the lines of several processes never mix.
#pragma once
#include "check.h"
#include <poll.h>

typedef struct Lines Lines;
typedef struct Output {
    int ends[2];            // what become the process's stdout and stderr
    Lines *lines[2];
} Output;

// file: it is appended to; else prefix: is put in front of each line; else it goes where ours goes.
bool output_open(Output *output, const char *file, const char *prefix, Error *err);
// The process has them now.
void output_close_ends(Output *output);
void output_free(Output *output);       // what has not been passed on is lost

// What to poll for until there is something to pass on; fd -1: nothing.
void output_poll(const Output *output, struct pollfd fds[2]);
// Passes on what has come, as far as that goes at once: it never waits. Each line is one write; one
// of more than 4 KB is several lines, and the last one gets an end if it has none. Returns whether
// something is left, or may still come.
bool output_pass(Output *output);
// The process is gone: what it has written is still passed on, but nothing more is waited for.
void output_end(Output *output);
