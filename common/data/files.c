// files.c - opens and reads files, plain or gzipped.
#include "data/files.h"
#include "progress.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool data_file_missing(const char *path)
{
    struct stat info;
    PROGRESS_DOING("looking for", path);
    return lstat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

int data_file_descriptor(const char *path, const char *hint, int64_t *size, Error *err)
{
    struct stat info;
    PROGRESS_DOING("opening", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        *size = info.st_size;
        return fd;
    }
    error_set(err, hint, "%s: %s", path, fd < 0 ? strerror(errno) : "not a regular file");
    if (fd >= 0)
        close(fd);
    return -1;
}

bool data_file_open(DataFile *file, const char *path, const char *hint, Error *err)
{
    *file = (DataFile){ .path = path, .hint = hint };
    int fd = data_file_descriptor(path, hint, &file->size, err);
    if (fd < 0)
        return false;
    file->gz = gzdopen(fd, "rb");
    CHECK(file->gz, "", "out of memory");
    gzbuffer(file->gz, 256 << 10);
    PROGRESS_DOING("reading", path);
    gzdirect(file->gz);             // reads the first bytes
    return true;
}

void data_file_close(DataFile *file) { gzclose(file->gz); }

static bool file_error(const DataFile *file, const char *otherwise, Error *err)
{
    int status;
    const char *why = gzerror(file->gz, &status);
    int64_t at = gztell(file->gz);
    return error_set(err, file->hint, "%s: reading failed at byte %lld%s: %s", file->path,
                     (long long)at, gzdirect(file->gz) ? "" : " of the uncompressed data",
                     status == Z_OK ? otherwise : status == Z_ERRNO ? strerror(errno) : why);
}

bool data_file_read(DataFile *file, void *to, size_t bytes, Error *err)
{
    const size_t most = 16 << 20;
    for (size_t done = 0; done < bytes;) {
        size_t left = bytes - done;
        PROGRESS_DOING("reading", file->path);
        int got = gzread(file->gz, (char *)to + done, (unsigned)(left < most ? left : most));
        if (got <= 0)
            return file_error(file, "the file is too short", err);
        file->crc = crc32_z(file->crc, (const uint8_t *)to + done, got);
        done += got;
    }
    return true;
}

bool data_file_end(DataFile *file, Error *err)
{
    uint8_t beyond;
    PROGRESS_DOING("reading", file->path);
    int got = gzread(file->gz, &beyond, 1), status;
    gzerror(file->gz, &status);
    return (got == 0 && status == Z_OK) || file_error(file, "the file is too long", err);
}

bool data_file_load(const char *path, FileBytes *to, Error *err)
{
    int64_t size;
    int fd = data_file_descriptor(path, "it must stay readable during the run", &size, err);
    if (fd < 0)
        return false;
    bool good = size <= 256 << 20 || error_set(err, "make it smaller, or remove it",
                                               "%s: the file is larger than 256 MiB", path);
    if (good) {
        PROGRESS_DOING("reading", path);
        to->size = 0;
        to->bytes = data_memory(to->bytes, &to->capacity, size);
        ssize_t got = 1;
        for (; got > 0 && to->size < (size_t)size; to->size += got > 0 ? got : 0)
            got = TEMP_FAILURE_RETRY(read(fd, to->bytes + to->size, size - to->size));
        good = got > 0 || error_set(err, "", "%s: %s", path, got < 0 ? strerror(errno)
                                    : "the file became shorter while it was read");
    }
    close(fd);
    return good;
}

void *data_memory(void *memory, size_t *capacity, size_t bytes)
{
    if (bytes <= *capacity && memory)
        return memory;
    free(memory);
    *capacity = bytes;
    return xmalloc(bytes + 1);
}
