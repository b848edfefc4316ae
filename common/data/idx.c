// idx.c - IDX files: MNIST (LeCun, Cortes, Burges), Fashion-MNIST (Xiao, Rasul, Vollgraf).
//
//   magic   0 0 8 d         8: unsigned bytes, d: number of dimensions
//   sizes   d big-endian 32-bit numbers: count[, height, width]
//   bytes   count [* height * width]
//
// The files may be gzipped, as they are distributed, or not. What a header claims is believed only
// as far as the file's size bears it out.
#include "data/formats.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    CHUNK = 256 << 10,      // compressed bytes read at once
    DEFLATE_RATIO = 1032,   // deflate cannot shrink anything by more than this
};

// --- one stream of bytes from either kind of file ------------------------------------------------

typedef struct Source {
    DataFile file;
    bool zipped;
    int64_t read_to;        // how much of the file has been read
    z_stream zip;
    bool zip_ended;
    uint8_t *chunk;
} Source;

static bool source_open(Source *source, const IdxFile *idx, Error *err)
{
    *source = (Source){ 0 };
    if (!data_file_open(&source->file, idx->path, idx->hint, err))
        return false;
    uint8_t magic[2] = { 0, 0 };
    if (source->file.size >= 2 && !data_file_read(&source->file, 0, magic, 2, err)) {
        data_file_close(&source->file);
        return false;
    }
    source->zipped = magic[0] == 0x1f && magic[1] == 0x8b;
    if (source->zipped) {
        source->chunk = xmalloc(CHUNK);
        const int gzip_only = 16 + MAX_WBITS;
        int status = inflateInit2(&source->zip, gzip_only);
        CHECK(status == Z_OK, "", "%s: inflateInit2: %s", idx->path, zError(status));
    }
    return true;
}

static void source_close(Source *source)
{
    if (source->zipped)
        inflateEnd(&source->zip);
    free(source->chunk);
    data_file_close(&source->file);
}

static bool chunk_read(Source *source, Error *err)
{
    int64_t left = source->file.size - source->read_to;
    size_t bytes = left < CHUNK ? (size_t)left : CHUNK;
    if (bytes == 0)
        return error_set(err, source->file.hint,
                         "%s: the gzip stream ends too early, after %lld bytes", source->file.path,
                         (long long)source->file.size);
    if (!data_file_read(&source->file, source->read_to, source->chunk, bytes, err))
        return false;
    source->read_to += (int64_t)bytes;
    source->zip.next_in = source->chunk;
    source->zip.avail_in = (uInt)bytes;
    return true;
}

static int64_t source_position(const Source *source)
{
    return source->zipped ? source->read_to - source->zip.avail_in : source->read_to;
}

// Inflates up to `bytes` (below 2^32) and says how many there were: fewer only at the stream's end.
static bool source_inflate(Source *source, void *to, size_t bytes, size_t *got, Error *err)
{
    z_stream *zip = &source->zip;
    zip->next_out = to;
    zip->avail_out = (uInt)bytes;
    while (zip->avail_out > 0 && !source->zip_ended) {
        if (zip->avail_in == 0 && !chunk_read(source, err))
            return false;
        int status = inflate(zip, Z_NO_FLUSH);
        source->zip_ended = status == Z_STREAM_END;
        if (status != Z_OK && status != Z_STREAM_END)
            return error_set(err, source->file.hint, "%s: corrupt gzip data before byte %lld: %s",
                             source->file.path, (long long)source_position(source),
                             zip->msg ? zip->msg : zError(status));
    }
    *got = bytes - zip->avail_out;
    return true;
}

static bool source_read(Source *source, void *to, size_t bytes, Error *err)
{
    if (!source->zipped) {
        if (source->file.size - source->read_to < (int64_t)bytes)
            return error_set(err, source->file.hint,
                             "%s: %lld bytes long, too short for its header", source->file.path,
                             (long long)source->file.size);
        source->read_to += (int64_t)bytes;
        return data_file_read(&source->file, source->read_to - (int64_t)bytes, to, bytes, err);
    }
    size_t got;
    if (!source_inflate(source, to, bytes, &got, err))
        return false;
    return got == bytes || error_set(err, source->file.hint, "%s: inflates to %llu bytes only",
                                     source->file.path, (unsigned long long)source->zip.total_out);
}

// Everything has been read: there must be nothing more. (For gzip this is also what reads to the
// checksum behind the data, and checks it.)
static bool source_end(Source *source, Error *err)
{
    uint8_t beyond;
    size_t got = 0;
    if (source->zipped && !source_inflate(source, &beyond, 1, &got, err))
        return false;
    if (got > 0)
        return error_set(err, source->file.hint,
                         "%s: inflates to more than the %llu bytes that its header claims",
                         source->file.path, (unsigned long long)source->zip.total_out - 1);
    int64_t end = source_position(source);
    return end == source->file.size ||
           error_set(err, source->file.hint, "%s: %lld bytes long, not %lld", source->file.path,
                     (long long)source->file.size, (long long)end);
}

// --- one IDX file --------------------------------------------------------------------------------

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static bool header_read(IdxFile *idx, Source *source, Error *err)
{
    uint8_t header[16];
    if (!source_read(source, header, (size_t)(4 + 4 * idx->ndim), err))
        return false;
    uint32_t magic = big_endian(header), wanted = 0x0800u + (uint32_t)idx->ndim;
    if (magic != wanted)
        return error_set(err, idx->hint, "%s: magic number %08x at byte 0, not %08x", idx->path,
                         magic, wanted);
    uint32_t count = big_endian(header + 4);
    if (count == 0 || count > INT_MAX)
        return error_set(err, idx->hint, "%s: %u items at byte 4", idx->path, count);
    idx->count = (int)count;
    if (idx->ndim == 1)
        return true;
    uint32_t height = big_endian(header + 8), width = big_endian(header + 12);
    return (height == (uint32_t)idx->height && width == (uint32_t)idx->width) ||
           error_set(err, idx->hint, "%s: images of %ux%u at byte 8, not %dx%d", idx->path, height,
                     width, idx->height, idx->width);
}

