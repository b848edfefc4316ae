// files.c - reads files; memory and checksum of a data set.
#include "progress.h"
#include "data/formats.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

bool data_file_missing(const char *path)
{
    struct stat info;
    PROGRESS_DOING("looking for", path);
    return lstat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

// Reads a whole file, gzipped or plain: gzread reads both.
bool data_file_load(const char *path, size_t most, FileBytes *to, Error *err)
{
    enum { CHUNK = 1 << 20 };
    int got = 1, status;
    PROGRESS_DOING("reading", path);
    gzFile in = gzopen(path, "rbe");
    if (!in)
        return error_set(err, "", "%s: %s", path, strerror(errno));
    for (to->size = 0; got > 0 && to->size <= most; to->size += (size_t)got) {
        if (to->capacity - to->size < CHUNK) {
            to->capacity = 2 * to->capacity + CHUNK;
            to->bytes = realloc(to->bytes, to->capacity);
            CHECK(to->bytes, "", "out of memory: no room for %s", path);
        }
        got = gzread(in, to->bytes + to->size, CHUNK);
        got = got > 0 ? got : 0;
    }
    const char *why = gzerror(in, &status);     // the text begins with the path
    bool good = status == Z_OK && to->size <= most;
    if (status != Z_OK)
        error_set(err, "", "%s", why);
    else if (!good)
        error_set(err, "", "%s is too large: more than %zu MiB", path, most >> 20);
    gzclose(in);
    return good;
}

void data_checksum(Data *data, const void *bytes, size_t size)
{
    data->checksum = crc32_z(data->checksum, bytes, size);
}

void dataset_alloc(Dataset *set, int count, int channels, int height, int width)
{
    *set = (Dataset){ .count = count, .channels = channels, .height = height, .width = width,
                      .classes = set->classes, .per_row = 1 };
    set->inputs = xmalloc((size_t)count * channels * height * width);
    set->labels = xmalloc(count * sizeof *set->labels);
}
