// trace.h - a timeline of the run for https://ui.perfetto.dev (Chrome's trace format), and, under
// CUDA, NVTX ranges. The file is a JSON array with one event per line. The format needs no closing
// bracket, and none is written. So the file can be read even if the run was killed.
#pragma once

// Empties the file. Each process opens it again at its first span, and marks its spans with
// own_rank(). So all ranks may call trace_open for one file, if they do so before they meet
// (store_join). path NULL: nothing is written.
void trace_open(const char *path);
void trace_close(void);

// A span on the calling thread's track. A track is called "main" unless trace_thread named it. Each
// begin needs an end in the same thread; spans may nest. Names must not have quotes or backslashes.
void trace_thread(const char *name);    // names the track; call it before the thread's first span
// The name must stay valid until the span's end.
void trace_begin(const char *name);
void trace_end(void);
// call: the name that all ranks give to this collective call ("gradients #212"), or NULL.
void trace_begin_call(const char *name, const char *call);
// The innermost open span of this thread, whether there is a timeline or not; "": none, or more
// than 16 are open.
const char *trace_section(void);

// From now on passes all spans to a profiler, even without --trace: the CUDA backend registers
// NVTX's calls.
void trace_profiler(void (*begin)(const char *name), void (*end)(void));
