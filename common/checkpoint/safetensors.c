// safetensors.c - reads and writes safetensors files. Nothing in a file is trusted.
#include "checkpoint/safetensors.h"
#include "progress.h"
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");

// Bytes of the longest header that we read. A ResNet-50 with momentum needs less than a tenth.
// jansson needs up to 80 times the header's size in memory.
enum { HEADER_MAX = 1 << 20 };

static const struct {
    const char *name;
    int bytes;
} dtypes[] = { { "F32", 4 }, { "F64", 8 }, { "I64", 8 }, { "I32", 4 }, { "U8", 1 } };

// Bytes of one element, or 0 for an unknown type.
static int dtype_bytes(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return dtypes[i].bytes;
    return 0;
}

static const char damaged[] = "the file is damaged, or not a safetensors file; copy it again";

static bool header_length(const unsigned char *bytes, size_t size, size_t *length, Error *err)
{
    uint64_t n = 0;
    if (size < 8)
        return error_set(err, damaged, "%zu bytes are too few for a safetensors file", size);
    memcpy(&n, bytes, 8);
    if (n > HEADER_MAX)
        return error_set(err, "the file is probably not a checkpoint", "the header claims %llu "
                         "bytes; the maximum is %d", (unsigned long long)n, HEADER_MAX);
    if (n > size - 8)
        return error_set(err, damaged, "the header ends %llu bytes after the end of the file",
                         (unsigned long long)(n - (size - 8)));
    *length = (size_t)n;
    return true;
}

static bool read_shape(StTensor *t, const json_t *shape)
{
    if (!json_is_array(shape) || json_array_size(shape) > ST_MAX_DIMS)
        return false;
    t->ndim = (int)json_array_size(shape);
    t->bytes = (size_t)dtype_bytes(t->dtype);
    for (int i = 0; i < t->ndim; i++) {
        json_t *size = json_array_get(shape, (size_t)i);
        t->shape[i] = json_is_integer(size) ? json_integer_value(size) : -1;
        if (t->shape[i] < 0 || __builtin_mul_overflow(t->bytes, (size_t)t->shape[i], &t->bytes))
            return false;
    }
    return true;
}

// data: the bytes after the header.
static bool read_tensor(StTensor *t, const char *name, json_t *about, const unsigned char *data,
                        size_t size, Error *err)
{
    json_t *shape;
    json_int_t begin, end;
    json_error_t error;
    *t = (StTensor){ .name = name };
    if (json_unpack_ex(about, &error, JSON_STRICT, "{s:s, s:o, s:[II]}", "dtype", &t->dtype,
                       "shape", &shape, "data_offsets", &begin, &end) != 0)
        return error_set(err, damaged, "tensor %.100s: %s", name, error.text);
    if (dtype_bytes(t->dtype) == 0)
        return error_set(err, "convert its weights to float32", "tensor %.100s: unknown dtype "
                         "'%.20s'", name, t->dtype);
    if (!read_shape(t, shape))
        return error_set(err, damaged, "tensor %.100s has an impossible shape", name);
    if (begin < 0 || end < begin || (size_t)end > size || (size_t)(end - begin) != t->bytes)
        return error_set(err, damaged, "tensor %.100s needs %zu bytes, but has bytes %lld to "
                         "%lld of %zu", name, t->bytes, (long long)begin, (long long)end, size);
    t->data = data + begin;
    return true;
}

static int compare_places(const void *a, const void *b)
{
    const StTensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

// The tensors must fill the data without gaps or overlaps. Bytes that belong to no tensor could
// hide another file.
static bool check_layout(const StFile *file, const unsigned char *data, Error *err)
{
    const unsigned char *end = file->bytes + file->size;
    for (int i = 0; i < file->count; i++) {
        const StTensor *t = &file->tensors[i];
        if (t->data != data)
            return error_set(err, damaged, "tensor %.100s overlaps another, or follows a gap",
                             t->name);
        data += t->bytes;
    }
    return data == end || error_set(err, damaged, "%zu bytes follow the last tensor",
                                    (size_t)(end - data));
}

static bool read_header(StFile *file, Error *err)
{
    size_t length;
    json_error_t error;
    json_t *about;
    const char *name;
    if (!header_length(file->bytes, file->size, &length, err))
        return false;
    const unsigned char *data = file->bytes + 8 + length;
    file->header = json_loadb((const char *)file->bytes + 8, length, JSON_REJECT_DUPLICATES,
                              &error);
    if (!json_is_object(file->header))
        return error_set(err, damaged, "header, byte %d: %s", error.position,
                         file->header ? "not an object" : error.text);
    file->tensors = xcalloc(json_object_size(file->header), sizeof *file->tensors);
    json_object_foreach(file->header, name, about) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (!read_tensor(&file->tensors[file->count++], name, about, data, file->size - 8 - length,
                         err))
            return false;
    }
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_places);
    return check_layout(file, data, err);
}

