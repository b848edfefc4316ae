// replace_file.c - writing so that a crash cannot hurt:
//
//   write path.tmp-PID-RANDOM, fsync it     after a crash: the old file, and a stray temporary
//                                           one, which the next run's replace_file_probe removes
//   rename it to path                       the old one or the new one
//   fsync the directory                     the new one, whatever happens
#include "base/replace_file.h"
#include "alive.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER; // one file at a time
static char temporary[PATH_MAX]; // what is being written now, for the way out of a failing program
static atomic_bool named;       // that is a whole name, and a file may be there
static atomic_int changing;     // the thread that makes or renames it at this moment; 0: none
static atomic_bool leaving;     // the program is on its way out: nobody is to make or rename it

// May take as long as the disk likes.
static int sync_file(int fd)
{
    alive_outside_begin();
    int status = fsync(fd);
    alive_outside_end();
    return status;
}

// The program may be on its way out in another thread, or in a signal handler there. Either that
// sees us at it and waits for us, or we see that, and stop.
static void change_begin(void)
{
    atomic_store(&changing, gettid());
    if (!atomic_load(&leaving))
        return;
    atomic_store(&changing, 0);
    for (;;)
        pause();
}

static void change_end(void) { atomic_store(&changing, 0); }

// On the way out: only what a signal handler may call. Who is interrupted in the middle of a change
// will not go on with it; and no disk holds up the way out for more than a second.
static void remove_temporary_for_good(void)
{
    atomic_store(&leaving, true);
    for (int ms = 0; ms < 1000; ms++) {
        int thread = atomic_load(&changing);
        if (thread == 0 || thread == gettid())
            break;
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    if (atomic_load(&named))
        unlink(temporary);
}

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
        if (n <= 0) {
            errno = n == 0 ? ENOSPC : errno;
            return false;
        }
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
    if (size > 0)
        memcpy(w->buffer + w->used, bytes, size);
    w->used += size;
    return true;
}

// What can be done about it.
static const char *hint_for(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return "make room; the file that was there before is whole";
    case EACCES:
    case EPERM:
    case EROFS:
    case ENOENT:
    case ENOTDIR:
        return "give a file in a directory that is there and can be written";
    case EFBIG:
        return "ulimit -f, or the file system, does not allow files of this size";
    case EISDIR:
        return "that is a directory; give the name of a file";
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
    int length = slash == NULL ? 1 : slash == path ? 1 : (int)(slash - path);
    snprintf(directory, PATH_MAX, "%.*s", length, slash ? path : ".");
}

// The directory that the file is in, opened.
static int open_directory(const char *path)
{
    char directory[PATH_MAX];
    directory_of(path, directory);
    return open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

// Creates the temporary file beside path, under a name at which nobody can have prepared a trap.
// From here on a failing program removes it, but never before its name is complete.
static int open_temporary(const char *path)
{
    uint64_t noise = 0;
    if (getrandom(&noise, sizeof noise, 0) < 0)
        return -1;
    change_begin();
    int fd = -1, n = snprintf(temporary, sizeof temporary, "%s.tmp-%d-%016llx", path, (int)getpid(),
                              (unsigned long long)noise);
    errno = ENAMETOOLONG;
    if (n < (int)sizeof temporary) {
        atomic_store(&named, true);
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        atomic_store(&named, fd >= 0);
    }
    change_end();
    return fd;
}

static bool rename_temporary(const char *path)
{
    change_begin();
    bool ok = rename(temporary, path) == 0;
    atomic_store(&named, !ok);
    change_end();
    return ok;
}

static void remove_temporary(void)
{
    change_begin();
    unlink(temporary);
    atomic_store(&named, false);
    change_end();
}

// From the open temporary file to its place at path. Closes fd.
static bool fill_and_rename(int fd, const char *path, bool (*fill)(FileWriter *w, const void *arg),
                            const void *arg, Error *err)
{
    char call[64] = "";
    FileWriter *w = xmalloc(sizeof *w);
    w->fd = fd;
    w->offset = w->used = 0;
    if (!fill(w, arg) || !writer_flush(w))
        snprintf(call, sizeof call, "write at byte %zu", w->offset);
    else if (sync_file(fd) != 0)
        snprintf(call, sizeof call, "fsync");
    free(w);
    int error = errno;
    if (close(fd) != 0 && !call[0]) {
        snprintf(call, sizeof call, "close");
        error = errno;
    }
    if (!call[0] && !rename_temporary(path)) {
        snprintf(call, sizeof call, "rename");
        error = errno;
    }
    errno = error;
    return !call[0] || failed(path, call, err);
}

static bool write_beside(const char *path, bool (*fill)(FileWriter *w, const void *arg),
                         const void *arg, Error *err)
{
    int directory = open_directory(path);
    if (directory < 0)
        return failed(path, "open its directory", err);
    int fd = open_temporary(path);
    if (fd < 0) {
        failed(path, "open a temporary file beside it", err);
        close(directory);
        return false;
    }
    bool ok = fill_and_rename(fd, path, fill, arg, err);
    if (!ok)
        remove_temporary();
    else if (sync_file(directory) != 0 && errno != EINVAL) { // EINVAL: not in this file system
        error_set(err, "the new file is whole and in place, but a power failure may undo that",
                  "%.200s: fsync of its directory: %s", path, strerror(errno));
        ok = false;
    }
    close(directory);
    return ok;
}

bool replace_file(const char *path, bool (*fill)(FileWriter *w, const void *arg), const void *arg,
                  Error *err)
{
    signal(SIGXFSZ, SIG_IGN); // a limit on file sizes (ulimit -f) is an error, not a death
    check_on_exit(remove_temporary_for_good);
    pthread_mutex_lock(&writing);
    bool ok = write_beside(path, fill, arg, err);
    pthread_mutex_unlock(&writing);
    return ok;
}

// --- before ---------------------------------------------------------------------------------------

// Is this name PATH.tmp-PID-RANDOM of a process that is no more? base: the last part of PATH.
static bool is_stray(const char *name, const char *base)
{
    size_t length = strlen(base);
    int pid, end = 0;
    if (strncmp(name, base, length) != 0 ||
        sscanf(name + length, ".tmp-%d-%*16[0-9a-f]%n", &pid, &end) != 1 || end == 0 ||
        name[length + (size_t)end] != '\0')
        return false;
    return pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

// A run that was killed while it saved has left its temporary file: nobody will rename that any
// more.
static void remove_strays(const char *path, const char *directory)
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    DIR *listing = opendir(directory);
    for (struct dirent *entry; listing && (entry = readdir(listing));)
        if (is_stray(entry->d_name, base))
            unlinkat(dirfd(listing), entry->d_name, 0);
    if (listing)
        closedir(listing);
}

bool replace_file_probe(const char *path, Error *err)
{
    char directory[PATH_MAX];
    struct stat st;
    bool there = lstat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode))
        return error_set(err, "name a file in it", "%.400s is a directory", path);
    if (there && !S_ISREG(st.st_mode))
        return error_set(err, "a file there would take its place; name another",
                         "%.400s is a link, a device or a pipe", path);
    directory_of(path, directory);
    if (access(directory, W_OK | X_OK) != 0)
        return failed(path, "open its directory", err);
    remove_strays(path, directory);
    return true;
}
