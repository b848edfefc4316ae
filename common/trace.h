// trace.h - a timeline of the run for https://ui.perfetto.dev (Chrome's trace format), and, under
// CUDA, the same names as NVTX ranges. Free when --trace is not given. The file can be looked at
// after every event, so also if the run was killed: an array of JSON, one event a line, that is
// never closed.
#pragma once
#include <stdbool.h>
#include <stdint.h>

// process: a program, or its path; shown as the track group's name; pid orders them. NULL path: all
// calls are no-ops. Fails if the file cannot be opened.
void trace_open(const char *path, int pid, const char *process);
// This process is one of several of a machine that write one file together: trace_open then joins
// them, as process `rank`, called "rank 1". run: a name (at most 63 bytes) that they share and no
// other run has; a process that finds another run's timeline there empties it. NULL: alone again.
void trace_among(int rank, const char *run);
void trace_close(void);

// A span of the calling thread, on the track named after it. begin and end nest and pair up in a
// thread.
void trace_thread(const char *name);
void trace_begin(const char *name);
void trace_end(void);
// A span given by its times (ns of CLOCK_MONOTONIC) on a named track: for work seen from outside.
void trace_span(const char *track, const char *name, int64_t begin_ns, int64_t end_ns);
int64_t trace_now(void);

// A profiler that is to see the same spans: the CUDA backend gives NVTX's calls.
void trace_profiler(void (*begin)(const char *name), void (*end)(void));
