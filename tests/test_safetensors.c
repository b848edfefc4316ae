// test_safetensors.c - the file format: written whole, read with suspicion.
#include "check.h"
#include "checkpoint/safetensors.h"
#include "test.h"
#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// --- files made by hand --------------------------------------------------------------------------

typedef struct Bytes {
    unsigned char *bytes;
    size_t size;
} Bytes;

// A file of this header and so many bytes of data 0, 1, 2, ...
static Bytes file_of(const char *header, size_t length, size_t data)
{
    Bytes b = { xmalloc(8 + length + data), 8 + length + data };
    uint64_t n = length;
    memcpy(b.bytes, &n, 8);
    memcpy(b.bytes + 8, header, length);
    for (size_t i = 0; i < data; i++)
        b.bytes[8 + length + i] = (unsigned char)i;
    return b;
}

// Parses a copy in a block of exactly its size, so that a sanitizer sees every step beyond it.
static bool parse_copy(StFile *file, const unsigned char *bytes, size_t size, Error *err)
{
    unsigned char *copy = xmalloc(size);
    memcpy(copy, bytes, size);
    return st_parse(file, copy, size, err);
}

static bool parse_text(StFile *file, const char *header, size_t data, Error *err)
{
    Bytes b = file_of(header, strlen(header), data);
    return st_parse(file, b.bytes, b.size, err);
}

static size_t size_of_dtype(const char *dtype)
{
    static const char *const names[] = { "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 ", "I16 U16 F16 BF16 ",
                                         "I32 U32 F32 ", "F64 I64 U64 C64 " };
    char word[16];
    snprintf(word, sizeof word, "%s ", dtype);
    for (int i = 0; i < 4; i++)
        if (strstr(names[i], word))
            return (size_t)1 << i;
    return 0;
}

// What holds for every file that was accepted: names rise, and the tensors fill the data.
static bool is_sound(const StFile *file)
{
    size_t total = 0;
    uint64_t header;
    memcpy(&header, file->bytes, 8);
    const unsigned char *data = file->bytes + 8 + header, *end = file->bytes + file->size;
    for (int i = 0; i < file->count; i++) {
        const StTensor *t = &file->tensors[i];
        size_t bytes = size_of_dtype(t->dtype);
        for (int d = 0; d < t->ndim; d++)
            bytes *= (size_t)t->shape[d];
        if (bytes != t->bytes || (const unsigned char *)t->data < data ||
            (const unsigned char *)t->data + bytes > end || st_find(file, t->name) != t ||
            (i > 0 && strcmp(file->tensors[i - 1].name, t->name) >= 0))
            return false;
        total += bytes;
    }
    return total == (size_t)(end - data);
}

// --- what is accepted ----------------------------------------------------------------------------

#define T(name, rest) "\"" name "\":{" rest "}"
#define F32(begin, end) "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" begin "," end "]"

TEST(any_key_order_and_space)
{
    StFile file;
    Error err = { "", "" };
    bool ok = parse_text(
        &file,
        "{ \n\"b\" : {\"data_offsets\":[ 4 , 16 ],\t\"shape\":[3,1],\"dtype\":\"I32\"},\r"
        "\"__metadata__\":{\"format\":\"pt\",\"a\":\"\"}," T("a", F32("0", "4")) "," T(
            "empty", "\"shape\":[0,7],\"dtype\":\"F64\","
                     "\"data_offsets\":[4,4]") "," T("scalar", "\"dtype\":\"U8\",\"shape\":[],"
                                                               "\"data_offsets\":[16,17]") "}   ",
        17, &err);
    if (!EXPECT(ok, "%s", err.text))
        return;
    EXPECT(is_sound(&file), "unsound");
    EXPECT_EQ_INT(file.count, 4);
    const StTensor *b = st_find(&file, "b");
    EXPECT(b && b->ndim == 2 && b->shape[0] == 3 && b->shape[1] == 1 && b->bytes == 12, "b");
    EXPECT(b && ((const unsigned char *)b->data)[0] == 4, "b's data");
    EXPECT_EQ_STR(st_metadata(&file, "format"), "pt");
    EXPECT_EQ_STR(st_metadata(&file, "a"), "");
    EXPECT(st_metadata(&file, "b") == NULL && st_find(&file, "nobody") == NULL, "found nothing");
    EXPECT(st_find(&file, "scalar")->ndim == 0, "a scalar has no dimensions");
    st_close(&file);
}

