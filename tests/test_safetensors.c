// test_safetensors.c - the safetensors format: round trips, and hostile or damaged files.
#include "check.h"
#include "checkpoint/safetensors.h"
#include "test.h"

// Parses a file with this header and `data` bytes. It is a block of exactly its size, so that a sanitizer sees reads
// past its end.
static bool parse(StFile *file, const char *header, size_t data, Error *err)
{
    uint64_t n = strlen(header);
    unsigned char *bytes = xcalloc(8 + n + data, 1);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, header, n);
    return st_parse(file, bytes, 8 + n + data, err);
}

// True if the file's tensors fill the data in order, without gaps, and st_find finds each of them.
static bool is_sound(const StFile *file)
{
    uint64_t header;
    memcpy(&header, file->bytes, 8);
    const unsigned char *at = file->bytes + 8 + header;
    for (int i = 0; i < file->count; i++) {
        const StTensor *t = &file->tensors[i];
        size_t values = 1;
        for (int d = 0; d < t->ndim; d++)
            values *= (size_t)t->shape[d];
        if (t->data != at || (values ? t->bytes % values : t->bytes) || st_find(file, t->name) != t)
            return false;
        at += t->bytes;
    }
    return at == file->bytes + file->size;
}

#define T(name, dtype, shape, begin, end)                                                                              \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"
#define F32(name, begin, end) T(name, "F32", "[1]", begin, end)

static const char any_order[] = "{" T("b", "I32", "[3,1]", "4", "16") ",\"__metadata__\":{\"format\":\"pt\",\"n\":1},"
    F32("\\u00e9", "0", "4") "," T("none", "F64", "[0,7]", "4", "4") "," T("scalar", "BOOL", "[]", "16", "17") "}  ";

TEST(tensors_in_any_order)
{
    StFile file;
    Error err;
    if (!parse(&file, any_order, 17, &err))
        FAIL_ERROR(&err);
    const StTensor *b = st_find(&file, "b");
    EXPECT(is_sound(&file) && file.count == 4, "%d tensors", file.count);
    EXPECT(b && b->ndim == 2 && b->shape[0] == 3 && b->shape[1] == 1 && b->bytes == 12, "b");
    EXPECT(st_find(&file, "\xc3\xa9") && !st_find(&file, "nobody"), "names");
    EXPECT(strcmp(st_metadata(&file, "format"), "pt") == 0 && !st_metadata(&file, "n"), "metadata");
    st_close(&file);
}

static const struct { const char *header; size_t data; } hostile[] = {
    { "{" F32("a", "0", "4") "," F32("b", "8", "12") "}", 12 },                     // bytes of no tensor
    { "{" F32("a", "0", "4") "," F32("b", "2", "6") "}", 6 },                       // bytes of two
    { "{" F32("a", "0", "4") "," F32("\\u0061", "0", "4") "}", 4 },                 // two of one name
    { "{" T("a", "F31", "[1]", "0", "4") "}", 4 },
    { "{" F32("a", "0", "4") "}", 3 },
    { "{" T("a", "F32", "[4294967296,4294967296]", "0", "0") "}", 0 },
};

// Others: tests/fuzz/fuzz_checkpoint.c.
TEST(hostile_headers_are_refused)
{
    StFile file;
    Error err;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        EXPECT(!parse(&file, hostile[i].header, hostile[i].data, &err), "%s", hostile[i].header);
}

static const float weights[6] = { 1, 2, 3, 4, 5, 6 };
static const double scale = 0.5;
static const int64_t step = -7;
static unsigned char bulk[300000];  // larger than the writer's buffer
static const StTensor tensors[] = {
    { "scale", "F64", 1, { 1 }, &scale, 8 },
    { "step", "I64", 0, { 0 }, &step, 8 },
    { "w", "F32", 2, { 2, 3 }, weights, 24 },
    { "none", "F32", 1, { 0 }, weights, 0 },
    { "odd \" name", "U8", 1, { 3 }, "abc", 3 },
    { "bulk", "U8", 1, { 300000 }, bulk, 300000 },
};
enum { TENSORS = sizeof tensors / sizeof *tensors };

TEST(round_trip)
{
    static const char *const metadata[][2] = { { "format", "pt" }, { "note", "tab\there" } };
    const char *path = test_path("a.safetensors");
    StFile file;
    Error err;
    for (size_t i = 0; i < sizeof bulk; i++)
        bulk[i] = (unsigned char)(i * 7);
    if (!st_write(path, tensors, TENSORS, metadata, 2, &err) || !st_open(&file, path, &err))
        FAIL_ERROR(&err);
    EXPECT(is_sound(&file) && file.count == TENSORS, "%d tensors", file.count);
    for (int i = 0; i < TENSORS; i++) {
        const StTensor *t = st_find(&file, tensors[i].name);
        EXPECT(t && strcmp(t->dtype, tensors[i].dtype) == 0 && t->ndim == tensors[i].ndim
                   && t->bytes == tensors[i].bytes && memcmp(t->shape, tensors[i].shape, sizeof t->shape) == 0
                   && memcmp(t->data, tensors[i].data, t->bytes) == 0, "%s", tensors[i].name);
        EXPECT(t && (t->dtype[0] == 'U' || ((const unsigned char *)t->data - file.bytes) % 4 == 0), "alignment");
    }
    EXPECT_EQ_STR(st_metadata(&file, "note"), "tab\there");
    st_close(&file);
}

TEST_MAIN
