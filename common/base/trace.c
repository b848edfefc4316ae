// trace.c - the timeline: Chrome's trace format, one event a line.
//
//   [
//   {"ph":"M","pid":0,"tid":0,"name":"process_name","args":{"name":"rank 0"}},
//   {"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"compute"}},
//   {"ph":"B","pid":0,"tid":1,"ts":81.250,"name":"forward"},
//   {"ph":"E","pid":0,"tid":1,"ts":95.125},
//
// Each event is one write at the end of the file, so several processes can share the file. A span
// is written when it begins, so the last open span of a run that hung shows where it hung.
#include "trace.h"
#include "progress.h"
#include "check.h"
#include "clock.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static struct {
    FILE *file;                             // NULL until the first span
    int track_count;                        // tracks so far; the first is number (tid) 1
    char path[4096];
} trace;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool is_open;
static _Thread_local int own_tid;           // the calling thread's track; 0: none yet
static _Thread_local char own_name[32] = "main";

enum { MOST_NESTED = 16 };
static _Thread_local const char *sections[MOST_NESTED];
static _Thread_local int depth;

static struct {
    void (*begin)(const char *name);
    void (*end)(void);
} profiler;

// --- events --------------------------------------------------------------------------------------

// ph: B begins a span at `us` (microseconds), and E ends it. M names a process or a thread. arg:
// for M, that name; for B, the collective call, or NULL.
static void write_event(char ph, int tid, double us, const char *name, const char *arg)
{
    FILE *out = trace.file;
    if (ferror(out))            // the error was reported when it happened
        return;
    fprintf(out, "{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d", ph, own_rank(), tid);
    if (us > 0)
        fprintf(out, ",\"ts\":%.3f", us);
    if (name)
        fprintf(out, ",\"name\":\"%s\"", name);
    if (arg)
        fprintf(out, ",\"args\":{\"%s\":\"%s\"}", ph == 'M' ? "name" : "call", arg);
    fputs("},\n", out);
    if (fflush(out) != 0)
        WARN("training continues", "%s: write: %s: the rest of the timeline is missing", trace.path,
             strerror(errno));
}

static FILE *open_file(const char *mode)
{
    FILE *file = fopen(trace.path, mode);
    CHECK(file, "give --trace a file in a directory that exists and is writable",
          "%s: open: %s", trace.path, strerror(errno));
    return file;
}

// Writes the beginning or end of a span, and before a first span the name of its process or thread.
static void write_span(char ph, const char *name, const char *call)
{
    double us = 1e6 * clock_now();
    char process[32];
    PROGRESS_WRITING(trace.path);      // this thread or the lock's holder may wait for the disk
    pthread_mutex_lock(&lock);
    if (is_open && !trace.file) {
        trace.file = open_file("ae");
        snprintf(process, sizeof process, "rank %d", own_rank());
        write_event('M', 0, 0, "process_name", process);
    }
    if (is_open && own_tid == 0) {
        own_tid = ++trace.track_count;
        write_event('M', own_tid, 0, "thread_name", own_name);
    }
    if (is_open)
        write_event(ph, own_tid, us, name, call);
    pthread_mutex_unlock(&lock);
}

// --- the interface -------------------------------------------------------------------------------

void trace_profiler(void (*begin)(const char *name), void (*end)(void))
{
    profiler.begin = begin;
    profiler.end = end;
}

// Ranks that call this at the same time all write the same two bytes.
void trace_open(const char *path)
{
    if (path == NULL)
        return;
    PROGRESS_DOING("opening", path);
    snprintf(trace.path, sizeof trace.path, "%s", path);
    FILE *file = open_file("we");
    fputs("[\n", file);
    CHECK(fclose(file) == 0, "", "%s: write: %s", path, strerror(errno));
    is_open = true;
}

void trace_close(void)
{
    pthread_mutex_lock(&lock);
    if (trace.file)
        fclose(trace.file);
    trace.file = NULL;
    is_open = false;
    pthread_mutex_unlock(&lock);
}

void trace_thread(const char *name) { snprintf(own_name, sizeof own_name, "%s", name); }

const char *trace_section(void)
{
    return depth > 0 && depth <= MOST_NESTED ? sections[depth - 1] : "";
}

void trace_begin(const char *name) { trace_begin_call(name, NULL); }

void trace_begin_call(const char *name, const char *call)
{
    if (depth++ < MOST_NESTED)
        sections[depth - 1] = name;
    if (profiler.begin)
        profiler.begin(name);
    if (is_open)
        write_span('B', name, call);
}

void trace_end(void)
{
    depth--;
    if (is_open)
        write_span('E', NULL, NULL);
    if (profiler.end)
        profiler.end();
}
