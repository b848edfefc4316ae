// safetensors.c - one file format, read with suspicion.
#include "checkpoint/safetensors.h"
#include "alive.h"
#include "base/json.h"
#include "base/replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");

enum {
    HEADER_MAX = 100 * 1000 * 1000, // bytes, as in the original implementation
    METADATA_MAX = 64,              // pairs that are kept
};

static const struct {
    char name[8];
    int bytes;
} dtypes[] = {
    { "BOOL", 1 }, { "U8", 1 },  { "I8", 1 },  { "F8_E5M2", 1 }, { "F8_E4M3", 1 }, { "F8_E8M0", 1 },
    { "I16", 2 },  { "U16", 2 }, { "F16", 2 }, { "BF16", 2 },    { "I32", 4 },     { "U32", 4 },
    { "F32", 4 },  { "F64", 8 }, { "I64", 8 }, { "U64", 8 },     { "C64", 8 },
};

// Bytes of one element, or 0 for a type that is not known.
static int dtype_bytes(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return dtypes[i].bytes;
    return 0;
}

// --- reading: the header's JSON ------------------------------------------------------------------
//
// Only what the format allows is understood, so nothing nests deeper than the grammar does:
//
//   header   = { "name": tensor, ..., "__metadata__": { "key": "text", ... } }
//   tensor   = { "dtype": "F32", "shape": [number, ...], "data_offsets": [number, number] }

typedef struct Reader {
    const unsigned char *begin, *p, *end;   // the header
    unsigned char *data;                    // behind it
    size_t data_bytes;
    char *names;                            // where the next name goes; as large as the header
    StFile *file;
    int capacity;                           // of file->tensors
    Error *err;
} Reader;

static bool complain(Reader *r, const char *what)
{
    return error_set(r->err, "the file is damaged, or not a safetensors file",
                     "header, byte %zu: %s", (size_t)(r->p - r->begin), what);
}

static void skip_space(Reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r'))
        r->p++;
}

static bool accept(Reader *r, char c)
{
    skip_space(r);
    if (r->p == r->end || *r->p != c)
        return false;
    r->p++;
    return true;
}

static bool expect(Reader *r, char c)
{
    char what[] = "expected '?'";
    what[10] = c;
    return accept(r, c) || complain(r, what);
}

// Four hexadecimal digits.
static bool read_hex4(Reader *r, unsigned *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, r->p++) {
        if (r->p == r->end)
            return complain(r, "the text ends in the middle of \\u");
        unsigned char c = *r->p, lower = c | 0x20;
        int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                                                 : -1;
        if (digit < 0)
            return complain(r, "\\u wants four hexadecimal digits");
        *out = *out << 4 | (unsigned)digit;
    }
    return true;
}

// What follows "\u", as UTF-8; two of them when the first is half of a surrogate pair.
static bool read_unicode(Reader *r, char **out)
{
    unsigned code, low;
    if (!read_hex4(r, &code))
        return false;
    bool first_half = code >= 0xD800 && code <= 0xDBFF;
    if (first_half && r->end - r->p >= 2 && r->p[0] == '\\' && r->p[1] == 'u') {
        r->p += 2;
        if (!read_hex4(r, &low))
            return false;
        if (low < 0xDC00 || low > 0xDFFF)
            return complain(r, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code == 0 || (code >= 0xD800 && code <= 0xDFFF))
        return complain(r, "not a character that a name may have");
    static const unsigned char mark[] = { 0x00, 0xC0, 0xE0, 0xF0 };
    int rest = (code >= 0x80) + (code >= 0x800) + (code >= 0x10000); // bytes behind the first
    *(*out)++ = (char)(mark[rest] | code >> (6 * rest));
    while (rest-- > 0)
        *(*out)++ = (char)(0x80 | ((code >> (6 * rest)) & 0x3F));
    return true;
}

static bool read_escape(Reader *r, char **out)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    if (r->p == r->end)
        return complain(r, "the text ends in the middle of a string");
    char c = (char)*r->p++;
    if (c == 'u')
        return read_unicode(r, out);
    const char *letter = c ? strchr(letters, c) : NULL;
    if (letter == NULL)
        return complain(r, "unknown escape in a string");
    *(*out)++ = meanings[letter - letters];
    return true;
}

