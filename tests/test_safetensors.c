// test_safetensors.c - the safetensors format: round trips, and hostile or damaged files.
#include "check.h"
#include "checkpoint/safetensors.h"
#include "test.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

// Parses a file with this header and `data` bytes 0, 1, 2, ...
static bool parse_text(StFile *file, const char *header, size_t data, Error *err)
{
    uint64_t length = strlen(header);
    unsigned char *bytes = xmalloc(8 + length + data);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data; i++)
        bytes[8 + length + i] = (unsigned char)i;
    return st_parse(file, bytes, 8 + length + data, err);
}

// Parses a copy in a block of exactly its size, so that a sanitizer sees reads past its end.
static bool parse_copy(StFile *file, const unsigned char *bytes, size_t size, Error *err)
{
    unsigned char *copy = xmalloc(size);
    memcpy(copy, bytes, size);
    return st_parse(file, copy, size, err);
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

#define T(name, rest) "\"" name "\":{" rest "}"
#define F32(begin, end) "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" begin "," end "]"

TEST(any_key_order_and_space)
{
    StFile file;
    Error err = { "", "" };
    bool ok = parse_text(
        &file,
        "{ \n\"b\" : {\"data_offsets\":[ 4 , 16 ],\t\"shape\":[3,1],\"dtype\":\"I32\"},\r"
        "\"__metadata__\":{\"format\":\"pt\",\"a\":\"\",\"number\":1},"
        T("\\u00e9\\n\xc3\xa9", F32("0", "4")) ","
        T("empty", "\"shape\":[0,7],\"dtype\":\"F64\",\"data_offsets\":[4,4]") ","
        T("scalar", "\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[16,17]") "}   ",
        17, &err);
    if (!EXPECT(ok, "%s", err.text))
        return;
    EXPECT(is_sound(&file), "unsound");
    EXPECT_EQ_INT(file.count, 4);
    const StTensor *b = st_find(&file, "b");
    EXPECT(b && b->ndim == 2 && b->shape[0] == 3 && b->shape[1] == 1 && b->bytes == 12, "b");
    EXPECT(b && ((const unsigned char *)b->data)[0] == 4, "b's data");
    EXPECT(st_find(&file, "\xc3\xa9\n\xc3\xa9") != NULL, "escapes in a name");
    EXPECT_EQ_STR(st_metadata(&file, "format"), "pt");
    EXPECT_EQ_STR(st_metadata(&file, "a"), "");
    EXPECT(!st_metadata(&file, "b") && !st_metadata(&file, "number"), "metadata that is no string");
    EXPECT(st_find(&file, "nobody") == NULL, "found a tensor that does not exist");
    st_close(&file);
    if (EXPECT(parse_text(&file, "{}", 0, &err), "%s", err.text))
        st_close(&file);
}

#define SHAPE(shape, end) "{" T("a", "\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[0," end "]") "}"

static const struct {
    const char *header;
    size_t data;
    const char *says;
} hostile[] = {
    { "", 0, "header, byte 0" },
    { "[]", 0, "not an object" },
    { "{}", 1, "1 bytes follow the last tensor" },
    { "{\"a\":1}", 0, "tensor a: Expected object" },
    { "{" T("a", F32("0", "4")) "," T("\\u0061", F32("4", "8")) "}", 8, "duplicate" },
    { "{" T("a", F32("0", "4") ",\"shape\":[1]") "}", 4, "duplicate" },
    { "{" T("a", F32("0", "4") ",\"note\":[[[[]]]]") "}", 4, "note" },
    { "{" T("a", "\"dtype\":\"F32\",\"data_offsets\":[0,4]") "}", 4, "shape" },
    { "{" T("a", "\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, "'F31'" },
    { "{" T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]") "}", 4, "tensor a: " },
    { "{" T("a", F32("0", "9223372036854775807")) "}", 4, "needs 4 bytes" },
    { "{" T("a", F32("-4", "0")) "}", 4, "needs 4 bytes" },
    { "{" T("a", F32("4", "0")) "}", 4, "needs 4 bytes" },
    { "{" T("a", F32("0", "8")) "}", 8, "needs 4 bytes, but has bytes 0 to 8 of 8" },
    { "{" T("a", F32("0", "4")) "}", 3, "needs 4 bytes" },
    { "{" T("a", F32("0", "4")) "}", 5, "1 bytes follow the last tensor" },
    { "{" T("a", F32("0", "4")) "," T("b", F32("8", "12")) "}", 12, "b overlaps another, or follows a gap" },
    { "{" T("a", F32("0", "4")) "," T("b", F32("0", "4")) "}", 4, "overlaps another, or follows a gap" },
    { "{" T("a", F32("0", "4")) "," T("b", F32("2", "6")) "}", 6, "b overlaps another, or follows a gap" },
    { SHAPE("1", "4"), 4, "an impossible shape" },
    { SHAPE("[[1]]", "4"), 4, "an impossible shape" },
    { SHAPE("[-1]", "4"), 4, "an impossible shape" },
    { SHAPE("[1.0]", "4"), 4, "an impossible shape" },
    { SHAPE("[1,1,1,1,1,1,1,1,1]", "4"), 4, "an impossible shape" },
    { SHAPE("[4294967296,4294967296]", "0"), 0, "an impossible shape" },
    { SHAPE("[9223372036854775807,2]", "0"), 0, "an impossible shape" },
};

TEST(hostile_headers_are_refused)
{
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        StFile file;
        Error err = { "", "" };
        bool ok = parse_text(&file, hostile[i].header, hostile[i].data, &err);
        EXPECT(!ok, "accepted: %s", hostile[i].header);
        EXPECT(strstr(err.text, hostile[i].says) != NULL, "%s: the error is '%s', not '%s'",
               hostile[i].header, err.text, hostile[i].says);
        EXPECT(!file.tensors && !file.bytes && !file.header, "a refused file is not freed");
        if (ok)
            st_close(&file);
    }
}

TEST(hostile_lengths_are_refused)
{
    static const struct {
        uint64_t length;
        const char *says;
    } cases[] = { { 3, "1 bytes after the end" },   { 1 << 20, "after the end" },
                  { (1 << 20) + 1, "claims" },      { UINT64_MAX, "claims" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        StFile file;
        Error err;
        unsigned char bytes[10] = { [8] = '{', '}' };
        memcpy(bytes, &cases[i].length, 8);
        EXPECT(!parse_copy(&file, bytes, sizeof bytes, &err) && strstr(err.text, cases[i].says),
               "length %llu: error: %s", (unsigned long long)cases[i].length, err.text);
    }
}

static const float weights[6] = { 1, 2, 3, 4, 5, 6 };
static const double scale = 0.5;
static const int64_t step = -7;
static unsigned char bulk[300000];  // larger than the writer's buffer
static const StTensor tensors[] = {
    { "scale", "F64", 1, { 1 }, &scale, 8 },
    { "step", "I64", 0, { 0 }, &step, 8 },
    { "w", "F32", 2, { 2, 3 }, weights, 24 },
    { "none", "F32", 1, { 0 }, NULL, 0 },
    { "odd \"\\\n\x01 name", "U8", 1, { 3 }, "abc", 3 },
    { "bulk", "U8", 1, { 300000 }, bulk, 300000 },
};
enum { TENSORS = sizeof tensors / sizeof *tensors };
static const char *const metadata[][2] = { { "format", "pt" }, { "note", "tab\there" } };

static bool write_sample(const char *path, int count, Error *err)
{
    return st_write(path, tensors, count, metadata, 2, err);
}

TEST(round_trip)
{
    const char *path = test_path("a.safetensors");
    StFile file;
    struct stat st = { 0 };
    Error err = { "", "" };
    for (size_t i = 0; i < sizeof bulk; i++)
        bulk[i] = (unsigned char)(i * 7);
    mode_t before = umask(027);
    EXPECT(write_sample(path, TENSORS, &err), "%s", err.text);
    umask(before);
    stat(path, &st);
    EXPECT_EQ_INT(st.st_mode & 0777, 0640);
    if (!EXPECT(st_open(&file, path, &err), "%s", err.text))
        return;
    EXPECT(is_sound(&file), "unsound");
    EXPECT_EQ_INT(file.count, TENSORS);
    for (int i = 0; i < TENSORS; i++) {
        const StTensor *t = st_find(&file, tensors[i].name);
        if (!EXPECT(t != NULL, "%s is missing", tensors[i].name))
            continue;
        EXPECT_EQ_STR(t->dtype, tensors[i].dtype);
        EXPECT(t->ndim == tensors[i].ndim && t->bytes == tensors[i].bytes
                   && memcmp(t->shape, tensors[i].shape, sizeof t->shape) == 0,
               "%s: wrong shape", t->name);
        EXPECT(t->bytes == 0 || memcmp(t->data, tensors[i].data, t->bytes) == 0, "%s: wrong data",
               t->name);
        EXPECT(t->dtype[0] == 'U' || ((const unsigned char *)t->data - file.bytes) % 4 == 0,
               "%s is not aligned", t->name);
    }
    EXPECT_EQ_STR(st_metadata(&file, "note"), "tab\there");
    st_close(&file);
}

// Truncated files are refused. With any one byte changed, a file is refused or still sound.
TEST(damage_is_refused_or_harmless)
{
    const char *path = test_path("sample.safetensors");
    int accepted = 0, unsound = 0;
    StFile whole, file;
    Error err;
    if (!write_sample(path, 5, &err) || !st_open(&whole, path, &err))
        FAIL_ERROR(&err);
    for (size_t size = 0; size < whole.size; size++)
        EXPECT(!parse_copy(&file, whole.bytes, size, &err), "accepted %zu of %zu bytes", size,
               whole.size);
    for (size_t i = 0; i < whole.size; i++) {
        unsigned char good = whole.bytes[i];
        for (int flipped = 1; flipped < 256; flipped++) {
            whole.bytes[i] = good ^ (unsigned char)flipped;
            if (!parse_copy(&file, whole.bytes, whole.size, &err))
                continue;
            accepted++;
            unsound += !is_sound(&file);
            st_close(&file);
        }
        whole.bytes[i] = good;
    }
    EXPECT_EQ_INT(unsound, 0);
    EXPECT(accepted > 100 && accepted < 200 * (int)whole.size, "%d accepted", accepted);
    st_close(&whole);
}

TEST(irregular_files_are_refused)
{
    StFile file;
    Error err = { "", "" };
    const char *fifo = test_path("fifo"), *huge = test_path("huge");
    alarm(20); // opening a FIFO without a writer could block
    EXPECT(mkfifo(fifo, 0600) == 0 && !st_open(&file, fifo, &err), "opened a FIFO");
    EXPECT(strstr(err.text, "fifo: not a regular file") != NULL, "error: %s", err.text);
    EXPECT(!st_open(&file, test_path(""), &err) && strstr(err.text, "a directory"), "directory: %s",
           err.text);
    EXPECT(!st_open(&file, test_path("nobody"), &err) && strstr(err.text, "nobody: open: No such"),
           "nobody: %s", err.text);
    int fd = open(huge, O_CREAT | O_WRONLY, 0600); // 1 TB: refused without allocating memory
    if (ftruncate(fd, (off_t)1 << 40) == 0 && pwrite(fd, "PK\3\4PK\3\4", 8, 0) == 8)
        EXPECT(!st_open(&file, huge, &err) && strstr(err.text, "claims"), "huge: %s", err.text);
    close(fd);
    unlink(huge);
    alarm(0);
}

TEST_MAIN
