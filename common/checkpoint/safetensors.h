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
    const char *dtype;              // the text in the file: "F32", "I64", ...
    int ndim;
    int64_t shape[ST_MAX_DIMS];
    const void *data;
    size_t bytes;
} StTensor;

typedef struct StFile {
    StTensor *tensors;              // in the order of their data
    int count;
    unsigned char *bytes;
    size_t size;
    struct json_t *header;          // the parsed JSON; names and dtypes point into it
} StFile;

// Tensors with larger elements must come first, so that each tensor is aligned in the file.
bool st_write(const char *path, const StTensor *tensors, int count,
              const char *const (*metadata)[2], int metadata_count, Error *err);

// Reads a whole file and checks its header: at most 1 MiB of JSON, and dtypes, shapes and
// offsets that fit the data.
bool st_open(StFile *file, const char *path, Error *err);
bool st_parse(StFile *file, unsigned char *bytes, size_t size, Error *err); // *file then owns bytes
void st_close(StFile *file);
const StTensor *st_find(const StFile *file, const char *name);             // NULL: no such tensor
const char *st_metadata(const StFile *file, const char *key);              // NULL: no such key
