// trace.c - the timeline: Chrome's trace format, one event a line. The closing bracket is optional
// in this format, so that a killed program's file is valid, too. We never write it.
//
//   [
//   {"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"compute"}},
//   {"ph":"B","pid":0,"tid":1,"ts":81.250,"name":"forward"},
//   {"ph":"E","pid":0,"tid":1,"ts":95.125},
//
// Each event is one write at the end of the file, so several processes can share it. Their first
// event names the run.
// A span is written when it begins, not when it is over: in the timeline of a run that hung, the
// last open span is the one to look at.
#include "trace.h"
#include "check.h"
#include "base/json.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    TRACKS = 512,
    NAME_MAX_BYTES = 63,    // longer names are cut
    EVENT_MAX = 1024,       // two names, each byte of them escaped, fit
};

typedef struct Trace {
    int fd;
    int pid;
    bool broken;                            // writing has failed and was reported
    char tracks[TRACKS][NAME_MAX_BYTES + 1]; // track i has tid i + 1
    int track_count;
    char path[256];
} Trace;

static struct {
    int rank;
    char run[NAME_MAX_BYTES + 1];           // empty: this process writes its file alone
} among;

static struct {
    void (*begin)(const char *name);
    void (*end)(void);
} profiler;

static Trace trace;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards trace
static atomic_int generation; // odd while a trace is open

// The calling thread's state, valid for one generation.
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
    json_text(out, cut);
}

// As one line, with the comma that separates it from the next. Returns its length.
static int event_text(int pid, const Event *e, char text[EVENT_MAX])
{
    FILE *out = fmemopen(text, EVENT_MAX, "w");
    CHECK(out, "", "fmemopen: %s", strerror(errno));
    fprintf(out, "{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d", e->ph, pid, e->tid);
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
    fputs("},\n", out);
    int length = (int)ftell(out);
    fclose(out);
    return length;
}

// A full disk ends the trace; training continues.
static void write_event(const Event *e)
{
    char text[EVENT_MAX] = "";
    int length = event_text(trace.pid, e, text);
    if (trace.broken)
        return;
    errno = ENOSPC;             // a short write does not set errno
    if (write(trace.fd, text, (size_t)length) != length) {
        trace.broken = true;
        WARN("training continues", "%s: write: %s: the timeline ends here", trace.path,
             strerror(errno));
    }
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

// The calling thread's track. A thread that was never named is "main", or called by its order of
// appearance.
static int own_track(void)
{
    int now = atomic_load(&generation);
    if (self.generation != now) {
        char name[32];
        snprintf(name, sizeof name, "thread %d", trace.track_count + 1);
        if (gettid() == getpid())
            snprintf(name, sizeof name, "main");
        self.generation = now;
        self.depth = 0;
        self.tid = track_id(name);
    }
    return self.tid;
}

// --- opening -------------------------------------------------------------------------------------

// Empties the file, unless it begins with this line already.
static void begin_with(int fd, const char *path, const char *line)
{
    char there[EVENT_MAX + 8] = "";
    size_t length = strlen(line);
    if (pread(fd, there, length, 0) == (ssize_t)length && memcmp(there, line, length) == 0)
        return;
    CHECK(ftruncate(fd, 0) == 0 && write(fd, line, length) == (ssize_t)length, "",
          "%s: write: %s", path, strerror(errno));
}

// The first process of a run empties the file; those that come later add to it.
static int open_file(const char *path)
{
    struct stat st;
    char event[EVENT_MAX] = "", line[EVENT_MAX + 8] = "[\n";
    signal(SIGXFSZ, SIG_IGN); // a limit on file sizes (ulimit -f) is then an error, not a kill
    int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    int fd = open(path, among.run[0] ? flags : flags | O_TRUNC, 0644);
    CHECK(fd >= 0, "give --trace a file in a directory that exists and is writable",
          "%s: open: %s", path, strerror(errno));
    CHECK(fstat(fd, &st) == 0 && S_ISREG(st.st_mode), "", "%s: not a regular file", path);
    if (among.run[0]) {
        event_text(0, &(Event){ .ph = 'M', .name = "run", .arg = among.run }, event);
        snprintf(line, sizeof line, "[\n%s", event);
    }
    flock(fd, LOCK_EX);
    begin_with(fd, path, line);
    flock(fd, LOCK_UN);
    return fd;
}

// --- the interface -------------------------------------------------------------------------------

void trace_profiler(void (*begin)(const char *name), void (*end)(void))
{
    profiler.begin = begin;
    profiler.end = end;
}

void trace_among(int rank, const char *run)
{
    among.rank = rank;
    snprintf(among.run, sizeof among.run, "%s", run ? run : "");
}

void trace_open(const char *path, int pid, const char *process)
{
    char name[32];
    if (path == NULL)
        return;
    trace_close();
    int fd = open_file(path);
    pthread_mutex_lock(&lock);
    trace = (Trace){ .fd = fd, .pid = among.run[0] ? among.rank : pid };
    snprintf(trace.path, sizeof trace.path, "%s", path);
    snprintf(name, sizeof name, "rank %d", among.rank);
    const char *slash = strrchr(process, '/');
    write_event(&(Event){ .ph = 'M', .name = "process_name",
                          .arg = among.run[0] ? name : slash ? slash + 1 : process });
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
    if (profiler.begin)
        profiler.begin(name);
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
    if (profiler.end)
        profiler.end();
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
