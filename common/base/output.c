// output.c - replaces files so that neither a crash nor another run can damage them:
//
//   write path.tmp, fsync it    after a crash: the old file, and half a new one beside it, which
//                               the next save replaces
//   rename it to path           the old one or the new one
//   fsync the directory         the new one, even after a power failure
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char lock[PATH_MAX], temporary[PATH_MAX];    // the file that is being written: one at a time
static int temporary_fd;
static atomic_bool is_locked, is_there;     // these files exist: a program that ends removes them

static const char directory_hint[] = "give a file in a directory that exists and is writable";

// Also called by signal handlers: only async-signal-safe calls.
static void remove_files(void)
{
    if (atomic_exchange(&is_locked, false))
        unlink(lock);
    if (atomic_exchange(&is_there, false))
        unlink(temporary);
}

static bool failed(const char *path, const char *call, const char *hint, Error *err)
{
    return error_set(err, hint, "%.200s: %s: %s", path, call, strerror(errno));
}

// A checkpoint begins with its header's length in 8 bytes, and "{". It may be empty, or not there.
static bool may_replace(const char *path, Error *err)
{
    struct stat st;
    char bytes[9];
    if (stat(path, &st) != 0)
        return true;
    FILE *in = S_ISREG(st.st_mode) ? fopen(path, "re") : NULL;
    size_t n = in ? fread(bytes, 1, sizeof bytes, in) : 0;
    if (in)
        fclose(in);
    if (in && (n == 0 || (n == sizeof bytes && memcmp(bytes + 3, "\0\0\0\0\0{", 6) == 0)))
        return true;
    return error_set(err, "give another file name, or remove this file",
                     "%.400s exists, and is not a checkpoint", path);
}

// Returns -1 if another run has locked the file, or with another errno if it cannot be created.
static int open_locked(void)
{
    struct stat opened, there;
    int fd = open(lock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    bool held = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    // The run that held the lock may have removed the file after `open`.
    if (held && fstat(fd, &opened) == 0 && stat(lock, &there) == 0 &&
        opened.st_dev == there.st_dev && opened.st_ino == there.st_ino)
        return fd;
    close(fd);
    errno = EWOULDBLOCK;
    return -1;
}

bool output_claim(const char *path, Error *err)
{
    enum { TRIES = 30, MS = 100 };
    char best[PATH_MAX];
    int fd = -1;
    if (snprintf(lock, sizeof lock, "%s.lock", path) >= (int)sizeof lock)
        return error_set(err, "", "%.80s...: the path is too long", path);
    snprintf(best, sizeof best, "%s.best", path);
    if (!may_replace(path, err) || !may_replace(best, err))
        return false;
    for (int i = 0; i < TRIES && (fd = open_locked()) < 0 && errno == EWOULDBLOCK; i++)
        usleep(1000 * MS);
    if (fd < 0)
        return errno == EWOULDBLOCK
                   ? error_set(err, "give each run a file of its own", "another run is writing "
                               "%.400s: it holds the lock %.400s.lock", path, path)
                   : failed(path, "cannot create its lock file", directory_hint, err);
    atomic_store(&is_locked, true);     // until the process ends: fd stays open
    check_on_exit(remove_files);
    atexit(remove_files);
    return true;
}

// Never writes to a link or file that was planted under the name path.tmp.
FILE *replace_open(const char *path, Error *err)
{
    enum { FLAGS = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC };
    check_on_exit(remove_files);
    temporary_fd = -1;
    errno = ENAMETOOLONG;
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) < (int)sizeof temporary) {
        unlink(temporary);      // a killed run may have left it
        temporary_fd = open(temporary, FLAGS, 0644);
        atomic_store(&is_there, temporary_fd >= 0);
    }
    FILE *file = temporary_fd >= 0 ? fdopen(temporary_fd, "w") : NULL;
    if (!file)
        failed(path, "cannot create a temporary file next to it", directory_hint, err);
    return file;
}

static bool sync_directory(const char *path)
{
    const char *slash = strrchr(path, '/');
    char directory[PATH_MAX];
    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - path + 1) : 1,
             slash ? path : ".");
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);   // EINVAL: not for directories
    if (fd >= 0)
        close(fd);
    return ok;
}

// Returns NULL, or the name of the call that failed.
static const char *sync_and_rename(FILE *file, const char *path)
{
    if (ferror(file) || fflush(file) != 0)
        return "write";
    if (fsync(temporary_fd) != 0)
        return "fsync";
    return rename(temporary, path) == 0 ? NULL : "rename";
}

bool replace_commit(FILE *file, const char *path, Error *err)
{
    const char *call = sync_and_rename(file, path);
    bool ok = !call || failed(path, call, "a previous version of the file is unharmed", err);
    while (!ok && !atomic_exchange(&is_there, false))
        pause();                // it is gone: another thread is ending the program
    if (!ok)
        unlink(temporary);
    atomic_store(&is_there, false);
    fclose(file);
    if (ok && !sync_directory(path))
        ok = failed(path, "cannot sync its directory",
                    "the new file is complete; a power failure could bring back the old one", err);
    return ok;
}
