// trace.c - the timeline: Chrome's trace format, one event a line.
//
//   [
//   {"ph":"M","pid":0,"tid":0,"name":"process_name","args":{"name":"rank 0"}},
//   {"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"compute"}},
//   {"ph":"B","pid":0,"tid":1,"ts":81.250,"name":"forward"},
//   {"ph":"E","pid":0,"tid":1,"ts":95.125},
//
// Each event is one write at the end of the file, so several processes can share the file. The
// first event of a shared file names the run. A span is written when it begins, so the last open
// span of a run that hung shows where it hung.
#include "trace.h"
#include "progress.h"
#include "check.h"
#include "clock.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct {
    FILE *file;
    int track_count;                        // their numbers (tid) begin with 1
    char path[256];
} trace;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool is_open;
static _Thread_local int own_tid;           // the calling thread's track; 0: it has none yet

enum { MOST_NESTED = 16 };
static _Thread_local const char *sections[MOST_NESTED];
static _Thread_local int depth;

static struct {
    int rank;
    char run[64];                           // empty: this process writes its file alone
} among;

static struct {
    void (*begin)(const char *name);
    void (*end)(void);
} profiler;

// --- events --------------------------------------------------------------------------------------

// ph: B begins a span at `us` (microseconds), and E ends it. M names a process or a thread. arg:
// that name; or of a B, the collective call, or NULL.
static void write_event(char ph, int tid, double us, const char *name, const char *arg)
{
    FILE *out = trace.file;
    if (ferror(out))            // the error was reported when it happened
        return;
    fprintf(out, "{\"ph\":\"%c\",\"pid\":%d,\"tid\":%d", ph, among.rank, tid);
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

static void begin_track(const char *name)
{
    own_tid = ++trace.track_count;
    write_event('M', own_tid, 0, "thread_name", name);
}

static void write_span(char ph, const char *name, const char *call)
{
    double us = 1e6 * clock_now();
    PROGRESS_WRITING(trace.path);      // this thread or the lock's holder may wait for the disk
    pthread_mutex_lock(&lock);
    if (is_open && own_tid == 0)
        begin_track("main");
    if (is_open)
        write_event(ph, own_tid, us, name, call);
    pthread_mutex_unlock(&lock);
}

// --- opening -------------------------------------------------------------------------------------

static bool is_of_this_run(int fd, const char *first, size_t length)
{
    char there[256];
    return among.run[0] && pread(fd, there, length, 0) == (ssize_t)length &&
           memcmp(there, first, length) == 0;
}

// The first process of a run empties the file; later ones append. Each keeps its shared lock until
// it closes the file. Waits up to 3 s for another run's lock, since a killed run may still be
// ending. False: another run is still writing (errno is EWOULDBLOCK), or a call has failed.
static bool begin_or_join(int fd, const char *first)
{
    enum { TRIES = 30, MS = 100 };
    size_t length = strlen(first);
    for (int i = 0; i < TRIES; i++) {
        flock(fd, LOCK_SH);
        if (is_of_this_run(fd, first, length))
            return true;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
            bool begun = is_of_this_run(fd, first, length) ||
                         (ftruncate(fd, 0) == 0 && write(fd, first, length) == (ssize_t)length);
            flock(fd, LOCK_SH);
            return begun;
        }
        flock(fd, LOCK_UN);
        usleep(1000 * MS);
    }
    return false;
}

static FILE *open_file(const char *path)
{
    struct stat st;
    char first[256] = "[\n";
    PROGRESS_DOING("opening", path);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
    CHECK(fd >= 0, "give --trace a file in a directory that exists and is writable",
          "%s: open: %s", path, strerror(errno));
    CHECK(fstat(fd, &st) == 0 && S_ISREG(st.st_mode), "choose another file for --trace",
          "%s: not a regular file", path);
    if (among.run[0])
        snprintf(first, sizeof first, "[\n{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"run\","
                 "\"args\":{\"name\":\"%s\"}},\n", among.run);
    CHECK(begin_or_join(fd, first), "", "%s: %s", path, errno == EWOULDBLOCK
          ? "another run is writing this timeline; give each run a file of its own"
          : strerror(errno));
    return fdopen(fd, "a");
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

void trace_open(const char *path)
{
    char name[32];
    if (path == NULL)
        return;
    trace.file = open_file(path);
    CHECK(trace.file, "", "%s: fdopen: %s", path, strerror(errno));
    snprintf(trace.path, sizeof trace.path, "%s", path);
    snprintf(name, sizeof name, "rank %d", among.rank);
    write_event('M', 0, 0, "process_name", name);
    is_open = true;
}

void trace_close(void)
{
    pthread_mutex_lock(&lock);
    if (is_open)
        fclose(trace.file);
    is_open = false;
    pthread_mutex_unlock(&lock);
}

void trace_thread(const char *name)
{
    pthread_mutex_lock(&lock);
    if (is_open)
        begin_track(name);
    pthread_mutex_unlock(&lock);
}

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