bool st_parse(StFile *file, unsigned char *bytes, size_t size, Error *err)
{
    *file = (StFile){ .bytes = bytes, .size = size };
    bool ok = read_header(file, err);
    if (!ok)
        st_close(file);
    return ok;
}

void st_close(StFile *file)
{
    json_decref(file->header);
    free(file->tensors);
    free(file->bytes);
    *file = (StFile){ 0 };
}

const StTensor *st_find(const StFile *file, const char *name)
{
    for (int i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

const char *st_metadata(const StFile *file, const char *key)
{
    return json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
}

// Checks the length of the header first, so that most large files of a different kind are refused
// before they are read.
static unsigned char *read_file(int fd, size_t *size, Error *err)
{
    struct stat st;
    size_t length, at = 0;
    unsigned char first[8] = { 0 };
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        error_set(err, "", "not a regular file%s", S_ISDIR(st.st_mode) ? " but a directory" : "");
        return NULL;
    }
    *size = (size_t)st.st_size;
    ssize_t n = pread(fd, first, sizeof first, 0);
    unsigned char *bytes = header_length(first, *size, &length, err) ? xmalloc(*size) : NULL;
    while (bytes && at < *size && (n = pread(fd, bytes + at, *size - at, (off_t)at)) > 0)
        at += (size_t)n;
    if (!bytes || at == *size)
        return bytes;
    error_set(err, "copy the file again", "reading failed at byte %zu: %s", at,
              n < 0 ? strerror(errno) : "the file became shorter");
    free(bytes);
    return NULL;
}

bool st_open(StFile *file, const char *path, Error *err)
{
    Error inner;
    size_t size = 0;
    PROGRESS_DOING("reading", path);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); // O_NONBLOCK: for a FIFO
    if (fd < 0)
        return error_set(err, "check the path, and that you may read the file",
                         "%.200s: open: %s", path, strerror(errno));
    unsigned char *bytes = read_file(fd, &size, &inner);
    close(fd);
    return (bytes && st_parse(file, bytes, size, &inner))
           || error_set(err, inner.hint, "%.200s: %.300s", path, inner.text);
}

static json_t *header_json(const StTensor *tensors, int count, const char *const (*metadata)[2],
                           int metadata_count)
{
    json_t *header = json_object(), *about = json_object();
    size_t offset = 0;
    for (int i = 0; i < metadata_count; i++)
        json_object_set_new(about, metadata[i][0], json_string(metadata[i][1]));
    json_object_set_new(header, "__metadata__", about);
    for (const StTensor *t = tensors; t < tensors + count; t++) {
        json_t *shape = json_array();
        for (int d = 0; d < t->ndim; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype", t->dtype, "shape", shape,
                                      "data_offsets", (json_int_t)offset,
                                      (json_int_t)(offset + t->bytes)));
        offset += t->bytes;
    }
    return header;
}

bool st_write(const char *path, const StTensor *tensors, int count,
              const char *const (*metadata)[2], int metadata_count, Error *err)
{
    PROGRESS_WRITING(path);
    FILE *out = replace_open(path, err);
    if (!out)
        return false;
    json_t *header = header_json(tensors, count, metadata, metadata_count);
    char *text = json_dumps(header, JSON_COMPACT);
    CHECK(text, "", "out of memory, or a tensor's name is not UTF-8");
    uint64_t length = round_up(strlen(text), 8);    // so that the data begins at a multiple of 8
    fwrite(&length, sizeof length, 1, out);
    fprintf(out, "%-*s", (int)length, text);
    for (int i = 0; i < count && !ferror(out); i++)
        if (tensors[i].bytes > 0)   // an empty tensor's data may be NULL
            fwrite(tensors[i].data, 1, tensors[i].bytes, out);
    free(text);
    json_decref(header);
    return replace_commit(out, path, err);
}