// Reads a string to out, which has room for what is left of the header (unescaped text is never
// longer than escaped, and the quotes pay for the final zero). *end: behind that zero.
static bool read_string(Reader *r, char *out, char **end)
{
    if (!expect(r, '"'))
        return false;
    for (;;) {
        if (r->p == r->end)
            return complain(r, "the text ends in the middle of a string");
        int length = utf8_length(r->p, (size_t)(r->end - r->p));
        if (length == 0 || *r->p < 0x20)
            return complain(r, "a byte that no string may have");
        if (*r->p == '"') {
            r->p++;
            *out++ = '\0';
            *end = out;
            return true;
        }
        if (*r->p == '\\') {
            r->p++;
            if (!read_escape(r, &out))
                return false;
        } else {
            memcpy(out, r->p, (size_t)length);
            out += length;
            r->p += length;
        }
    }
}

// A whole number from 0 to 2^63 - 1, the only kind there is.
static bool read_number(Reader *r, int64_t *out)
{
    skip_space(r);
    const unsigned char *first = r->p;
    int64_t value = 0;
    for (; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++)
        if (__builtin_mul_overflow(value, 10, &value)
            || __builtin_add_overflow(value, *r->p - '0', &value))
            return complain(r, "a number above 2^63 - 1");
    if (r->p == first || (*first == '0' && r->p - first > 1))
        return complain(r, "expected a whole number");
    *out = value;
    return true;
}

// "[1, 2, 3]": at most `most` numbers.
static bool read_numbers(Reader *r, int64_t *out, int most, int *count)
{
    *count = 0;
    if (!expect(r, '['))
        return false;
    if (accept(r, ']'))
        return true;
    do {
        if (*count == most)
            return complain(r, "more numbers than a tensor can have here");
        if (!read_number(r, &out[(*count)++]))
            return false;
    } while (accept(r, ','));
    return expect(r, ']');
}

// Short strings: kept in r->names only while they are looked at.
static bool read_word(Reader *r, char *out, size_t size)
{
    char *end;
    if (!read_string(r, r->names, &end))
        return false;
    snprintf(out, size, "%s", r->names);
    return true;
}

static bool read_metadata(Reader *r)
{
    StFile *file = r->file;
    if (file->metadata)
        return complain(r, "a second __metadata__");
    file->metadata = calloc(METADATA_MAX, sizeof *file->metadata);
    if (file->metadata == NULL)
        return error_set(r->err, "", "out of memory");
    if (!expect(r, '{'))
        return false;
    if (accept(r, '}'))
        return true;
    do {
        char pair[2][256];
        if (!read_word(r, pair[0], sizeof pair[0]) || !expect(r, ':')
            || !read_word(r, pair[1], sizeof pair[1]))
            return false;
        if (strlen(pair[0]) < 255 && st_metadata(file, pair[0])) // of cut keys nobody can tell
            return complain(r, "a key twice in __metadata__");
        if (file->metadata_count < METADATA_MAX)
            memcpy(file->metadata[file->metadata_count++], pair, sizeof pair);
    } while (accept(r, ','));
    return expect(r, '}');
}

// Does the type times the shape give just the bytes between the offsets, within the data?
static bool check_extent(Reader *r, StTensor *t, const int64_t *offsets)
{
    int64_t bytes = dtype_bytes(t->dtype);
    bool empty = false;
    if (bytes == 0)
        return error_set(r->err, "the file is damaged, or of a newer kind",
                         "tensor %.100s: unknown dtype '%s'", t->name, t->dtype);
    for (int i = 0; i < t->ndim; i++)
        empty |= t->shape[i] == 0;
    for (int i = 0; i < t->ndim && !empty; i++)
        if (__builtin_mul_overflow(bytes, t->shape[i], &bytes))
            return error_set(r->err, "the file is damaged", "tensor %.100s: its shape overflows",
                             t->name);
    if (empty)
        bytes = 0;
    if (offsets[0] > offsets[1] || (uint64_t)offsets[1] > r->data_bytes)
        return error_set(r->err, "the file is damaged or truncated; copy it again",
                         "tensor %.100s: data_offsets [%lld, %lld] do not lie in the %zu bytes of "
                         "data", t->name, (long long)offsets[0], (long long)offsets[1],
                         r->data_bytes);
    if (offsets[1] - offsets[0] != bytes)
        return error_set(r->err, "the file is damaged",
                         "tensor %.100s: its shape needs %lld bytes, its data_offsets hold %lld",
                         t->name, (long long)bytes, (long long)(offsets[1] - offsets[0]));
    t->data = r->data + offsets[0];
    t->bytes = (size_t)bytes;
    return true;
}

