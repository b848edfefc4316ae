// fault.c - simulates a disk that fails or is slow. Preloaded into a program (LD_PRELOAD), it watches the calls that
// write files, and makes one of them fail or wait:
//
//   FAULT_PATH=saved/   watch only calls on paths that contain this text, and on files opened by such
//                       paths; not set: watch nothing
//   FAULT_RANK=1        watch only in the process with RANK=1
//   FAULT_CALL=fsync    count only these calls: write, fsync, rename, open, close or unlink (default: all six), or read
//   FAULT_AT=3          act on the third counted call (from 1); default: on none
//   FAULT_DO=fail       what to do: fail with EIO; "kill": SIGKILL before the call; "wait5000": delay it by 5000 ms
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
#include <unistd.h>

enum { FILES = 1024 };
static char *watched[FILES];    // by file descriptor: its path, or NULL
static _Atomic int counted;
static int log_fd = -1;

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

// Logs a watched call, and may delay it or kill the process. Returns whether the call must fail, and sets errno.
static bool fails(const char *call, const char *path, long long bytes)
{
    const char *only = getenv("FAULT_CALL"), *at = getenv("FAULT_AT"), *what = getenv("FAULT_DO");
    bool counts = !only || strcmp(only, call) == 0;
    note(call, path, bytes);
    if (!counts || !at || ++counted != atoi(at))
        return false;
    if (strcmp(what, "kill") == 0)
        raise(SIGKILL);
    if (strncmp(what, "wait", 4) == 0)
        usleep(1000 * (useconds_t)atoi(what + 4));
    errno = EIO;
    return strcmp(what, "fail") == 0;
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
    if (watches(path) && fails("open", path, -1))
        return -1;
    return opened(REAL(open)(path, flags, mode), path);
}

ssize_t write(int fd, const void *bytes, size_t size)
{
    const char *path = path_of(fd);
    if (path && fails("write", path, (long long)size))
        return -1;
    return REAL(write)(fd, bytes, size);
}

ssize_t read(int fd, void *to, size_t size)
{
    const char *path = path_of(fd), *only = getenv("FAULT_CALL");
    if (path && only && strcmp(only, "read") == 0 && fails("read", path, (long long)size))
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

// The C library's streams do not call the functions of this file, so a watched file gets a stream that calls them.
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
    if (path && fails("fsync", path, -1))
        return -1;
    return REAL(fsync)(fd);
}

// A close that fails still closes the descriptor, as on Linux.
int close(int fd)
{
    const char *path = path_of(fd);
    bool fail = path && fails("close", path, -1);
    if (path) {
        free(watched[fd]);
        watched[fd] = NULL;
    }
    int result = REAL(close)(fd);
    errno = fail ? EIO : errno;
    return fail ? -1 : result;
}

int rename(const char *from, const char *to)
{
    if ((watches(from) || watches(to)) && fails("rename", to, -1))
        return -1;
    return REAL(rename)(from, to);
}

int unlink(const char *path)
{
    if (watches(path) && fails("unlink", path, -1))
        return -1;
    return REAL(unlink)(path);
}
