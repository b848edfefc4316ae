// fault.c - simulates a disk that fails or is slow. Preloaded into a program (LD_PRELOAD), it watches the calls that
// write files and makes one of them fail:
//
//   FAULT_PATH=saved/   watch only calls on paths that contain this text, and on files opened by such
//                       paths; not set: watch nothing
//   FAULT_RANK=1        watch only in the process with RANK=1
//   FAULT_CALL=fsync    count only these calls: write, fsync, rename, open, close, unlink; default: any of these; read
//   FAULT_AT=3          act on the third counted call (from 1); default: on none
//   FAULT_DO=ENOSPC     what to do: fail with this error (ENOSPC, EIO, ...);
//                       or "short": do half of a write, and fail all later ones with ENOSPC;
//                       or "kill": SIGKILL before the call; or "torn": half of a write, then SIGKILL;
//                       or "slow": delay this and all later calls by 0.3 s; or "wait5000": delay this one by 5000 ms
//   FAULT_LOG=file      write a line for each watched call: "write saved/x.tmp 4096"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 1024 };
static char *watched[FILES];    // by file descriptor: its path, or NULL
static _Atomic int counted;
static bool full;               // after "short": every write fails
static bool slow;               // after "slow": every call is delayed
static int log_fd = -1;

typedef enum Verdict { PASS, FAIL, HALF } Verdict;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static bool watches(const char *path)
{
    const char *wanted = getenv("FAULT_PATH"), *only = getenv("FAULT_RANK"), *rank = getenv("RANK");
    return wanted && wanted[0] && path && strstr(path, wanted) && (!only || (rank && strcmp(only, rank) == 0));
}

static void note(const char *call, const char *path, long long bytes)
{
    char line[PATH_MAX + 64];
    const char *log = getenv("FAULT_LOG");
    if (log == NULL)
        return;
    if (log_fd < 0)
        log_fd = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    int n = bytes < 0 ? snprintf(line, sizeof line, "%s %s\n", call, path)
                      : snprintf(line, sizeof line, "%s %s %lld\n", call, path, bytes);
    if (REAL(write)(log_fd, line, (size_t)n) != n)
        abort();
}

static int error_number(const char *name)
{
    for (int error = 1; error < 256; error++)
        if (strerrorname_np(error) && strcmp(strerrorname_np(error), name) == 0)
            return error;
    fprintf(stderr, "fault.c: FAULT_DO=%s is unknown\n", name);
    abort();
}

// Logs a watched call, and may delay it or kill the process. Returns what the call must do; sets errno for FAIL.
static Verdict judge(const char *call, const char *path, long long bytes)
{
    const char *only = getenv("FAULT_CALL"), *at = getenv("FAULT_AT"), *what = getenv("FAULT_DO");
    bool counts = !only || strcmp(only, call) == 0;
    bool now = counts && at && ++counted == atoi(at);
    bool write = strcmp(call, "write") == 0;
    note(call, path, bytes);
    slow = slow || (now && what && strcmp(what, "slow") == 0);
    if (slow) {
        nanosleep(&(struct timespec){ 0, 300000000 }, NULL);
        return PASS;
    }
    if (full && write) {
        errno = ENOSPC;
        return FAIL;
    }
    if (!now || !what)
        return PASS;
    if (strncmp(what, "wait", 4) == 0) {
        usleep(1000 * (useconds_t)atoi(what + 4));
        return PASS;
    }
    if (strcmp(what, "kill") == 0 || (strcmp(what, "torn") == 0 && !write))
        raise(SIGKILL);
    if (strcmp(what, "torn") == 0 || (strcmp(what, "short") == 0 && write))
        return HALF;
    errno = error_number(strcmp(what, "short") == 0 ? "ENOSPC" : what);
    return FAIL;
}

static const char *path_of(int fd)
{
    return fd >= 0 && fd < FILES ? watched[fd] : NULL;
}

static int opened(int fd, const char *path)
{
    if (fd >= 0 && fd < FILES) {
        free(watched[fd]);
        watched[fd] = watches(path) ? strdup(path) : NULL;
    }
    return fd;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (watches(path) && judge("open", path, -1) == FAIL)
        return -1;
    return opened(REAL(open)(path, flags, mode), path);
}

static size_t half_of(size_t bytes)
{
    full = true;
    return bytes > 1 ? bytes / 2 : bytes;
}

static ssize_t survived(ssize_t written)
{
    if (strcmp(getenv("FAULT_DO"), "torn") == 0)
        raise(SIGKILL);
    return written;
}

ssize_t write(int fd, const void *bytes, size_t size)
{
    const char *path = path_of(fd);
    Verdict verdict = path ? judge("write", path, (long long)size) : PASS;
    if (verdict == FAIL)
        return -1;
    if (verdict == HALF)
        return survived(REAL(write)(fd, bytes, half_of(size)));
    return REAL(write)(fd, bytes, size);
}

ssize_t read(int fd, void *to, size_t size)
{
    const char *path = path_of(fd), *only = getenv("FAULT_CALL");
    if (path && only && strcmp(only, "read") == 0 && judge("read", path, (long long)size) == FAIL)
        return -1;
    return REAL(read)(fd, to, size);
}

static ssize_t stream_write(void *fd, const char *bytes, size_t size)
{
    ssize_t n = 1, done = 0;
    for (; (size_t)done < size && n > 0; done += n > 0 ? n : 0)
        n = write((int)(intptr_t)fd, bytes + done, size - (size_t)done);
    return done;                // less than size: an error
}

static int stream_close(void *fd) { return close((int)(intptr_t)fd); }

// The C library's streams do not call the functions of this file, so a watched file gets a stream that does.
static FILE *stream;
static int stream_fd;

FILE *fdopen(int fd, const char *mode)
{
    cookie_io_functions_t calls = { .write = stream_write, .close = stream_close };
    if (mode[0] != 'w' || !path_of(fd))
        return REAL(fdopen)(fd, mode);
    stream_fd = fd;
    return stream = fopencookie((void *)(intptr_t)fd, mode, calls);
}

int fileno(FILE *file) { return file == stream ? stream_fd : REAL(fileno)(file); }

int fsync(int fd)
{
    const char *path = path_of(fd);
    if (path && judge("fsync", path, -1) == FAIL)
        return -1;
    return REAL(fsync)(fd);
}

// A close that fails still closes the descriptor, as on Linux.
int close(int fd)
{
    const char *path = path_of(fd);
    Verdict verdict = path ? judge("close", path, -1) : PASS;
    int error = errno;
    if (path) {
        free(watched[fd]);
        watched[fd] = NULL;
    }
    int result = REAL(close)(fd);
    if (verdict == FAIL) {
        errno = error;
        return -1;
    }
    return result;
}

int rename(const char *from, const char *to)
{
    if ((watches(from) || watches(to)) && judge("rename", to, -1) == FAIL)
        return -1;
    return REAL(rename)(from, to);
}

int unlink(const char *path)
{
    if (watches(path) && judge("unlink", path, -1) == FAIL)
        return -1;
    return REAL(unlink)(path);
}