// The object behind a tensor's name: three keys, each once, in any order.
static bool read_tensor(Reader *r, StTensor *t)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = 7 };
    int64_t offsets[2];
    int seen = 0, count = 0;
    if (!expect(r, '{'))
        return false;
    do {
        char key[16], dtype[16];
        if (!read_word(r, key, sizeof key) || !expect(r, ':'))
            return false;
        int which = !strcmp(key, "dtype") ? DTYPE : !strcmp(key, "shape") ? SHAPE
                    : !strcmp(key, "data_offsets") ? OFFSETS : 0;
        if (which == 0 || (seen & which))
            return complain(r, which ? "a key twice in a tensor" : "unknown key in a tensor");
        seen |= which;
        bool ok = which == DTYPE   ? read_word(r, dtype, sizeof dtype)
                  : which == SHAPE ? read_numbers(r, t->shape, ST_MAX_DIMS, &t->ndim)
                                   : read_numbers(r, offsets, 2, &count);
        if (!ok)
            return false;
        if (which == DTYPE)
            snprintf(t->dtype, sizeof t->dtype, "%.7s", strlen(dtype) < 8 ? dtype : "?");
    } while (accept(r, ','));
    if (!expect(r, '}'))
        return false;
    if (seen != ALL || count != 2)
        return error_set(r->err, "the file is damaged", "tensor %.100s: needs dtype, shape and two "
                         "data_offsets", t->name);
    return check_extent(r, t, offsets);
}

// Appends an empty tensor, or returns NULL without memory. The list at most doubles, so it stays a
// small multiple of the header that fills it.
static StTensor *next_tensor(Reader *r)
{
    StFile *file = r->file;
    if (file->count == r->capacity) {
        int capacity = r->capacity ? 2 * r->capacity : 64;
        StTensor *tensors = realloc(file->tensors, (size_t)capacity * sizeof *tensors);
        if (tensors == NULL)
            return NULL;
        file->tensors = tensors;
        r->capacity = capacity;
    }
    StTensor *t = &file->tensors[file->count++];
    memset(t, 0, sizeof *t);
    return t;
}

static bool read_header(Reader *r)
{
    if (r->p == r->end || *r->p != '{')
        return complain(r, "expected '{'");
    r->p++;
    if (!accept(r, '}')) {
        do {
            char *name = r->names, *end;
            if (!read_string(r, name, &end) || !expect(r, ':'))
                return false;
            if (strcmp(name, "__metadata__") == 0) {
                if (!read_metadata(r))
                    return false;
                continue;
            }
            StTensor *t = next_tensor(r);
            if (t == NULL)
                return error_set(r->err, "", "out of memory for the names of %d tensors",
                                 r->file->count);
            t->name = name;
            r->names = end;
            if (!read_tensor(r, t))
                return false;
        } while (accept(r, ','));
        if (!expect(r, '}'))
            return false;
    }
    skip_space(r);
    return r->p == r->end || complain(r, "something stands behind the last '}'");
}

// --- reading: the file as a whole ----------------------------------------------------------------

static int compare_extents(const void *a, const void *b)
{
    const StTensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const StTensor *)a)->name, ((const StTensor *)b)->name);
}