TEST(escapes_in_names)
{
    StFile file;
    Error err = { "", "" };
    bool ok = parse_text(
        &file, "{" T("\\u00e9\\ud83d\\uDE00\\n\\\"\\\\\\/\\b\\f\\r\\tz\xc3\xa9", F32("0", "4")) "}",
        4, &err);
    if (!EXPECT(ok, "%s", err.text))
        return;
    EXPECT_EQ_STR(file.tensors[0].name, "\xc3\xa9\xf0\x9f\x98\x80\n\"\\/\b\f\r\tz\xc3\xa9");
    st_close(&file);
}

TEST(nothing_in_it)
{
    StFile file;
    Error err = { "", "" };
    EXPECT(parse_text(&file, "{}", 0, &err), "%s", err.text);
    EXPECT_EQ_INT(file.count, 0);
    EXPECT(st_find(&file, "x") == NULL, "found");
    st_close(&file);
}

TEST(much_metadata_is_cut)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    fprintf(out, "{\"__metadata__\":{\"long\":\"%0500d\"", 7);
    for (int i = 0; i < 1000; i++)
        fprintf(out, ",\"key%d\":\"%d\"", i, i);
    fprintf(out, "}}");
    fclose(out);
    StFile file;
    Error err = { "", "" };
    if (EXPECT(parse_text(&file, text, 0, &err), "%s", err.text)) {
        EXPECT_EQ_INT(file.metadata_count, 64);
        EXPECT_EQ_INT(strlen(st_metadata(&file, "long")), 255);
        EXPECT_EQ_STR(st_metadata(&file, "key5"), "5");
        st_close(&file);
    }
    free(text);
}

// --- what is refused -----------------------------------------------------------------------------

