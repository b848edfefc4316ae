// output.c - claims the files of a run, and replaces files so that a crash cannot damage them:
//
//   write path.tmp, fsync it    after a crash: the old file, and half a new one beside it, which
//                               the next save replaces
//   rename it to path           the old one or the new one
//   fsync the directory         the new one, even after a power failure
#include "base/output.h"
#include "alive.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CLAIMS = 16, LOCKS = 3 };
static char claims[CLAIMS][PATH_MAX];       // absolute paths
static int claim_count;
static char locks[LOCKS][PATH_MAX];         // lock files, to be removed when the process ends
static atomic_int lock_count;

static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER; // one file at a time
static char temporary[PATH_MAX];            // the file that is being written
static int temporary_fd;
static atomic_bool is_there;                // we have created it: a failing program removes it

// Called when the process ends, also by signal handlers: only async-signal-safe calls.
static void remove_files(void)
{
    for (int i = atomic_exchange(&lock_count, 0); i > 0; i--)
        unlink(locks[i - 1]);
    if (atomic_exchange(&is_there, false))
        unlink(temporary);
}

static bool failed(const char *path, const char *call, const char *hint, Error *err)
{
    return error_set(err, hint, "%.200s: %s: %s", path, call, strerror(errno));
}

// --- claims --------------------------------------------------------------------------------------

static const struct {
    const char *name, *start;   // NULL: recognised by its header
} kinds[] = {
    [OUTPUT_CHECKPOINT] = { "a checkpoint", NULL },
    [OUTPUT_EVENTS] = { "a file of --metrics", "{\"event\":" },
    [OUTPUT_TIMELINE] = { "a timeline", "[\n{\"ph\":" },
    [OUTPUT_TABLE] = { "a table of results", "index,label," },
    [OUTPUT_OTHER] = { "a file of another kind", "" },
};

// The kind of a file's content. Returns false if it has none: the file is empty, a device or a
// pipe, or not there.
static bool kind_of(const char *path, OutputKind *kind)
{
    struct stat st;
    uint64_t header = 0;
    char start[16] = "";
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
        return false;
    FILE *in = fopen(path, "re");
    size_t n = in ? fread(start, 1, sizeof start, in) : 0;
    if (in)
        fclose(in);
    memcpy(&header, start, sizeof header);
    *kind = OUTPUT_OTHER;
    if (n > 8 && start[8] == '{' && header < (uint64_t)st.st_size)
        *kind = OUTPUT_CHECKPOINT;
    for (OutputKind k = OUTPUT_EVENTS; k < OUTPUT_OTHER; k++) {
        size_t length = strlen(kinds[k].start);
        if (n > 0 && memcmp(start, kinds[k].start, n < length ? n : length) == 0)
            *kind = k;
    }
    return true;
}

// The absolute path, also of a file that is not there yet.
static bool absolute(const char *path, char out[PATH_MAX])
{
    char directory[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (realpath(path, out))
        return true;
    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - path + 1) : 1,
             slash ? path : ".");
    if (errno != ENOENT || !realpath(directory, out))
        return false;
    size_t n = strlen(out);
    return snprintf(out + n, PATH_MAX - n, "/%s", slash ? slash + 1 : path) < (int)(PATH_MAX - n);
}

static bool claim_name(const char *path, Error *err)
{
    struct stat st;
    char name[PATH_MAX];
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return true;
    if (!absolute(path, name))
        return true;            // no such directory: opening the file will fail
    for (int i = 0; i < claim_count; i++)
        if (strcmp(claims[i], name) == 0)
            return error_set(err, "give each option a file of its own",
                             "%.400s: this run already writes to that file", path);
    CHECK(claim_count < CLAIMS, "", "more than %d output files", CLAIMS);
    snprintf(claims[claim_count++], PATH_MAX, "%s", name);
    return true;
}

bool output_claim(const char *path, OutputKind kind, Error *err)
{
    OutputKind there;
    if (kind_of(path, &there) && there != kind)
        return error_set(err, "name another file, or remove this one", "%.400s is %s, not %s", path,
                         kinds[there].name, kinds[kind].name);
    return claim_name(path, err);
}