// Laid side by side, the tensors must fill the data to the last byte. Bytes that belong to none
// could be another file in disguise; bytes that belong to two are a mistake or a trick.
static bool check_layout(Reader *r)
{
    StFile *file = r->file;
    const unsigned char *at = r->data, *end = r->data + r->data_bytes;
    if (file->count > 1)
        qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_extents);
    for (int i = 0; i < file->count; i++) {
        const StTensor *t = &file->tensors[i];
        const unsigned char *data = t->data;
        if (data != at)
            return error_set(r->err, "the file is damaged",
                             "tensor %.100s: %s at byte %zu of the data", t->name,
                             data < at ? "overlaps another" : "there is a hole before it,",
                             (size_t)((data < at ? data : at) - r->data));
        at += t->bytes;
    }
    if (at != end)
        return error_set(r->err, "the file is damaged, or something was appended to it",
                         "%zu bytes behind the last tensor", (size_t)(end - at));
    if (file->count > 1)
        qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_names);
    for (int i = 1; i < file->count; i++)
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
            return error_set(r->err, "the file is damaged", "tensor %.100s is there twice",
                             file->tensors[i].name);
    return true;
}

// The length of the header, if a file of this size can have it.
static bool header_length(const unsigned char *bytes, size_t size, size_t *length, Error *err)
{
    static const char truncated[] = "the file is truncated; copy it again";
    uint64_t n = 0;
    if (size < 8)
        return error_set(err, truncated, "%zu bytes are too few for a safetensors file", size);
    memcpy(&n, bytes, 8);
    if (n > HEADER_MAX)
        return error_set(err, "this is not a safetensors file",
                         "the header claims %llu bytes, and %d are the most",
                         (unsigned long long)n, HEADER_MAX);
    if (n > size - 8)
        return error_set(err, truncated, "the header ends %llu bytes behind the end of the file",
                         (unsigned long long)(n - (size - 8)));
    *length = (size_t)n;
    return true;
}

bool st_parse(StFile *file, unsigned char *bytes, size_t size, Error *err)
{
    size_t length;
    *file = (StFile){ .bytes = bytes, .size = size };
    if (!header_length(bytes, size, &length, err)) {
        st_close(file);
        return false;
    }
    file->names = malloc(length + 1);
    Reader r = { .begin = bytes + 8, .p = bytes + 8, .end = bytes + 8 + length,
                 .data = bytes + 8 + length, .data_bytes = size - 8 - length,
                 .names = file->names, .file = file, .err = err };
    bool ok = file->names ? read_header(&r) && check_layout(&r)
                          : error_set(err, "", "out of memory for a header of %zu bytes", length);
    if (!ok)
        st_close(file);
    return ok;
}

void st_close(StFile *file)
{
    free(file->tensors);
    free(file->metadata);
    free(file->bytes);
    free(file->names);
    *file = (StFile){ 0 };
}

const StTensor *st_find(const StFile *file, const char *name)
{
    StTensor key = { .name = name };
    if (file->count == 0)
        return NULL;
    return bsearch(&key, file->tensors, (size_t)file->count, sizeof key, compare_names);
}

const char *st_metadata(const StFile *file, const char *key)
{
    for (int i = 0; i < file->metadata_count; i++)
        if (strcmp(file->metadata[i][0], key) == 0)
            return file->metadata[i][1];
    return NULL;
}

// Reads `size` bytes from `offset` on.
static bool read_exactly(int fd, unsigned char *bytes, size_t offset, size_t size, Error *err)
{
    enum { PIECE = 8 << 20 };   // so that a slow disk is not taken for a dead one
    size_t end = offset + size;
    while (offset < end) {
        size_t piece = end - offset < PIECE ? end - offset : PIECE;
        ssize_t n = pread(fd, bytes + offset, piece, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set(err, "", "read at byte %zu: %s", offset, strerror(errno));
        if (n == 0)
            return error_set(err, "somebody is writing to it", "it became shorter while being read");
        offset += (size_t)n;
        alive_beat();
    }
    return true;
}

// The length of the header is looked at before memory is asked for: a large file of another kind is
// refused at once.
static unsigned char *read_file(int fd, size_t *size, Error *err)
{
    struct stat st;
    size_t length;
    unsigned char first[8], *bytes = NULL;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        error_set(err, "", "not a regular file%s", S_ISDIR(st.st_mode) ? " but a directory" : "");
        return NULL;
    }
    *size = (size_t)st.st_size;
    if (!read_exactly(fd, first, 0, *size < 8 ? *size : 8, err)
        || !header_length(first, *size, &length, err))
        return NULL;
    bytes = malloc(*size);
    if (bytes == NULL)
        error_set(err, "", "out of memory for its %zu bytes", *size);
    else if (!read_exactly(fd, bytes, 0, *size, err)) {
        free(bytes);
        bytes = NULL;
    }
    return bytes;
}

