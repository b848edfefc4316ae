// trace.h - a timeline of the run for https://ui.perfetto.dev (Chrome's trace format), and, under
// CUDA, NVTX ranges. The file is a JSON array with one event per line. The format needs no closing
// bracket, and none is written. So the file can be read even if the run was killed.
#pragma once

// Call it at most once. path NULL: nothing is written.
void trace_open(const char *path);
// For one of several ranks: call it before trace_open. The file shows this process as process
// `rank`. run: a name of this run, of at most 63 letters and digits, if the ranks of a machine
// share one file; else NULL. If trace_open finds a different run's timeline, it empties the file,
// or fails if that run still writes.
void trace_among(int rank, const char *run);
void trace_close(void);

// A span on the calling thread's track, called "main" unless trace_thread named it. In a thread
// begin and end must pair up; they may nest. Names must not contain quotes or backslashes.
void trace_thread(const char *name);    // at most once in each thread, before its spans
// The name must stay valid until the span's end.
void trace_begin(const char *name);
void trace_end(void);
// call: the name that all ranks give this collective call ("gradients #212"), or NULL.
void trace_begin_call(const char *name, const char *call);
// The innermost open span of this thread, whether there is a timeline or not; "": none, or more
// than 16 are open.
const char *trace_section(void);

// From now on passes all spans to a profiler, even without --trace: the CUDA backend registers
// NVTX's calls.
void trace_profiler(void (*begin)(const char *name), void (*end)(void));
