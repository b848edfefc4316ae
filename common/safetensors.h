// safetensors.h - reading and writing https://github.com/huggingface/safetensors files.
//
//   8 bytes    length N of the header, little-endian
//   N bytes    JSON: { "name": { "dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24] }, ... }
//   the rest   the tensors' bytes, without holes or overlaps
#pragma once
#include "check.h"
#include <stddef.h>
#include <stdint.h>

enum { ST_MAX_DIMS = 8 };

typedef struct StTensor {
    const char *name;
    char dtype[8];                  // "F32", "F64", "I64", "I32", "U8", "F16", "BF16", ...
    int ndim;
    int64_t shape[ST_MAX_DIMS];
    const void *data;
    size_t bytes;
} StTensor;

typedef struct StFile {
    StTensor *tensors;              // sorted by name
    int count;
    char (*metadata)[2][256];       // the first 64 string pairs of "__metadata__", cut at 255 bytes
    int metadata_count;
    unsigned char *bytes;           // the file, owned
    size_t size;
    char *names;                    // owned
} StFile;

// Writes path.tmp-PID-RANDOM in the same directory (mode 0644 & ~umask, O_EXCL, O_NOFOLLOW),
// fsyncs, renames it to path and fsyncs the directory. On any failure removes the temporary file,
// leaves path as it was, and says which call failed and why.
bool st_write(const char *path, const StTensor *tensors, int count,
              const char *const (*metadata)[2], int metadata_count, Error *err);

// Could st_write write there, as far as can be seen without trying? Removes what runs that were
// killed while they saved have left beside path.
bool st_probe(const char *path, Error *err);

// Reads and checks a whole file: header length, JSON, known types, shape times size (overflow too)
// equal to the bytes, no holes, no overlaps, no duplicate names, the end of the data the end of the
// file. Never allocates more than a small multiple of the file's size. free with st_close.
bool st_open(StFile *file, const char *path, Error *err);
bool st_parse(StFile *file, unsigned char *bytes, size_t size, Error *err); // takes bytes over
void st_close(StFile *file);
const StTensor *st_find(const StFile *file, const char *name);             // NULL: not there
const char *st_metadata(const StFile *file, const char *key);              // NULL: not there
