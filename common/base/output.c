// output.c - replaces files so that neither a crash nor another run can damage them:
//
//   step                        what a crash leaves
//   write path.tmp, fsync it    the old file, and half a new one in path.tmp, which the next save
//                               replaces
//   rename it to path           the old file or the new one
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char lock[PATH_MAX];             // the lock file of output_claim
static char temporary[PATH_MAX];        // the file that is being written: one at a time
static int temporary_fd;

static const char directory_hint[] = "give a file in a directory that exists and is writable";

static bool failed(const char *path, const char *what, const char *hint, Error *err)
{
    return error_set(err, hint, "%.200s: %s: %s", path, what, strerror(errno));
}

// Is there no file, an empty one, or a checkpoint? A checkpoint begins with its header's length in
// 8 bytes, and "{".
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
    return error_set(err, "give a different file name, or remove this file",
                     "%.400s exists, but is not a readable checkpoint", path);
}

static void remove_lock(void) { unlink(lock); }

bool output_claim(const char *path, Error *err)
{
    char best[PATH_MAX];
    snprintf(best, sizeof best, "%s.best", path);
    snprintf(lock, sizeof lock, "%s.lock", path);
    if (!may_replace(path, err) || !may_replace(best, err))
        return false;
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0644);    // stays open until the process ends
    if (fd < 0)
        return failed(path, "cannot create its lock file", directory_hint, err);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return error_set(err, "give each run a file of its own", "another run is writing %.400s: "
                         "it holds the lock %.400s.lock", path, path);
    }
    atexit(remove_lock);
    return true;
}

bool replace_can(const char *path, Error *err)
{
    char name[PATH_MAX];
    struct stat st;
    snprintf(name, sizeof name, "%s", path);
    errno = EISDIR;
    bool folder = !*path || path[strlen(path) - 1] == '/' ||
                  (stat(path, &st) == 0 && S_ISDIR(st.st_mode));
    return (!folder && access(dirname(name), W_OK) == 0) ||
           failed(path, "cannot create this file", directory_hint, err);
}

FILE *replace_open(const char *path, Error *err)
{
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    unlink(temporary);                  // a run that was killed may have left it
    temporary_fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    FILE *file = temporary_fd >= 0 ? fdopen(temporary_fd, "w") : NULL;
    if (!file)
        failed(path, "cannot create a temporary file next to it", directory_hint, err);
    return file;
}

// Returns NULL, or what has failed.
static const char *sync_and_rename(FILE *file, const char *path)
{
    if (ferror(file) || fflush(file) != 0)
        return "cannot write";
    if (fsync(temporary_fd) != 0)
        return "cannot fsync";
    return rename(temporary, path) == 0 ? NULL : "cannot rename its temporary file";
}

bool replace_commit(FILE *file, const char *path, Error *err)
{
    const char *what = sync_and_rename(file, path);
    if (what) {
        failed(path, what, "check the disk; a previous version of the file is unharmed", err);
        unlink(temporary);
    }
    fclose(file);
    return !what;
}
