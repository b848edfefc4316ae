// replace_file.c - writes a file so that a crash cannot damage it:
//
//   write path.tmp, fsync it    after a crash: the old file, and half a new one beside it, which
//                               the next save replaces
//   rename it to path           the old one or the new one
//   fsync the directory         the new one, even after a power failure
//
// The writer holds a lock on path.tmp. The kernel drops that lock with its process, and file
// servers pass it between hosts. So a second run that saves to the same path is refused, on any
// host, and the temporary file of a killed run is simply replaced.
#include "base/replace_file.h"
#include "alive.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER; // one file at a time
static char temporary[PATH_MAX];    // the file that is being written
static atomic_bool is_there;        // we have created it: a failing program removes it

struct FileWriter {
    int fd;
    size_t offset;          // bytes handed to write() so far
    size_t used;            // bytes waiting in the buffer
    unsigned char buffer[1 << 16];
};

static bool write_through(FileWriter *w, const unsigned char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = write(w->fd, bytes, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        bytes += n;
        size -= (size_t)n;
        w->offset += (size_t)n;
        alive_beat();
    }
    return true;
}

static bool writer_flush(FileWriter *w)
{
    size_t used = w->used;
    w->used = 0;
    return write_through(w, w->buffer, used);
}

bool writer_add(FileWriter *w, const void *bytes, size_t size)
{
    if (size > sizeof w->buffer - w->used && !writer_flush(w))
        return false;
    if (size > sizeof w->buffer)
        return write_through(w, bytes, size);
    if (size > 0)               // bytes may be NULL
        memcpy(w->buffer + w->used, bytes, size);
    w->used += size;
    return true;
}

// It may take any time, so the watchdog expects no beats.
static int sync_file(int fd)
{
    alive_outside_begin();
    int status = fsync(fd);
    alive_outside_end();
    return status;
}

// Called when the process ends, also by signal handlers: only async-signal-safe calls.
static void remove_temporary(void)
{
    if (atomic_exchange(&is_there, false))
        unlink(temporary);
}

static const char *hint_for(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return "make room; the file that was there before is whole";
    case EACCES:
    case EROFS:
    case ENOENT:
        return "give a file in a directory that exists and is writable";
    case EFBIG:
        return "ulimit -f, or the file system, does not allow files of this size";
    case EWOULDBLOCK:
        return "another run saves to this file: give each its own";
    default:
        return "the file that was there before is whole";
    }
}

static bool failed(const char *path, const char *call, Error *err)
{
    return error_set(err, hint_for(errno), "%.200s: %s: %s", path, call, strerror(errno));
}

static void directory_of(const char *path, char directory[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    int length = slash > path ? (int)(slash - path) : 1;
    snprintf(directory, PATH_MAX, "%.*s", length, slash ? path : ".");
}

// Locks the file for this process. A file system without locks cannot refuse a second writer.
static bool lock(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno == ENOSYS || errno == EOPNOTSUPP ||
           errno == ENOLCK;
}

// Removes the file that a killed run has left. Fails if that run is still alive.
static bool remove_stray(void)
{
    int fd = open(temporary, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool ours = lock(fd) && (unlink(temporary) == 0 || errno == ENOENT);
    int error = errno;
    close(fd);
    errno = error;
    return ours;
}

// Always creates a new file: never writes to a link or file that was planted under this name.
static int open_temporary(const char *path)
{
    enum { FLAGS = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC };
    errno = ENAMETOOLONG;
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) >= (int)sizeof temporary)
        return -1;
    int fd = open(temporary, FLAGS, 0644);
    if (fd < 0 && errno == EEXIST && remove_stray())
        fd = open(temporary, FLAGS, 0644);
    if (fd >= 0 && !lock(fd)) {
        close(fd);
        errno = EWOULDBLOCK;
        return -1;
    }
    atomic_store(&is_there, fd >= 0);
    return fd;
}

// After a failure. If the file is gone already, a different thread or a signal handler is ending
// the program and reports why.
static void discard_temporary(void)
{
    if (!atomic_exchange(&is_there, false))
        for (;;)
            pause();
    unlink(temporary);
}

// Writes the open temporary file and renames it to path. fd has the lock, so it stays open until
// then.
static bool fill_and_rename(int fd, const char *path, bool (*fill)(FileWriter *w, const void *arg),
                            const void *arg, Error *err)
{
    char call[64] = "";
    FileWriter *w = xcalloc(1, sizeof *w);
    w->fd = fd;
    if (!fill(w, arg) || !writer_flush(w))
        snprintf(call, sizeof call, "write at byte %zu", w->offset);
    else if (sync_file(fd) != 0)
        snprintf(call, sizeof call, "fsync");
    else if (rename(temporary, path) != 0)
        snprintf(call, sizeof call, "rename");
    bool ok = !call[0] || failed(path, call, err);
    free(w);
    if (!ok)
        discard_temporary();
    atomic_store(&is_there, false);
    close(fd);
    return ok;
}

static bool write_beside(const char *path, bool (*fill)(FileWriter *w, const void *arg),
                         const void *arg, Error *err)
{
    char name[PATH_MAX];
    directory_of(path, name);
    int directory = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return failed(path, "open its directory", err);
    int fd = open_temporary(path);
    bool ok = fd >= 0 ? fill_and_rename(fd, path, fill, arg, err)
                      : failed(path, "open a temporary file beside it", err);
    if (ok && sync_file(directory) != 0 && errno != EINVAL)     // EINVAL: not in this file system
        ok = error_set(err, "the new file is whole and in place, but a power failure may undo that",
                       "%.200s: fsync of its directory: %s", path, strerror(errno));
    close(directory);
    return ok;
}

bool replace_file(const char *path, bool (*fill)(FileWriter *w, const void *arg), const void *arg,
                  Error *err)
{
    signal(SIGXFSZ, SIG_IGN); // a limit on file sizes (ulimit -f) is then an error, not a kill
    check_on_exit(remove_temporary);
    pthread_mutex_lock(&writing);
    bool ok = write_beside(path, fill, arg, err);
    pthread_mutex_unlock(&writing);
    return ok;
}

bool replace_file_probe(const char *path, Error *err)
{
    char directory[PATH_MAX];
    struct stat st;
    bool there = lstat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode))
        return error_set(err, "name a file in it", "%.400s is a directory", path);
    if (there && !S_ISREG(st.st_mode))
        return error_set(err, "saving would replace it; name another file",
                         "%.400s is a link, a device or a pipe", path);
    directory_of(path, directory);
    return access(directory, W_OK | X_OK) == 0 || failed(path, "open its directory", err);
}
