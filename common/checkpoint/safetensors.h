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

// The old file or the new one is there, whatever happens: base/replace_file.h.
bool st_write(const char *path, const StTensor *tensors, int count,
              const char *const (*metadata)[2], int metadata_count, Error *err);

// Reads and checks a whole file: header length, JSON, known types, shape times size (overflow too)
// equal to the bytes, no holes, no overlaps, no duplicate names, the end of the data the end of the
// file. Never allocates more than a small multiple of the file's size. free with st_close.
bool st_open(StFile *file, const char *path, Error *err);
bool st_parse(StFile *file, unsigned char *bytes, size_t size, Error *err); // takes bytes over
void st_close(StFile *file);
const StTensor *st_find(const StFile *file, const char *name);             // NULL: not there
const char *st_metadata(const StFile *file, const char *key);              // NULL: not there
