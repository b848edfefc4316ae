// test_safetensors.c - damaged files of safetensors are refused. test_checkpoint.c reads what we write, and test_step.c
// what PyTorch's library writes.
#include "check.h"
#include "checkpoint/safetensors.h"
#include "test.h"

// Parses a file with this header and `data` bytes. The block of memory is no larger than the file, so that a sanitizer
// sees reads past its end.
static bool parse(StFile *file, const char *header, size_t data, Error *err)
{
    uint64_t n = strlen(header);
    unsigned char *bytes = xcalloc(8 + n + data, 1);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, header, n);
    return st_parse(file, bytes, 8 + n + data, err);
}

#define T(name, dtype, shape, begin, end)                                                                              \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"
#define F32(name, begin, end) T(name, "F32", "[1]", begin, end)

static const struct { const char *header; size_t data; } hostile[] = {
    { "{" F32("a", "0", "4") "," F32("b", "8", "12") "}", 12 },                     // bytes of no tensor
    { "{" F32("a", "0", "4") "," F32("b", "2", "6") "}", 6 },                       // bytes of two tensors
    { "{" F32("a", "0", "4") "," F32("\\u0061", "0", "4") "}", 4 },                 // two tensors of one name
    { "{" T("a", "F31", "[1]", "0", "4") "}", 4 },
    { "{" F32("a", "0", "4") "}", 3 },
    { "{" T("a", "F32", "[4294967296,4294967296]", "0", "0") "}", 0 },
};

// More: tests/fuzz/fuzz_checkpoint.c.
TEST(hostile_headers_are_refused)
{
    StFile file;
    Error err;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        EXPECT(!parse(&file, hostile[i].header, hostile[i].data, &err), "%s", hostile[i].header);
}

TEST_MAIN
