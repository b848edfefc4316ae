// trace.c - the timeline: Chrome's trace format, one event a line.
//
//   [
//   {"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"compute"}},
//   {"ph":"B","pid":0,"tid":1,"ts":81.250,"name":"forward"},
//   {"ph":"E","pid":0,"tid":1,"ts":95.125}
//   ]
//
// Every event overwrites the closing bracket with a comma, itself and a new bracket, in one pwrite.
// Where several processes write the file, each looks for its end anew, under a lock of the file;
// the first event then names the run.
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
    bool joint;                             // other processes write this file too
    off_t size;                             // of the file, in bytes
    bool broken;                            // writing has failed: said, and over
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

static void failed(const char *call, int error)
{
    trace.broken = true;
    WARN("training goes on; the timeline is good up to here", "%s: %s: %s", trace.path, call,
         strerror(error));
}

// Locks the file against the other processes (this one's threads have `lock`) and finds its end.
static bool joint_begin(void)
{
    struct stat st;
    int locked;
    do
        locked = fcntl(trace.fd, F_SETLKW, &(struct flock){ .l_type = F_WRLCK });
    while (locked < 0 && errno == EINTR);
    if (locked < 0 || fstat(trace.fd, &st) < 0)
        failed("fcntl: F_SETLKW", errno);
    else
        trace.size = st.st_size;
    return !trace.broken;
}

static void joint_end(void)
{
    fcntl(trace.fd, F_SETLK, &(struct flock){ .l_type = F_UNLCK });
}

// Puts an event behind the last one. A full disk ends the trace: the file is cut back to what was
// whole, and training goes on.
static void append(const char *event)
{
    char piece[EVENT_MAX + 8];
    bool first = trace.size == 0;
    off_t at = first ? 0 : trace.size - END_BYTES;
    int n = snprintf(piece, sizeof piece, "%s%s\n]\n", first ? "[\n" : ",\n", event);
    ssize_t written = pwrite(trace.fd, piece, (size_t)n, at);
    if (written == n) {
        trace.size = at + n;
        return;
    }
    failed("pwrite", written < 0 ? errno : ENOSPC);
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
    json_text(out, cut);
}

static void event_text(int pid, const Event *e, char text[EVENT_MAX])
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
    fputc('}', out);
    fclose(out);
}

static void write_event(const Event *e)
{
    char text[EVENT_MAX] = "";
    event_text(trace.pid, e, text);
    if (trace.broken || (trace.joint && !joint_begin()))
        return;
    append(text);
    if (trace.joint)
        joint_end();
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

static int open_file(const char *path, int flags)
{
    struct stat st;
    signal(SIGXFSZ, SIG_IGN); // a limit on file sizes (ulimit -f) is an error, not a death
    int fd = open(path, flags | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
    CHECK(fd >= 0, "give --trace a file in a directory that is there and can be written",
          "%s: open: %s", path, strerror(errno));
    CHECK(fstat(fd, &st) == 0 && S_ISREG(st.st_mode), "the end of a timeline is written over again "
          "and again, which takes a regular file", "%s: not a regular file", path);
    return fd;
}

// Is this a whole timeline that begins with this event?
static bool begins_with(int fd, off_t size, const char *event)
{
    char begin[EVENT_MAX + 8], there[EVENT_MAX + 8], end[END_BYTES];
    int n = snprintf(begin, sizeof begin, "[\n%s", event);
    return size >= n + END_BYTES && pread(fd, there, (size_t)n, 0) == n &&
           memcmp(there, begin, (size_t)n) == 0 &&
           pread(fd, end, END_BYTES, size - END_BYTES) == END_BYTES &&
           memcmp(end, "\n]\n", END_BYTES) == 0;
}

// Whoever of a run comes first finds something else, and begins the file with the run's name.
static void begin_run(const char *run)
{
    char text[EVENT_MAX] = "";
    event_text(0, &(Event){ .ph = 'M', .name = "run", .arg = run }, text);
    if (!joint_begin())
        return;
    if (!begins_with(trace.fd, trace.size, text)) {
        trace.size = 0;
        if (ftruncate(trace.fd, 0) < 0)
            failed("ftruncate", errno);
        else
            append(text);
    }
    joint_end();
}

// --- for everybody -------------------------------------------------------------------------------

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
    bool joint = among.run[0];
    char name[32];
    if (path == NULL)
        return;
    trace_close();
    int fd = open_file(path, joint ? O_RDWR : O_WRONLY | O_TRUNC);
    pthread_mutex_lock(&lock);
    trace = (Trace){ .fd = fd, .pid = joint ? among.rank : pid, .joint = joint };
    snprintf(trace.path, sizeof trace.path, "%s", path);
    snprintf(name, sizeof name, "rank %d", among.rank);
    if (joint)
        begin_run(among.run);
    const char *slash = strrchr(process, '/'), *shown = joint ? name : slash ? slash + 1 : process;
    write_event(&(Event){ .ph = 'M', .name = "process_name", .arg = shown });
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
