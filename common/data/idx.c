// idx.c - IDX files: MNIST (LeCun, Cortes, Burges), Fashion-MNIST (Xiao, Rasul, Vollgraf).
//
//   magic   0 0 8 d         8: unsigned bytes, d: number of dimensions
//   sizes   d big-endian 32-bit numbers: count[, height, width]
//   bytes   count [* height * width]
#include "data/formats.h"

#include <limits.h>
#include <stdlib.h>

enum {
    SIZE = 28,              // of images, each way
    DEFLATE_RATIO = 1032,   // the maximum of deflate
};

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

// Also fails if the header claims more than even a gzipped file of this size can hold: the caller
// allocates memory for all items that the header claims.
static bool header_read(DataFile *file, int ndim, int *count, Error *err)
{
    uint8_t header[16];
    if (!data_file_read(file, header, 4 + 4 * ndim, err))
        return false;
    uint32_t magic = big_endian(header), wanted = 0x0800u + (uint32_t)ndim;
    uint32_t items = big_endian(header + 4);
    if (magic != wanted)
        return error_set(err, file->hint, "%s begins with the number %08x, not %08x", file->path,
                         magic, wanted);
    int64_t bytes = (int64_t)items * (ndim == 3 ? SIZE * SIZE : 1);
    if (items == 0)
        return error_set(err, file->hint, "%s: its header claims 0 items", file->path);
    if (items > INT_MAX || bytes > file->size * DEFLATE_RATIO)
        return error_set(err, file->hint, "%s: its header claims %u items, more than %lld bytes "
                         "can hold", file->path, items, (long long)file->size);
    if (ndim == 3 && (big_endian(header + 8) != SIZE || big_endian(header + 12) != SIZE))
        return error_set(err, file->hint, "%s: its images have %ux%u pixels, not %dx%d", file->path,
                         big_endian(header + 8), big_endian(header + 12), SIZE, SIZE);
    *count = (int)items;
    return true;
}

static bool images_read(DataFile *file, Dataset *set, Error *err)
{
    int count;
    return header_read(file, 3, &count, err) && dataset_alloc(set, count, 1, SIZE, SIZE, err) &&
           data_file_read(file, set->inputs, (size_t)count * SIZE * SIZE, err) &&
           data_file_end(file, err);
}

static bool labels_read(DataFile *file, const Dataset *set, const char *images, Error *err)
{
    int count;
    if (!header_read(file, 1, &count, err))
        return false;
    if (count != set->count)
        return error_set(err, file->hint, "%s has %d labels for the %d images of %s", file->path,
                         count, set->count, images);
    uint8_t *labels = xmalloc(count);
    bool good = data_file_read(file, labels, count, err) && data_file_end(file, err);
    for (int i = 0; i < count && good; i++) {
        if (labels[i] >= set->classes)
            good = error_set(err, file->hint, "%s: image %d has label %d, but labels are 0 to %d",
                             file->path, i, labels[i], set->classes - 1);
        set->labels[i] = labels[i];
    }
    free(labels);
    return good;
}

bool idx_pair_read(Dataset *set, const char *images, const char *labels, const char *hint,
                   uint32_t *crc, Error *err)
{
    DataFile file;
    if (!data_file_open(&file, images, hint, err))
        return false;
    bool good = images_read(&file, set, err);
    crc[0] = file.crc;
    data_file_close(&file);
    if (!good || !data_file_open(&file, labels, hint, err))
        return false;
    good = labels_read(&file, set, images, err);
    crc[1] = file.crc;
    data_file_close(&file);
    return good;
}

// The plain file if it exists, else the gzipped one.
static void path_choose(char path[PATH_MAX], const char *dir, const char *part, const char *kind)
{
    snprintf(path, PATH_MAX, "%s/%s-%s-ubyte", dir, part, kind);
    if (data_file_missing(path))
        snprintf(path, PATH_MAX, "%s/%s-%s-ubyte.gz", dir, part, kind);
}

bool idx_read(Data *data, const char *dir, const char *hint, Error *err)
{
    static const char *const parts[] = { "train", "t10k" };
    for (int i = 0; i < 2; i++) {
        uint32_t crc[2];
        char images[PATH_MAX], labels[PATH_MAX];
        path_choose(images, dir, parts[i], "images-idx3");
        path_choose(labels, dir, parts[i], "labels-idx1");
        if (!idx_pair_read(i ? &data->test : &data->train, images, labels, hint, crc, err))
            return false;
        data_checksum(data, crc, sizeof crc);
    }
    return true;
}
