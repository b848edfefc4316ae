// trace.c - the timeline: Chrome's trace format, one event a line.
//
//   [
//   {"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"compute"}},
//   {"ph":"B","pid":0,"tid":1,"ts":81.250,"name":"forward"},
//   {"ph":"E","pid":0,"tid":1,"ts":95.125}
//   ]
//
// Every event overwrites the closing bracket with a comma, itself and a new bracket, in one pwrite.
// A span is written when it begins, not when it is over: in the timeline of a run that hung, the
// last open span is the one to look at.
#include "trace.h"
#include "check.h"
#include "device.h"
#include "json.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    TRACKS = 512,
    NAME_MAX_BYTES = 63,    // longer names are cut
    EVENT_MAX = 1024,       // two names, each byte of them escaped, fit
    END_BYTES = 3,          // "\n]\n"
};

typedef struct Trace {
    int fd;
    int pid;
    off_t size;                             // of the file, in bytes
    bool broken;                            // writing has failed: said, and over
    char tracks[TRACKS][NAME_MAX_BYTES + 1]; // track i has tid i + 1
    int track_count;
    char path[256];
} Trace;

static Trace trace;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards trace
static atomic_int generation; // odd while a trace is open

// What a thread knows of itself, good for one generation.
static _Thread_local struct {
    int generation, tid, depth;
} self;

static bool trace_is_open(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed) & 1;
}

int64_t trace_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// --- the file: everything here is called with the lock held --------------------------------------

// Puts an event behind the last one. A full disk ends the trace: the file is cut back to what was
// whole, and training goes on.
static void append(const char *event)
{
    char piece[EVENT_MAX + 8];
    if (trace.broken)
        return;
    bool first = trace.size == 0;
    off_t at = first ? 0 : trace.size - END_BYTES;
    int n = snprintf(piece, sizeof piece, "%s%s\n]\n", first ? "[\n" : ",\n", event);
    ssize_t written = pwrite(trace.fd, piece, (size_t)n, at);
    if (written == n) {
        trace.size = at + n;
        return;
    }
    trace.broken = true;
    WARN("training goes on; the timeline is good up to here", "%s: pwrite: %s", trace.path,
         strerror(written < 0 ? errno : ENOSPC));
    if (!first
        && (pwrite(trace.fd, "\n]\n", END_BYTES, at) < 0 || ftruncate(trace.fd, trace.size) < 0))
        WARN("", "%s: cannot be cut back: %s", trace.path, strerror(errno));
}

typedef struct Event {
    char ph;                // B begin, E end, X a whole span, M a name for a process or a thread
    int tid;
    int64_t ts, dur;        // ns, in the file microseconds; 0: none
    const char *name;
    const char *arg;        // M: the name given
} Event;

static void write_name(FILE *out, const char *key, const char *name)
{
    char cut[NAME_MAX_BYTES + 1];
    snprintf(cut, sizeof cut, "%s", name);
    fputs(key, out);
    json_string(out, cut);
}

static void write_event(const Event *e)
{
    char text[EVENT_MAX] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    CHECK(out, "", "fmemopen: %s", strerror(errno));
    fprintf(out, "{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d", e->ph, trace.pid, e->tid);
    if (e->ts)
        fprintf(out, ",\"ts\":%lld.%03d", (long long)(e->ts / 1000), (int)(e->ts % 1000));
    if (e->ph == 'X')
        fprintf(out, ",\"dur\":%lld.%03d", (long long)(e->dur / 1000), (int)(e->dur % 1000));
    if (e->name)
        write_name(out, ",\"name\":", e->name);
    if (e->arg) {
        write_name(out, ",\"args\":{\"name\":", e->arg);
        fputc('}', out);
    }
    fputc('}', out);
    fclose(out);
    append(text);
}

// The number of the track with this name, made if it is new; 0 if there are too many.
static int track_id(const char *name)
{
    char cut[NAME_MAX_BYTES + 1];
    snprintf(cut, sizeof cut, "%s", name);
    for (int i = 0; i < trace.track_count; i++)
        if (strcmp(trace.tracks[i], cut) == 0)
            return i + 1;
    if (trace.track_count == TRACKS)
        return 0;
    memcpy(trace.tracks[trace.track_count++], cut, sizeof cut);
    write_event(&(Event){ .ph = 'M', .tid = trace.track_count, .name = "thread_name", .arg = cut });
    return trace.track_count;
}

// The calling thread's track. A thread that was never named is called by its order of appearance.
static int own_track(void)
{
    int now = atomic_load(&generation);
    if (self.generation != now) {
        char name[32];
        snprintf(name, sizeof name, "thread %d", trace.track_count + 1);
        self.generation = now;
        self.depth = 0;
        self.tid = track_id(name);
    }
    return self.tid;
}

// --- for everybody -------------------------------------------------------------------------------

void trace_open(const char *path, int pid, const char *process)
{
    if (path == NULL)
        return;
    trace_close();
    signal(SIGXFSZ, SIG_IGN); // a limit on file sizes (ulimit -f) is an error, not a death
    struct stat st;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
    CHECK(fd >= 0, "give --trace a file in a directory that is there and can be written",
          "%s: open: %s", path, strerror(errno));
    CHECK(fstat(fd, &st) == 0 && S_ISREG(st.st_mode), "the end of a timeline is written over again "
          "and again, which takes a regular file", "%s: not a regular file", path);
    pthread_mutex_lock(&lock);
    trace = (Trace){ .fd = fd, .pid = pid };
    snprintf(trace.path, sizeof trace.path, "%s", path);
    write_event(&(Event){ .ph = 'M', .name = "process_name", .arg = process });
    atomic_fetch_add(&generation, 1);
    pthread_mutex_unlock(&lock);
}

void trace_close(void)
{
    pthread_mutex_lock(&lock);
    if (trace_is_open()) {
        atomic_fetch_add(&generation, 1);
        close(trace.fd);
    }
    pthread_mutex_unlock(&lock);
}

void trace_thread(const char *name)
{
    if (!trace_is_open())
        return;
    pthread_mutex_lock(&lock);
    if (trace_is_open()) {
        self.generation = atomic_load(&generation);
        self.depth = 0;
        self.tid = track_id(name);
    }
    pthread_mutex_unlock(&lock);
}

void trace_begin(const char *name)
{
    if (!trace_is_open())
        return;
    device_range_push(name);
    int64_t ts = trace_now();
    pthread_mutex_lock(&lock);
    if (trace_is_open() && own_track()) {
        write_event(&(Event){ .ph = 'B', .tid = self.tid, .ts = ts, .name = name });
        self.depth++;
    }
    pthread_mutex_unlock(&lock);
}

void trace_end(void)
{
    if (!trace_is_open())
        return;
    int64_t ts = trace_now();
    pthread_mutex_lock(&lock);
    if (trace_is_open() && own_track() && self.depth > 0) {
        write_event(&(Event){ .ph = 'E', .tid = self.tid, .ts = ts });
        self.depth--;
    }
    pthread_mutex_unlock(&lock);
    device_range_pop();
}

void trace_span(const char *track, const char *name, int64_t begin_ns, int64_t end_ns)
{
    if (!trace_is_open())
        return;
    pthread_mutex_lock(&lock);
    int tid = trace_is_open() ? track_id(track) : 0;
    if (tid)
        write_event(&(Event){ .ph = 'X', .tid = tid, .ts = begin_ns,
                              .dur = end_ns > begin_ns ? end_ns - begin_ns : 0, .name = name });
    pthread_mutex_unlock(&lock);
}
