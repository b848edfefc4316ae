// idx.c - IDX files: MNIST (LeCun, Cortes, Burges), Fashion-MNIST (Xiao, Rasul, Vollgraf).
//
//   magic   0 0 8 d         8: unsigned bytes, d: number of dimensions
//   sizes   d big-endian 32-bit numbers: count[, height, width]
//   bytes   count [* height * width]
//
// The files may be gzipped.
#include "data/formats.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { SIZE = 28 };             // width and height of the images

static const char hint[] = "download the data set again";

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

// Reads a file of items of `bytes` bytes each. On return file->bytes begins with the first item.
static bool items_read(FileBytes *file, const char *path, int dimensions, size_t bytes, int *count,
                       uint32_t *crc, Error *err)
{
    const size_t header = 4 + 4 * (size_t)dimensions;
    const uint32_t magic = 0x0800 + (uint32_t)dimensions;
    if (!data_file_load(path, 1 << 30, file, err))
        return false;
    const uint8_t *at = file->bytes;
    if (file->size < header || big_endian(at) != magic)
        return error_set(err, hint, "%s is not an IDX file that begins with the number %08x",
                         path, magic);
    const uint32_t items = big_endian(at + 4);
    if (items == 0 || file->size != header + items * bytes)
        return error_set(err, hint, "%s: its header claims %u items, but the file has %zu bytes",
                         path, items, file->size);
    if (dimensions == 3 && (big_endian(at + 8) != SIZE || big_endian(at + 12) != SIZE))
        return error_set(err, "", "%s: its images have %ux%u pixels, not %dx%d", path,
                         big_endian(at + 8), big_endian(at + 12), SIZE, SIZE);
    *count = (int)items;
    *crc = crc32_z(0, file->bytes, file->size);
    memmove(file->bytes, at + header, file->size - header);
    return true;
}

bool idx_pair_read(Dataset *set, const char *images, const char *labels, uint32_t crc[2],
                   Error *err)
{
    FileBytes pixels = { 0 }, numbers = { 0 };
    int count = 0;
    *set = (Dataset){ .channels = 1, .height = SIZE, .width = SIZE, .classes = set->classes,
                      .per_row = 1 };
    bool good = items_read(&pixels, images, 3, SIZE * SIZE, &set->count, &crc[0], err) &&
                items_read(&numbers, labels, 1, 1, &count, &crc[1], err);
    if (good && count != set->count)
        good = error_set(err, hint, "%s has %d labels for the %d images of %s", labels, count,
                         set->count, images);
    set->inputs = pixels.bytes;
    set->labels = good ? xmalloc(count * sizeof *set->labels) : NULL;
    for (int i = 0; good && i < count; i++) {
        set->labels[i] = numbers.bytes[i];
        if (set->labels[i] >= set->classes)
            good = error_set(err, hint, "%s: image %d has label %d, but labels are 0 to %d",
                             labels, i, set->labels[i], set->classes - 1);
    }
    free(numbers.bytes);
    return good;
}

// The plain file if it exists, else the gzipped one.
static void path_choose(char path[PATH_MAX], const char *dir, const char *part, const char *kind)
{
    snprintf(path, PATH_MAX, "%s/%s-%s-ubyte", dir, part, kind);
    if (data_file_missing(path))
        snprintf(path, PATH_MAX, "%s/%s-%s-ubyte.gz", dir, part, kind);
}

bool idx_read(Data *data, const char *path, const DataConfig *config, Error *err)
{
    static const char *const parts[] = { "train", "t10k" };
    for (int i = 0; i < 2; i++) {
        uint32_t crc[2];
        char images[PATH_MAX], labels[PATH_MAX];
        path_choose(images, path, parts[i], "images-idx3");
        path_choose(labels, path, parts[i], "labels-idx1");
        if (!idx_pair_read(i ? &data->test : &data->train, images, labels, crc, err))
            return false;
        data_checksum(data, crc, sizeof crc);
    }
    return true;
}
