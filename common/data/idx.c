// idx.c - IDX files: MNIST (LeCun, Cortes, Burges), Fashion-MNIST (Xiao, Rasul, Vollgraf).
//
//   magic   0 0 8 d         8: unsigned bytes, d: number of dimensions
//   sizes   d big-endian 32-bit numbers: count[, height, width]
//   bytes   count [* height * width]
//
// They may be gzipped: zlib's gzread also reads plain files.
#include "progress.h"
#include "data/formats.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    SIZE = 28,              // of images, each way
    DEFLATE_RATIO = 1032,   // the maximum of deflate
};

typedef struct IdxFile {
    const char *path;
    gzFile gz;
    int64_t size;           // on disk
    uint32_t *crc;          // of the bytes read so far
} IdxFile;

static bool idx_open(IdxFile *file, const char *path, uint32_t *crc, Error *err)
{
    *file = (IdxFile){ .path = path, .crc = crc };
    *crc = 0;
    int fd = data_file_descriptor(path, &file->size, err);
    if (fd < 0)
        return false;
    file->gz = gzdopen(fd, "rb");
    CHECK(file->gz, "", "out of memory");
    gzbuffer(file->gz, 256 << 10);
    return true;
}

// Reads exactly this many bytes; with `last`, also fails if there are more or, in a gzipped file,
// the checksum is wrong.
static bool idx_bytes(IdxFile *file, void *to, size_t bytes, bool last, Error *err)
{
    uint8_t beyond;
    PROGRESS_DOING("reading", file->path);
    size_t got = gzfread(to, 1, bytes, file->gz);
    int more = last && got == bytes ? gzread(file->gz, &beyond, 1) : 0, status;
    const char *why = gzerror(file->gz, &status);
    *file->crc = crc32_z(*file->crc, to, got);
    if (got == bytes && more == 0 && status == Z_OK)
        return true;
    if (status == Z_OK)
        why = more ? "the file is too long" : "the file is too short";
    return error_set(err, "", "%s: reading failed at byte %lld%s: %s", file->path,
                     (long long)gztell(file->gz),
                     gzdirect(file->gz) ? "" : " of the uncompressed data",
                     status == Z_ERRNO ? strerror(errno) : why);
}

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

// Also fails if the header claims more than even a gzipped file of this size can hold: the caller
// allocates memory for all items that the header claims.
static bool header_read(IdxFile *file, int ndim, int *count, Error *err)
{
    uint8_t header[16];
    if (!idx_bytes(file, header, 4 + 4 * ndim, false, err))
        return false;
    uint32_t magic = big_endian(header), wanted = 0x0800u + (uint32_t)ndim;
    uint32_t items = big_endian(header + 4);
    if (magic != wanted)
        return error_set(err, "", "%s begins with the number %08x, not %08x", file->path, magic,
                         wanted);
    int64_t bytes = (int64_t)items * (ndim == 3 ? SIZE * SIZE : 1);
    if (items == 0 || items > INT_MAX || bytes > file->size * DEFLATE_RATIO)
        return error_set(err, "", "%s: its header claims %u items; its size is %lld bytes",
                         file->path, items, (long long)file->size);
    if (ndim == 3 && (big_endian(header + 8) != SIZE || big_endian(header + 12) != SIZE))
        return error_set(err, "", "%s: its images have %ux%u pixels, not %dx%d", file->path,
                         big_endian(header + 8), big_endian(header + 12), SIZE, SIZE);
    *count = (int)items;
    return true;
}

static bool labels_read(IdxFile *file, const Dataset *set, const char *images, Error *err)
{
    int count;
    if (!header_read(file, 1, &count, err))
        return false;
    if (count != set->count)
        return error_set(err, "", "%s has %d labels for the %d images of %s", file->path, count,
                         set->count, images);
    uint8_t *labels = xmalloc(count);
    bool good = idx_bytes(file, labels, count, true, err);
    for (int i = 0; i < count && good; i++) {
        if (labels[i] >= set->classes)
            good = error_set(err, "", "%s: image %d has label %d, but labels are 0 to %d",
                             file->path, i, labels[i], set->classes - 1);
        set->labels[i] = labels[i];
    }
    free(labels);
    return good;
}

bool idx_pair_read(Dataset *set, const char *images, const char *labels, uint32_t crc[2],
                   Error *err)
{
    IdxFile file;
    int count;
    if (!idx_open(&file, images, &crc[0], err))
        return false;
    bool good = header_read(&file, 3, &count, err) &&
                dataset_alloc(set, count, 1, SIZE, SIZE, err) &&
                idx_bytes(&file, set->inputs, (size_t)count * SIZE * SIZE, true, err);
    gzclose(file.gz);
    if (!good || !idx_open(&file, labels, &crc[1], err))
        return false;
    good = labels_read(&file, set, images, err);
    gzclose(file.gz);
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