// Could a file of this size hold what its header claims? Asked before any memory is.
static bool size_check(const IdxFile *idx, const Source *source, int64_t bytes, Error *err)
{
    int64_t header = 4 + 4 * idx->ndim, size = source->file.size;
    if (!source->zipped && size != header + bytes)
        return error_set(err, idx->hint, "%s: %lld bytes long, not the %lld of %d items", idx->path,
                         (long long)size, (long long)(header + bytes), idx->count);
    if (source->zipped && header + bytes > size * DEFLATE_RATIO)
        return error_set(err, idx->hint,
                         "%s: claims %d items, more than gzip can put into %lld bytes", idx->path,
                         idx->count, (long long)size);
    return true;
}

static bool labels_check(const IdxFile *idx, const Source *source, Error *err)
{
    for (int i = 0; i < idx->count; i++)
        if (idx->bytes[i] >= idx->classes)
            return error_set(err, idx->hint, "%s: label %d at byte %d%s: there are %d classes",
                             idx->path, idx->bytes[i], 8 + i,
                             source->zipped ? " of what it inflates to" : "", idx->classes);
    return true;
}

static bool body_read(IdxFile *idx, Source *source, Error *err)
{
    int64_t item = idx->ndim == 3 ? (int64_t)idx->height * idx->width : 1;
    int64_t bytes = item * idx->count;
    if (!size_check(idx, source, bytes, err))
        return false;
    if (bytes > UINT_MAX)
        return error_set(err, "", "%s: %d images are more than 4 GB", idx->path, idx->count);
    idx->bytes = data_images_alloc((size_t)bytes);
    if (!idx->bytes)
        return error_set(err, "", "%s: out of memory: %lld bytes", idx->path, (long long)bytes);
    return source_read(source, idx->bytes, (size_t)bytes, err) && source_end(source, err) &&
           (idx->ndim == 3 || labels_check(idx, source, err));
}

bool idx_file_read(IdxFile *idx, Error *err)
{
    Source source;
    idx->bytes = NULL;
    if (!source_open(&source, idx, err))
        return false;
    bool good = header_read(idx, &source, err) && body_read(idx, &source, err);
    idx->zipped = source.zipped;
    idx->crc = (uint32_t)source.zip.adler;      // zlib has compared it with the stored one
    source_close(&source);
    if (!good) {
        free(idx->bytes);
        idx->bytes = NULL;
    }
    return good;
}

// --- a whole set ---------------------------------------------------------------------------------

enum { TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS, FILES };

static bool file_task(void *files, int index, Error *err)
{
    return idx_file_read((IdxFile *)files + index, err);
}

// The plain file if it is there (nothing to inflate), else the gzipped one.
static bool path_choose(char *path, const char *dir, const char *name, Error *err)
{
    char zipped[64];
    snprintf(zipped, sizeof zipped, "%s.gz", name);
    return data_path_join(path, PATH_MAX, dir, name, err) &&
           (!data_file_missing(path) || data_path_join(path, PATH_MAX, dir, zipped, err));
}

// Hands the memory of two files to a data set, which owns it from here on.
static bool dataset_fill(Dataset *set, IdxFile *images, IdxFile *labels, Error *err)
{
    set->count = images->count;
    set->channels = 1;
    set->height = images->height;
    set->width = images->width;
    set->images = images->bytes;
    images->bytes = NULL;
    if (labels->count != images->count)
        return error_set(err, images->hint, "%s: %d labels for the %d images of %s", labels->path,
                         labels->count, images->count, images->path);
    set->labels = xmalloc((size_t)set->count * sizeof *set->labels);
    for (int i = 0; i < set->count; i++)
        set->labels[i] = labels->bytes[i];
    return true;
}

static void checksum_add(Data *data, const IdxFile *idx)
{
    size_t bytes = (size_t)idx->count * (idx->ndim == 3 ? (size_t)idx->height * idx->width : 1);
    data->zipped = data->zipped || idx->zipped;
    if (idx->zipped)
        data_checksum_all(data, &idx->crc, sizeof idx->crc);
    else if (idx->ndim == 3)
        data_checksum_samples(data, idx->bytes, bytes);
    else
        data_checksum_all(data, idx->bytes, bytes);
}

bool idx_read(Data *data, const char *dir, const char *hint, Error *err)
{
    static const char *const names[FILES] = { "train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                              "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte" };
    char paths[FILES][PATH_MAX];
    IdxFile files[FILES];
    for (int i = 0; i < FILES; i++) {
        bool images = i == TRAIN_IMAGES || i == TEST_IMAGES;
        files[i] = (IdxFile){ .path = paths[i], .hint = hint, .ndim = images ? 3 : 1, .height = 28,
                              .width = 28, .classes = data->train.classes };
        if (!path_choose(paths[i], dir, names[i], err))
            return false;
    }
    bool good = data_parallel(file_task, files, FILES, err);
    for (int i = 0; i < FILES && good; i++)
        checksum_add(data, &files[i]);
    good = good && dataset_fill(&data->train, &files[TRAIN_IMAGES], &files[TRAIN_LABELS], err) &&
           dataset_fill(&data->test, &files[TEST_IMAGES], &files[TEST_LABELS], err);
    for (int i = 0; i < FILES; i++)
        free(files[i].bytes);
    return good;
}
