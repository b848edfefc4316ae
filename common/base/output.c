// output.c - claims the files of a run, and replaces files so that a crash cannot damage them:
//
//   write path.tmp, fsync it    after a crash: the old file, and half a new one beside it, which
//                               the next save replaces
//   rename it to path           the old one or the new one
//   fsync the directory         the new one, even after a power failure
#include "output.h"
#include "progress.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

// Lock files, to be removed when the process ends: for --save's FILE and FILE.best, and for
// --predictions.
static char locks[4][PATH_MAX];
static atomic_int lock_count;

static char temporary[PATH_MAX];            // the file that is being written: one at a time
static int temporary_fd;
static atomic_bool is_there;                // `temporary` exists: a failing program removes it

static const char directory_hint[] = "give a file in a directory that exists and is writable";

// Also called by signal handlers: only async-signal-safe calls.
static void remove_files(void)
{
    static atomic_flag once = ATOMIC_FLAG_INIT;
    bool again = atomic_flag_test_and_set(&once);   // not twice: the locks may be a later run's
    for (int i = 0; i < lock_count && !again; i++)
        unlink(locks[i]);
    if (atomic_exchange(&is_there, false))
        unlink(temporary);
}

static bool failed(const char *path, const char *call, const char *hint, Error *err)
{
    return error_set(err, hint, "%.200s: %s: %s", path, call, strerror(errno));
}

static const char *split(const char *path, char directory[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    snprintf(directory, PATH_MAX, "%.*s", slash ? (int)(slash - path + 1) : 1, slash ? path : ".");
    return slash ? slash + 1 : path;
}

// A file of a kind has `start` at byte `at`.
static const struct {
    const char *name, *start;
    size_t length, at;
} kinds[] = {
    [OUTPUT_CHECKPOINT] = { "a checkpoint", "\0\0\0\0\0{", 6, 3 },  // bytes 0-7: header's length
    [OUTPUT_EVENTS] = { "a metrics file", "{\"event\":", 9, 0 },
    [OUTPUT_TIMELINE] = { "a timeline", "[\n{\"ph\":", 8, 0 },
    [OUTPUT_TABLE] = { "a table of results", "index,label,", 12, 0 },
    [OUTPUT_RENDEZVOUS] = { "a rendezvous file", "ddp.c rendezvous", 16, 0 },
};

// Is the file empty, or of this kind? It may be short, if its writer was killed.
static bool is_kind(const char *path, OutputKind kind)
{
    char bytes[16];
    size_t at = kinds[kind].at;
    FILE *in = fopen(path, "re");
    if (!in)
        return false;
    size_t n = fread(bytes, 1, at + kinds[kind].length, in);
    fclose(in);
    return n == 0 || (n > at && memcmp(bytes + at, kinds[kind].start, n - at) == 0);
}

bool output_claim(const char *path, OutputKind kind, Error *err)
{
    struct stat st;
    PROGRESS_DOING("opening", path);
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || is_kind(path, kind))
        return true;
    return error_set(err, "give another file name, or remove this file",
                     "%.400s exists, and cannot be read as %s", path, kinds[kind].name);
}

enum { TRIES = 30, MS = 100 };      // 3 s

bool output_hold(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return true;
    for (int i = 0; i < TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
            return true;
        usleep(1000 * MS);
    }
    return false;
}

// Opens the file and locks it. If the run that held the lock has removed the file meanwhile, tries
// again. On a file system without locks, succeeds.
static int open_locked(const char *path)
{
    for (;;) {
        struct stat opened, there;
        int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
        bool held = fd >= 0 && output_hold(fd);
        if (held && fstat(fd, &opened) == 0 && stat(path, &there) == 0 &&
            opened.st_dev == there.st_dev && opened.st_ino == there.st_ino)
            return fd;
        if (fd < 0)
            return -1;
        close(fd);
        errno = EWOULDBLOCK;
        if (!held)
            return -1;
    }
}

// May rename() replace the file? In /tmp and the like only the file's or the directory's owner or
// root may.
static bool may_replace(const char *path)
{
    struct stat file, folder;
    char directory[PATH_MAX];
    split(path, directory);
    return lstat(path, &file) != 0 || stat(directory, &folder) != 0 ||
           !(folder.st_mode & S_ISVTX) || geteuid() == 0 || geteuid() == file.st_uid ||
           geteuid() == folder.st_uid;
}

bool output_lock(const char *path, OutputKind kind, Error *err)
{
    struct stat st;
    char lock[PATH_MAX];
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return error_set(err, "only a regular file can be replaced; give another file name",
                         "%.400s is not a regular file but a %s", path,
                         S_ISLNK(st.st_mode) ? "link" : S_ISDIR(st.st_mode) ? "directory"
                         : S_ISFIFO(st.st_mode) ? "pipe" : "device or socket");
    if (!output_claim(path, kind, err))
        return false;
    if (!may_replace(path))
        return error_set(err, "give another file name", "%.400s belongs to another user, and its "
                         "directory allows you to replace only your own files", path);
    if (snprintf(lock, sizeof lock, "%s.lock", path) >= (int)sizeof lock)
        return error_set(err, "", "%.80s...: the path is too long", path);
    if (open_locked(lock) < 0)      // the lock lasts until the process ends
        return errno == EWOULDBLOCK
                   ? error_set(err, "give each run a file of its own", "another run is writing "
                               "%.400s: it holds the lock %.400s.lock", path, path)
                   : failed(path, "cannot create its lock file", directory_hint, err);
    memcpy(locks[lock_count], lock, sizeof lock);
    lock_count++;
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
    char directory[PATH_MAX];
    split(path, directory);
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

// After a failure. If the file is gone already, a different thread or a signal handler is ending
// the program, so this thread waits.
static void discard_temporary(void)
{
    if (!atomic_exchange(&is_there, false))
        for (;;)
            pause();
    unlink(temporary);
}

bool replace_commit(FILE *file, const char *path, Error *err)
{
    const char *call = sync_and_rename(file, path);
    bool ok = !call || failed(path, call, "a previous version of the file is unharmed", err);
    if (!ok)
        discard_temporary();
    atomic_store(&is_there, false);
    fclose(file);
    if (ok && !sync_directory(path))
        ok = failed(path, "cannot sync its directory",
                    "the new file is complete; a power failure could bring back the old one", err);
    return ok;
}
