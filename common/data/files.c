// files.c - reads files; memory and checksum of a data set.
#include "progress.h"
#include "data/formats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

bool data_file_missing(const char *path)
{
    struct stat info;
    PROGRESS_DOING("looking for", path);
    return lstat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

int data_file_descriptor(const char *path, int64_t *size, Error *err)
{
    struct stat info;
    PROGRESS_DOING("opening", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        *size = info.st_size;
        return fd;
    }
    error_set(err, "", "%s: %s", path, fd < 0 ? strerror(errno) : "not a regular file");
    if (fd >= 0)
        close(fd);
    return -1;
}

bool data_file_load(const char *path, int most, FileBytes *to, Error *err)
{
    int64_t size;
    ssize_t got = 1;
    int fd = data_file_descriptor(path, &size, err);
    if (fd < 0)
        return false;
    to->size = 0;
    if (size <= most) {
        PROGRESS_DOING("reading", path);
        to->bytes = data_memory(to->bytes, &to->capacity, size);
        for (; got > 0 && to->size < (size_t)size; to->size += got > 0 ? got : 0)
            got = TEMP_FAILURE_RETRY(read(fd, to->bytes + to->size, size - to->size));
    }
    if (size > most)
        error_set(err, "", "%s is too large: more than %d MiB", path, most >> 20);
    else if (got <= 0)
        error_set(err, "", "%s: %s", path, got < 0 ? strerror(errno)
                  : "the file became shorter while it was read");
    close(fd);
    return size <= most && got > 0;
}

void *data_memory(void *memory, size_t *capacity, size_t bytes)
{
    if (bytes <= *capacity && memory)
        return memory;
    free(memory);
    *capacity = bytes;
    return xmalloc(bytes + 1);
}

void data_checksum(Data *data, const void *bytes, size_t size)
{
    data->checksum = crc32_z(data->checksum, bytes, size);
}

bool dataset_alloc(Dataset *set, int count, int channels, int height, int width, Error *err)
{
    size_t bytes = (size_t)count * channels * height * width;
    *set = (Dataset){ .count = count, .channels = channels, .height = height, .width = width,
                      .classes = set->classes, .per_row = 1 };
    set->inputs = malloc(bytes);
    set->labels = malloc(count * sizeof *set->labels);
    return (set->inputs && set->labels) ||
           error_set(err, "if images are synthetic, use a smaller --train-samples, --test-samples "
                     "or --image-size",
                     "out of memory: %d images of %dx%dx%d need %zu MiB", count, channels, height,
                     width, bytes >> 20);
}
