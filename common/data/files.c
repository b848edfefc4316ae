// files.c - what the readers of all formats share: files, memory, threads, checksums.
#include "data/files.h"
#include "alive.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// --- files ---------------------------------------------------------------------------------------

bool data_path_join(char *path, size_t size, const char *dir, const char *name, Error *err)
{
    if (snprintf(path, size, "%s/%s", dir, name) < (int)size)
        return true;
    return error_set(err, "a shorter one, or a link to it", "%.80s...: the path is too long", dir);
}

bool data_file_missing(const char *path)
{
    struct stat info;
    return lstat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

bool data_file_open(DataFile *file, const char *path, const char *hint, Error *err)
{
    *file = (DataFile){ .path = path, .hint = hint };
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (file->fd < 0)
        return error_set(err, hint, "%s: open: %s", path, strerror(errno));
    struct stat info;
    bool known = fstat(file->fd, &info) == 0;
    if (known && S_ISREG(info.st_mode)) {
        file->size = info.st_size;
        return true;
    }
    if (known)
        error_set(err, hint, "%s: %s where a file should be", path,
                  S_ISDIR(info.st_mode) ? "a directory" : "something else (a pipe, a device)");
    else
        error_set(err, hint, "%s: fstat: %s", path, strerror(errno));
    close(file->fd);
    return false;
}

void data_file_close(DataFile *file) { close(file->fd); }

bool data_file_read(const DataFile *file, int64_t offset, void *to, size_t bytes, Error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(file->fd, (char *)to + done, bytes - done, offset + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return error_set(err, file->hint, "%s: read at byte %lld: %s", file->path,
                             (long long)offset + (long long)done,
                             got < 0 ? strerror(errno) : "the file became shorter");
        done += (size_t)got;
        alive_beat();
    }
    return true;
}

// --- memory and threads --------------------------------------------------------------------------

uint8_t *data_images_alloc(size_t bytes)
{
    const size_t huge_page = 2 << 20;
    void *memory = NULL;
    if (bytes < huge_page)
        return malloc(bytes ? bytes : 1);
    if (posix_memalign(&memory, huge_page, bytes) != 0)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE); // a wish: that it fails does not matter
    return memory;
}

typedef struct TaskThread {
    DataTask task;
    void *arg;
    int index;
    pthread_t thread;
    bool threaded, good;
    Error err;
} TaskThread;

static void *task_run(void *arg)
{
    TaskThread *t = arg;
    t->good = t->task(t->arg, t->index, &t->err);
    return NULL;
}

bool data_parallel(DataTask task, void *arg, int count, Error *err)
{
    TaskThread *tasks = xcalloc((size_t)count, sizeof *tasks);
    for (int i = 0; i < count; i++) {
        tasks[i] = (TaskThread){ .task = task, .arg = arg, .index = i };
        tasks[i].threaded = pthread_create(&tasks[i].thread, NULL, task_run, &tasks[i]) == 0;
        if (!tasks[i].threaded)
            task_run(&tasks[i]); // slower, but no reason to give up
    }
    bool good = true;
    for (int i = 0; i < count; i++) {
        if (tasks[i].threaded)
            pthread_join(tasks[i].thread, NULL);
        if (good && !tasks[i].good) {
            *err = tasks[i].err;
            good = false;
        }
    }
    free(tasks);
    return good;
}

// --- the fingerprint -----------------------------------------------------------------------------

// FNV-1a.
void data_checksum_all(Data *data, const void *bytes, size_t size)
{
    const uint8_t *p = bytes;
    for (size_t i = 0; i < size; i++)
        data->checksum = (data->checksum ^ p[i]) * 1099511628211u;
}

void data_checksum_samples(Data *data, const void *bytes, size_t size)
{
    const size_t sample = 4 << 10;
    data_checksum_all(data, &(uint64_t){ size }, sizeof(uint64_t));
    if (size <= 3 * sample) {
        data_checksum_all(data, bytes, size);
        return;
    }
    for (size_t place = 0; place < 3; place++)
        data_checksum_all(data, (const char *)bytes + (size - sample) / 2 * place, sample);
}