static const struct {
    const char *header;
    size_t data;
    const char *says;
} hostile[] = {
    { "", 0, "expected '{'" },
    { " {}", 0, "expected '{'" },
    { "[]", 0, "expected '{'" },
    { "{", 0, "expected '\"'" },
    { "{}x", 0, "behind the last" },
    { "{},", 0, "behind the last" },
    { "{}", 1, "1 bytes behind the last tensor" },
    { "{\"a\"}", 0, "expected ':'" },
    { "{\"a\":1}", 0, "expected '{'" },
    { "{\"a\":{}}", 0, "expected '\"'" },
    { "{" T("a", F32("0", "4")) ",}", 4, "expected '\"'" },
    { "{" T("a", F32("0", "4") ",") "}", 4, "expected '\"'" },
    { "{" T("a", F32("0", "4")), 4, "expected '}'" },
    { "{" T("a", F32("0", "4")) T("b", F32("4", "8")) "}", 8, "expected '}'" },
    { "{" T("a", F32("0", "4")) "," T("a", F32("4", "8")) "}", 8, "there twice" },
    { "{" T("a", F32("0", "4")) "," T("\\u0061", F32("4", "8")) "}", 8, "there twice" },
    { "{" T("a", F32("0", "4")) "," T("b", F32("4", "8")) "," T("a", F32("8", "12")) "}", 12,
      "there twice" },
    { "{" T("a", F32("0", "4")) "," T("b", F32("8", "12")) "}", 12, "a hole before it" },
    { "{" T("a", F32("4", "8")) "}", 8, "a hole before it" },
    { "{" T("a", F32("0", "4")) "," T("b", F32("0", "4")) "}", 4, "overlaps" },
    { "{" T("a", F32("0", "4")) "," T("b", F32("2", "6")) "}", 6, "overlaps" },
    { "{" T("a", F32("0", "4")) "}", 5, "1 bytes behind the last tensor" },
    { "{" T("a", F32("0", "4")) "}", 3, "do not lie in the 3 bytes" },
    { "{" T("a", F32("4", "0")) "}", 4, "do not lie" },
    { "{" T("a", F32("0", "8")) "}", 8, "its shape needs 4 bytes" },
    { "{" T("a", F32("0", "9223372036854775807")) "}", 4, "do not lie" },
    { "{" T("a", F32("0", "9223372036854775808")) "}", 4, "above 2^63" },
    { "{" T("a", F32("0", "99999999999999999999999")) "}", 4, "above 2^63" },
    { "{" T("a", F32("-4", "0")) "}", 4, "expected a whole number" },
    { "{" T("a", F32("0", "4.0")) "}", 4, "expected ']'" },
    { "{" T("a", F32("0", "4e0")) "}", 4, "expected ']'" },
    { "{" T("a", F32("00", "4")) "}", 4, "expected a whole number" },
    { "{" T("a", F32("0", "0x4")) "}", 4, "expected ']'" },
    { "{" T("a", F32("0", "\\u0034")) "}", 4, "expected a whole number" },
    { "{" T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]") "}", 4,
      "two data_offsets" },
    { "{" T("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]") "}", 4,
      "more numbers" },
    { "{" T("a", "\"dtype\":\"F32\",\"shape\":[1]") "}", 4, "two data_offsets" },
    { "{" T("a", "\"dtype\":\"F32\",\"data_offsets\":[0,4]") "}", 4, "needs dtype, shape" },
    { "{" T("a", "\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, "needs dtype" },
    { "{" T("a", F32("0", "4") ",\"shape\":[1]") "}", 4, "a key twice" },
    { "{" T("a", F32("0", "4") ",\"note\":[[[[]]]]") "}", 4, "unknown key" },
    { "{" T("a", "\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]") "}", 4,
      "unknown dtype" },
    { "{" T("a", "\"dtype\":\"\",\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, "unknown dtype" },
    { "{" T("a", "\"dtype\":\"F32F32F32F32F32F32F32\",\"shape\":[1],\"data_offsets\":[0,4]") "}", 4,
      "unknown dtype" },
    { "{" T("a", "\"dtype\":\"F8_E4M3FN\",\"shape\":[4],\"data_offsets\":[0,4]") "}", 4,
      "unknown dtype" },
    { "{" T("a", "\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]") "}", 4, "expected '\"'" },
    { "{" T("a", "\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]") "}", 4,
      "more numbers" },
    { "{" T("a", "\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]") "}",
      0, "overflows" },
    { "{" T("a", "\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]") "}",
      0, "overflows" },
    { "{" T("a", "\"dtype\":\"F32\",\"shape\":[4611686018427387905],\"data_offsets\":[0,4]") "}", 4,
      "overflows" },
    { "{" T("a", "\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]") "}", 4,
      "whole number" },
    { "{" T("a", "\"dtype\":\"F32\",\"shape\":[1,],\"data_offsets\":[0,4]") "}", 4,
      "whole number" },
    { "{" T("\\u0000", F32("0", "4")) "}", 4, "not a character" },
    { "{" T("\\ud800", F32("0", "4")) "}", 4, "not a character" },
    { "{" T("\\udc00", F32("0", "4")) "}", 4, "not a character" },
    { "{" T("\\ud800\\u0041", F32("0", "4")) "}", 4, "half of a surrogate" },
    { "{" T("\\u00g0", F32("0", "4")) "}", 4, "hexadecimal" },
    { "{" T("\\x41", F32("0", "4")) "}", 4, "unknown escape" },
    { "{\"\\", 0, "middle of a string" },
    { "{\"\\u12", 0, "middle of \\u" },
    { "{\"\\ud800\\u1", 0, "middle of \\u" },
    { "{\"a", 0, "middle of a string" },
    { "{" T("a\tb", F32("0", "4")) "}", 4, "no string may have" },
    { "{" T("\xff", F32("0", "4")) "}", 4, "no string may have" },
    { "{" T("\xc0\x80", F32("0", "4")) "}", 4, "no string may have" },
    { "{" T("\xed\xa0\x80", F32("0", "4")) "}", 4, "no string may have" },
    { "{" T("\xf4\x90\x80\x80", F32("0", "4")) "}", 4, "no string may have" },
    { "{\"a\xe2\x82", 0, "no string may have" },
    { "{\"__metadata__\":{\"a\":1}}", 0, "expected '\"'" },
    { "{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, "expected '\"'" },
    { "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "a key twice in __metadata__" },
    { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "a second __metadata__" },
    { "{\"__metadata__\":[]}", 0, "expected '{'" },
    { "{\"__metadata__\":{\"a\":\"1\"}", 0, "expected '}'" },
};

TEST(hostile_headers_are_refused)
{
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        StFile file;
        Error err = { "", "" };
        bool ok = parse_text(&file, hostile[i].header, hostile[i].data, &err);
        EXPECT(!ok, "accepted: %s", hostile[i].header);
        EXPECT(strstr(err.text, hostile[i].says) != NULL, "%s: says '%s', not '%s'",
               hostile[i].header, err.text, hostile[i].says);
        EXPECT(!file.tensors && !file.bytes && !file.names && !file.metadata, "not closed");
        if (ok)
            st_close(&file);
    }
}

TEST(hostile_lengths_are_refused)
{
    static const struct {
        uint64_t length;
        const char *says;
    } cases[] = { { 3, "1 bytes behind the end" }, { UINT64_MAX, "claims" },
                  { 100000001, "claims" },         { 100000000, "behind the end" },
                  { UINT64_MAX - 7, "claims" },    { 1u << 31, "claims" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        StFile file;
        Error err;
        Bytes b = file_of("{}", 2, 0);
        memcpy(b.bytes, &cases[i].length, 8);
        EXPECT(!st_parse(&file, b.bytes, b.size, &err), "length %llu",
               (unsigned long long)cases[i].length);
        EXPECT(strstr(err.text, cases[i].says) != NULL, "says %s", err.text);
    }
    for (size_t size = 0; size < 8; size++) {
        StFile file;
        Error err;
        EXPECT(!st_parse(&file, xcalloc(size, 1), size, &err), "%zu bytes", size);
        EXPECT(strstr(err.text, "too few") != NULL, "says %s", err.text);
    }
}

// A header that nests as deep as 10 MB allow ends at its first bracket, not at the stack's end.
TEST(deep_nesting_is_refused)
{
    static const char *const starts[] = { "{\"a\":", "{\"a\":{\"shape\":",
                                          "{\"__metadata__\":{\"a\":" };
    static const char brackets[] = "[{";
    size_t length = 10 << 20;
    char *text = xmalloc(length);
    for (int i = 0; i < 6; i++) {
        memset(text, brackets[i % 2], length);
        memcpy(text, starts[i / 2], strlen(starts[i / 2]));
        Bytes b = file_of(text, length, 0);
        StFile file;
        Error err;
        EXPECT(!st_parse(&file, b.bytes, b.size, &err), "%s%c accepted", starts[i / 2],
               brackets[i % 2]);
    }
    free(text);
}

// --- memory --------------------------------------------------------------------------------------

// The most entries that a megabyte can hold must not cost more than a few megabytes.
TEST(memory_stays_a_small_multiple)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    fputc('{', out);
    for (int i = 0; i < 20000; i++)
        fprintf(out, "%s\"%x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                i ? "," : "", i);
    fputc('}', out);
    fclose(out);
    Bytes b = file_of(text, size, 0);
    free(text);
    size_t before = mallinfo2().uordblks + mallinfo2().hblkhd; // zeros under ASan
    StFile file;
    Error err = { "", "" };
    if (!EXPECT(st_parse(&file, b.bytes, b.size, &err), "%s", err.text))
        return;
    size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
    EXPECT(is_sound(&file), "unsound");
    EXPECT_EQ_INT(file.count, 20000);
    EXPECT(after - before <= 6 * b.size, "%zu bytes of file took %zu more", b.size, after - before);
    st_close(&file);
}

// --- writing -------------------------------------------------------------------------------------

static int files_in(const char *directory)
{
    int count = 0;
    DIR *dir = opendir(directory);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return count;
}

static const float weights[6] = { 1, 2, 3, 4, 5, 6 };
static const double scale = 0.5;
static const int64_t step = -7;
static unsigned char bulk[300000]; // larger than what the writer collects
static const StTensor tensors[] = {
    { .name = "w", .dtype = "F32", .ndim = 2, .shape = { 2, 3 }, .data = weights, .bytes = 24 },
    { .name = "odd \"\\\n\x01 name",
      .dtype = "U8",
      .ndim = 1,
      .shape = { 3 },
      .data = "abc",
      .bytes = 3 },
    { .name = "none", .dtype = "F32", .ndim = 1, .shape = { 0 }, .data = NULL, .bytes = 0 },
    { .name = "scale", .dtype = "F64", .ndim = 1, .shape = { 1 }, .data = &scale, .bytes = 8 },
    { .name = "step", .dtype = "I64", .ndim = 0, .data = &step, .bytes = 8 },
    { .name = "bulk",
      .dtype = "U8",
      .ndim = 1,
      .shape = { 300000 },
      .data = bulk,
      .bytes = 300000 },
};
enum { TENSORS = sizeof tensors / sizeof *tensors };
static const char *const metadata[][2] = { { "format", "pt" }, { "note", "tab\there" } };

static bool write_sample(const char *path, int count, Error *err)
{
    return st_write(path, tensors, count, metadata, 2, err);
}

TEST(round_trip)
{
    const char *directory = test_path("round"), *path = test_path("round/a.safetensors");
    StFile file;
    Error err = { "", "" };
    for (size_t i = 0; i < sizeof bulk; i++)
        bulk[i] = (unsigned char)(i * 7);
    mkdir(directory, 0777);
    for (int again = 0; again < 2; again++)
        EXPECT(write_sample(path, TENSORS, &err), "%s", err.text);
    EXPECT_EQ_INT(files_in(directory), 1);
    if (!EXPECT(st_open(&file, path, &err), "%s", err.text))
        return;
    EXPECT(is_sound(&file), "unsound");
    EXPECT_EQ_INT(file.count, TENSORS);
    for (int i = 0; i < TENSORS; i++) {
        const StTensor *t = st_find(&file, tensors[i].name);
        if (!EXPECT(t != NULL, "%s is lost", tensors[i].name))
            continue;
        EXPECT_EQ_STR(t->dtype, tensors[i].dtype);
        EXPECT(t->ndim == tensors[i].ndim && t->bytes == tensors[i].bytes &&
                   memcmp(t->shape, tensors[i].shape, sizeof t->shape) == 0,
               "%s: another shape", t->name);
        EXPECT(t->bytes == 0 || memcmp(t->data, tensors[i].data, t->bytes) == 0, "%s: other data",
               t->name);
        EXPECT(t->dtype[0] == 'U' || ((const unsigned char *)t->data - file.bytes) % 4 == 0,
               "%s is not aligned", t->name);
    }
    EXPECT_EQ_STR(st_metadata(&file, "note"), "tab\there");
    EXPECT_EQ_INT(((const unsigned char *)st_find(&file, "scale")->data - file.bytes) % 8, 0);
    st_close(&file);
}

TEST(mode_follows_umask)
{
    const char *path = test_path("mode.safetensors");
    struct stat st = { 0 };
    Error err = { "", "" };
    mode_t before = umask(027);
    EXPECT(write_sample(path, 2, &err), "%s", err.text);
    umask(before);
    stat(path, &st);
    EXPECT_EQ_INT(st.st_mode & 0777, 0640);
}

// Nothing is left behind, and what was there before is whole.
TEST(writing_where_one_cannot)
{
    const char *directory = test_path("cannot"), *path = test_path("cannot/directory");
    char missing[4200], long_name[4200];
    Error err = { "", "" };
    mkdir(directory, 0777);
    mkdir(path, 0777);
    EXPECT(!write_sample(path, 2, &err), "wrote over a directory");
    EXPECT(strstr(err.text, "rename: Is a directory") != NULL, "says %s", err.text);
    snprintf(missing, sizeof missing, "%s/no/such.safetensors", directory);
    EXPECT(!write_sample(missing, 2, &err), "wrote to nowhere");
    EXPECT(strstr(err.text, "No such file") != NULL && err.hint[0], "says %s", err.text);
    snprintf(long_name, sizeof long_name, "%s/%0254d", directory, 0);
    EXPECT(!write_sample(long_name, 2, &err), "wrote a name that is too long");
    snprintf(long_name, sizeof long_name, "%s/%04090d", "/tmp", 0);
    EXPECT(!write_sample(long_name, 2, &err), "wrote a path that is too long");
    EXPECT_EQ_INT(files_in(directory), 1);
}

TEST(a_limit_on_file_sizes)
{
    const char *directory = test_path("limit"), *path = test_path("limit/a.safetensors");
    struct rlimit limit;
    StFile file;
    Error err = { "", "" };
    mkdir(directory, 0777);
    EXPECT(write_sample(path, 2, &err), "%s", err.text);
    getrlimit(RLIMIT_FSIZE, &limit);
    rlim_t soft = limit.rlim_cur;
    limit.rlim_cur = 100000;
    setrlimit(RLIMIT_FSIZE, &limit);
    EXPECT(!write_sample(path, TENSORS, &err), "300 kB in a limit of 100 kB");
    limit.rlim_cur = soft;
    setrlimit(RLIMIT_FSIZE, &limit);
    EXPECT(strstr(err.text, "write at byte 100000: File too large") != NULL, "says %s", err.text);
    EXPECT_EQ_INT(files_in(directory), 1);
    if (EXPECT(st_open(&file, path, &err), "%s", err.text)) {
        EXPECT_EQ_INT(file.count, 2);
        st_close(&file);
    }
}

// --- damaged files -------------------------------------------------------------------------------

static Bytes sample_bytes(void)
{
    const char *path = test_path("sample.safetensors");
    Error err;
    StFile file;
    if (!write_sample(path, 5, &err) || !st_open(&file, path, &err))
        FAIL_ERROR(&err);
    Bytes b = { xmalloc(file.size), file.size };
    memcpy(b.bytes, file.bytes, file.size);
    st_close(&file);
    return b;
}

TEST(every_truncation_is_refused)
{
    Bytes b = sample_bytes();
    for (size_t size = 0; size < b.size; size++) {
        StFile file;
        Error err = { "", "" };
        EXPECT(!parse_copy(&file, b.bytes, size, &err), "accepted %zu of %zu bytes", size, b.size);
        EXPECT(err.text[0], "no reason at %zu bytes", size);
    }
    free(b.bytes);
}

// Every other value of every byte: refused, or a file that is sound all the same.
TEST(every_flipped_byte_is_refused_or_harmless)
{
    Bytes b = sample_bytes();
    int refused = 0, accepted = 0, unsound = 0;
    for (size_t i = 0; i < b.size; i++) {
        unsigned char good = b.bytes[i];
        for (int value = 0; value < 256; value++) {
            StFile file;
            Error err;
            b.bytes[i] = (unsigned char)value;
            if (value == good || !parse_copy(&file, b.bytes, b.size, &err)) {
                refused++;
                continue;
            }
            accepted++;
            unsound += !is_sound(&file);
            st_close(&file);
        }
        b.bytes[i] = good;
    }
    EXPECT_EQ_INT(unsound, 0);
    EXPECT(refused > 10000 && accepted > 100, "%d refused, %d accepted", refused, accepted);
    free(b.bytes);
}

// --- things that are no files --------------------------------------------------------------------

TEST(what_is_no_file)
{
    StFile file;
    Error err = { "", "" };
    const char *fifo = test_path("fifo"), *empty = test_path("empty"), *loop = test_path("loop");
    alarm(20); // a FIFO without a writer would hold us up for ever
    EXPECT(mkfifo(fifo, 0600) == 0 && !st_open(&file, fifo, &err), "opened a FIFO");
    EXPECT(strstr(err.text, "fifo: not a regular file") != NULL, "says %s", err.text);
    alarm(0);
    EXPECT(!st_open(&file, test_path(""), &err), "opened a directory");
    EXPECT(strstr(err.text, "a directory") != NULL, "says %s", err.text);
    EXPECT(!st_open(&file, "/dev/zero", &err), "opened /dev/zero");
    EXPECT(!st_open(&file, test_path("nobody"), &err), "opened nothing");
    EXPECT(strstr(err.text, "nobody: open: No such file") != NULL, "says %s", err.text);
    close(open(empty, O_CREAT | O_WRONLY, 0600));
    EXPECT(!st_open(&file, empty, &err), "opened an empty file");
    EXPECT(strstr(err.text, "empty: 0 bytes are too few") != NULL, "says %s", err.text);
    EXPECT(symlink(loop, loop) == 0 && !st_open(&file, loop, &err), "opened a loop of links");
}

// A terabyte of nothing is refused by its first eight bytes, without asking for a terabyte.
TEST(a_huge_file_of_another_kind)
{
    StFile file;
    Error err = { "", "" };
    const char *path = test_path("huge");
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    if (ftruncate(fd, (off_t)1 << 40) == 0 && pwrite(fd, "PK\3\4PK\3\4", 8, 0) == 8) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        EXPECT(!st_open(&file, path, &err), "opened");
        clock_gettime(CLOCK_MONOTONIC, &end);
        EXPECT(strstr(err.text, "the header claims") != NULL, "says %s", err.text);
        EXPECT(end.tv_sec - begin.tv_sec < 2, "took seconds");
    }
    close(fd);
    unlink(path);
}

int main(void)
{
    any_key_order_and_space();
    escapes_in_names();
    nothing_in_it();
    much_metadata_is_cut();
    hostile_headers_are_refused();
    hostile_lengths_are_refused();
    deep_nesting_is_refused();
    memory_stays_a_small_multiple();
    round_trip();
    mode_follows_umask();
    writing_where_one_cannot();
    a_limit_on_file_sizes();
    every_truncation_is_refused();
    every_flipped_byte_is_refused_or_harmless();
    what_is_no_file();
    a_huge_file_of_another_kind();
    return test_done();
}