// Opens the file and locks it. A run that has just been killed may take a moment to end. A file
// that its owner removed meanwhile does not count. A file system without locks refuses nobody.
static int open_locked(const char *path)
{
    enum { TRIES = 30, MS = 100 };
    for (int i = 0; i < TRIES; i++) {
        struct stat opened, there;
        int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
        if (fd < 0)
            return -1;
        bool taken = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (!taken && fstat(fd, &opened) == 0 && stat(path, &there) == 0 &&
            opened.st_dev == there.st_dev && opened.st_ino == there.st_ino)
            return fd;
        close(fd);
        if (taken)
            usleep(1000 * MS);
    }
    errno = EWOULDBLOCK;
    return -1;
}

static bool lock(const char *path, Error *err)
{
    CHECK(lock_count < LOCKS, "", "more than %d locks", LOCKS);
    char *name = locks[lock_count];
    if (snprintf(name, PATH_MAX, "%s.lock", path) >= PATH_MAX)
        return error_set(err, "", "%.80s...: the path is too long", path);
    if (open_locked(name) < 0)      // it stays open until the process ends
        return errno == EWOULDBLOCK
                   ? error_set(err, "give each run a file of its own", "%.400s: another run writes "
                               "to it and holds %.400s.lock", path, path)
                   : failed(path, "open a lock file beside it",
                            "give a file in a directory that exists and is writable", err);
    if (lock_count++ == 0) {
        check_on_exit(remove_files);
        atexit(remove_files);
    }
    return true;
}

bool output_lock(const char *path, OutputKind kind, Error *err)
{
    struct stat st;
    char beside[PATH_MAX];
    bool there = lstat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode))
        return error_set(err, "name a file in it", "%.400s is a directory", path);
    if (there && !S_ISREG(st.st_mode))
        return error_set(err, "this run would replace it; name another file",
                         "%.400s is a link, a device or a pipe", path);
    if (!output_claim(path, kind, err) || !lock(path, err))
        return false;
    snprintf(beside, sizeof beside, "%s.tmp", path);
    return claim_name(beside, err) && claim_name(locks[lock_count - 1], err);
}

// --- replacing -----------------------------------------------------------------------------------

// It may take any time, so the watchdog expects no beats.
static int sync_file(int fd)
{
    alive_outside_begin();
    int status = fsync(fd);
    alive_outside_end();
    return status;
}

// Always creates a new file: never writes to a link or file that was planted under this name.
FILE *replace_open(const char *path, Error *err)
{
    enum { FLAGS = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC };
    signal(SIGXFSZ, SIG_IGN);   // a limit on file sizes (ulimit -f) is then an error, not a kill
    check_on_exit(remove_files);
    pthread_mutex_lock(&writing);
    temporary_fd = -1;
    errno = ENAMETOOLONG;
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) < (int)sizeof temporary) {
        unlink(temporary);      // a killed run has left it
        temporary_fd = open(temporary, FLAGS, 0644);
        atomic_store(&is_there, temporary_fd >= 0);
    }
    FILE *file = temporary_fd >= 0 ? fdopen(temporary_fd, "w") : NULL;
    if (!file) {
        failed(path, "open a temporary file beside it",
               "give a file in a directory that exists and is writable", err);
        pthread_mutex_unlock(&writing);
    }
    return file;
}

static bool sync_directory(const char *path)
{
    char directory[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - path + 1) : 1,
             slash ? path : ".");
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && (sync_file(fd) == 0 || errno == EINVAL);  // EINVAL: it has no fsync
    if (fd >= 0)
        close(fd);
    return ok;
}

// NULL, or the call that failed.
static const char *sync_and_rename(FILE *file, const char *path)
{
    OutputKind old, new;
    if (ferror(file) || fflush(file) != 0)
        return "write";
    if (sync_file(temporary_fd) != 0)
        return "fsync";
    errno = EEXIST;             // a file that another program wrote during the run
    if (kind_of(path, &old) && kind_of(temporary, &new) && old != new)
        return "replace a file of another kind";
    return rename(temporary, path) == 0 ? NULL : "rename";
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

bool replace_commit(FILE *file, const char *path, Error *err)
{
    const char *call = sync_and_rename(file, path);
    bool ok = !call || failed(path, call, "the file that was there before is whole", err);
    if (!ok)
        discard_temporary();
    atomic_store(&is_there, false);
    fclose(file);
    if (ok && !sync_directory(path))
        ok = failed(path, "fsync of its directory",
                    "the new file is whole and in place, but a power failure may undo that", err);
    pthread_mutex_unlock(&writing);
    return ok;
}