// Puts the path before what went wrong.
static bool error_at(Error *err, const char *path)
{
    Error inner = *err;
    return error_set(err, inner.hint, "%.200s: %.300s", path, inner.text);
}

bool st_open(StFile *file, const char *path, Error *err)
{
    *file = (StFile){ 0 };
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); // a FIFO must not hold us up
    if (fd < 0)
        return error_set(err, "is the path right?", "%.200s: open: %s", path, strerror(errno));
    size_t size = 0;
    unsigned char *bytes = read_file(fd, &size, err);
    close(fd);
    return (bytes && st_parse(file, bytes, size, err)) || error_at(err, path);
}

// --- writing -------------------------------------------------------------------------------------

static int compare_for_writing(const void *a, const void *b)
{
    const StTensor *x = *(const StTensor *const *)a, *y = *(const StTensor *const *)b;
    int difference = dtype_bytes(y->dtype) - dtype_bytes(x->dtype);
    return difference ? difference : strcmp(x->name, y->name);
}

// The order of the data: large elements first, so that all are aligned without holes; then by name.
static const StTensor **writing_order(const StTensor *tensors, int count)
{
    const StTensor **order = xcalloc((size_t)count, sizeof *order);
    for (int i = 0; i < count; i++)
        order[i] = &tensors[i];
    qsort(order, (size_t)count, sizeof *order, compare_for_writing);
    return order;
}

// The 8 bytes of length and the JSON, padded with spaces so that the data begins at a multiple of
// 8. The caller frees it.
static char *make_header(const StTensor *const *order, int count, const char *const (*metadata)[2],
                         int metadata_count, size_t *size)
{
    char *header = NULL;
    FILE *out = open_memstream(&header, size);
    CHECK(out, "", "open_memstream: %s", strerror(errno));
    fwrite("\0\0\0\0\0\0\0\0{", 1, 9, out);
    for (int i = 0; i < metadata_count; i++) {
        fputs(i ? "," : "\"__metadata__\":{", out);
        json_string(out, metadata[i][0]);
        fputc(':', out);
        json_string(out, metadata[i][1]);
    }
    fputs(metadata_count ? "}" : "", out);
    size_t offset = 0;
    for (int i = 0; i < count; i++) {
        const StTensor *t = order[i];
        fputs(i || metadata_count ? "," : "", out);
        json_string(out, t->name);
        fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype);
        for (int d = 0; d < t->ndim; d++)
            fprintf(out, "%s%lld", d ? "," : "", (long long)t->shape[d]);
        fprintf(out, "],\"data_offsets\":[%zu,%zu]}", offset, offset + t->bytes);
        offset += t->bytes;
    }
    fputc('}', out);
    for (fflush(out); *size % 8; fflush(out))
        fputc(' ', out);
    fclose(out);
    uint64_t length = *size - 8;
    memcpy(header, &length, 8);
    return header;
}

typedef struct Content {
    const StTensor *tensors;
    int count;
    const char *const (*metadata)[2];
    int metadata_count;
} Content;

static bool write_content(FileWriter *w, const void *arg)
{
    const Content *c = arg;
    size_t size;
    const StTensor **order = writing_order(c->tensors, c->count);
    char *header = make_header(order, c->count, c->metadata, c->metadata_count, &size);
    bool ok = writer_add(w, header, size);
    for (int i = 0; i < c->count && ok; i++)
        ok = writer_add(w, order[i]->data, order[i]->bytes);
    free(header);
    free(order);
    return ok;
}

bool st_write(const char *path, const StTensor *tensors, int count,
              const char *const (*metadata)[2], int metadata_count, Error *err)
{
    Content content = { tensors, count, metadata, metadata_count };
    return replace_file(path, write_content, &content, err);
}
