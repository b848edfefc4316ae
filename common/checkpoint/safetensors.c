// safetensors.c - reads and writes safetensors files. Nothing in a file is trusted.
#include "checkpoint/safetensors.h"
#include "progress.h"
#include "output.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");

// Maximum length of a header, in bytes. A ResNet-50 with momentum needs less than a tenth of it.
// jansson needs up to 80 times the header's size in memory.
enum { HEADER_MAX = 1 << 20 };

static const char damaged[] = "the file is damaged, or not a safetensors file; copy it again";

// --- reading -------------------------------------------------------------------------------------

static bool header_length(const unsigned char *bytes, size_t size, size_t *length, Error *err)
{
    uint64_t n = 0;
    memcpy(&n, bytes, size < 8 ? size : 8);
    *length = (size_t)n;
    if (size < 8)
        return error_set(err, damaged, "it is too short: its size is %zu", size);
    if (n > HEADER_MAX)
        return error_set(err, damaged, "its header claims %llu bytes, but the maximum is %d",
                         (unsigned long long)n, HEADER_MAX);
    return n <= size - 8
           || error_set(err, damaged, "its header claims %llu bytes, but only %zu follow",
                        (unsigned long long)n, size - 8);
}

// A type's name ends with the bits of an element: F32, BF16, I64. A BOOL takes one byte.
static size_t element_bytes(const char *dtype)
{
    const char *bits = strpbrk(dtype, "123456789");
    return bits ? strtoul(bits, NULL, 10) / 8 : 1;
}

// Computes t->bytes. False: `shape` is not a list of sizes, or is too large.
static bool read_shape(StTensor *t, const json_t *shape)
{
    t->ndim = (int)json_array_size(shape);
    t->bytes = element_bytes(t->dtype);
    for (int i = 0; i < t->ndim && i < ST_MAX_DIMS; i++) {
        json_t *size = json_array_get(shape, (size_t)i);
        t->shape[i] = json_is_integer(size) ? json_integer_value(size) : -1;
        if (t->shape[i] < 0 || __builtin_mul_overflow(t->bytes, (size_t)t->shape[i], &t->bytes))
            return false;
    }
    return json_is_array(shape) && t->ndim <= ST_MAX_DIMS;
}

// data: the bytes after the header.
static bool read_tensor(StTensor *t, const char *name, json_t *about, const unsigned char *data,
                        size_t size, Error *err)
{
    json_t *shape;
    json_int_t begin, end;
    *t = (StTensor){ .name = name };
    if (json_unpack_ex(about, NULL, JSON_STRICT, "{s:s, s:o, s:[II]}", "dtype", &t->dtype,
                       "shape", &shape, "data_offsets", &begin, &end) != 0
        || !read_shape(t, shape) || begin < 0 || end < begin || (size_t)end > size
        || (size_t)(end - begin) != t->bytes)
        return error_set(err, damaged, "tensor %.100s: its dtype, shape or data_offsets do not fit",
                         name);
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
static bool check_layout(StFile *file, const unsigned char *data, Error *err)
{
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_places);
    int i = 0;
    for (; i < file->count && file->tensors[i].data == data; i++)
        data += file->tensors[i].bytes;
    return (i == file->count && data == file->bytes + file->size)
           || error_set(err, damaged, "the tensors overlap, or leave gaps");
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
        return error_set(err, damaged, "its header is not a JSON object");
    file->tensors = xcalloc(json_object_size(file->header), sizeof *file->tensors);
    json_object_foreach(file->header, name, about)
        if (strcmp(name, "__metadata__") != 0
            && !read_tensor(&file->tensors[file->count++], name, about, data,
                            file->size - 8 - length, err))
            return false;
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

// Checks the header's length first, so that a large file in a different format is not read.
static unsigned char *read_file(FILE *in, size_t *size, Error *err)
{
    struct stat st = { 0 };
    unsigned char first[8] = { 0 }, *bytes = NULL;
    size_t length, n = fread(first, 1, sizeof first, in);
    fstat(fileno(in), &st);
    *size = (size_t)st.st_size;
    if (!ferror(in) && !header_length(first, *size, &length, err))
        return NULL;
    bytes = xmalloc(*size);
    memcpy(bytes, first, n);
    n += fread(bytes + n, 1, *size - n, in);
    if (n == *size)
        return bytes;
    error_set(err, "copy the file again", "reading failed at byte %zu: %s", n,
              ferror(in) ? strerror(errno) : "the file became shorter");
    free(bytes);
    return NULL;
}

bool st_open(StFile *file, const char *path, Error *err)
{
    Error inner;
    size_t size;
    PROGRESS_DOING("reading", path);
    FILE *in = fopen(path, "re");
    if (!in)
        return error_set(err, "check the path, and that you may read the file",
                         "cannot open %.200s: %s", path, strerror(errno));
    unsigned char *bytes = read_file(in, &size, &inner);
    fclose(in);
    return (bytes && st_parse(file, bytes, size, &inner))
           || error_set(err, inner.hint, "%.200s: %.300s", path, inner.text);
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

// --- writing -------------------------------------------------------------------------------------

static char *header_text(const StTensor *tensors, int count, const char *const (*metadata)[2],
                         int metadata_count)
{
    json_t *header = json_object(), *about = json_object();
    json_int_t offset = 0;
    for (int i = 0; i < metadata_count; i++)
        json_object_set_new(about, metadata[i][0], json_string(metadata[i][1]));
    json_object_set_new(header, "__metadata__", about);
    for (const StTensor *t = tensors; t < tensors + count; t++) {
        json_int_t end = offset + (json_int_t)t->bytes;
        json_t *shape = json_array();
        for (int d = 0; d < t->ndim; d++)
            json_array_append_new(shape, json_integer(t->shape[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype", t->dtype, "shape", shape,
                                      "data_offsets", offset, end));
        offset = end;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    CHECK(text, "", "cannot write a checkpoint's header: out of memory, or a tensor's name is not "
          "UTF-8");
    json_decref(header);
    return text;
}

bool st_write(const char *path, const StTensor *tensors, int count,
              const char *const (*metadata)[2], int metadata_count, Error *err)
{
    PROGRESS_WRITING(path);
    FILE *out = replace_open(path, err);
    if (!out)
        return false;
    char *text = header_text(tensors, count, metadata, metadata_count);
    uint64_t length = round_up(strlen(text), 8);    // so that the data begins at a multiple of 8
    fwrite(&length, sizeof length, 1, out);
    fprintf(out, "%-*s", (int)length, text);
    free(text);
    for (int i = 0; i < count && !ferror(out); i++)
        fwrite(tensors[i].data, 1, tensors[i].bytes, out);
    return replace_commit(out, path, err);
}
