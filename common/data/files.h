// files.h - opens and reads files, plain or gzipped.
#pragma once
#include "data.h"
#include <zlib.h>

// A file, plain or gzipped. Errors of the functions that take a DataFile have its hint.
typedef struct DataFile {
    const char *path, *hint;
    gzFile gz;
    int64_t size;           // on disk
    uint32_t crc;           // of the bytes read so far
} DataFile;

// Opens a regular file and sets *size. Returns -1 on an error, also for any other kind of file. For
// a FIFO the call does not wait for a writer.
int data_file_descriptor(const char *path, const char *hint, int64_t *size, Error *err);
bool data_file_open(DataFile *file, const char *path, const char *hint, Error *err);
void data_file_close(DataFile *file);
// Reads exactly this many bytes, decompressed if the file is gzipped.
bool data_file_read(DataFile *file, void *to, size_t bytes, Error *err);
// Fails if there are more bytes to read or, in a gzipped file, the checksum is wrong.
bool data_file_end(DataFile *file, Error *err);

bool data_file_missing(const char *path);

// Begin with { 0 }; data_file_load grows the memory and reuses it. The caller frees it.
typedef struct FileBytes {
    uint8_t *bytes;
    size_t size, capacity;
} FileBytes;
// Reads a whole regular file of at most 256 MiB.
bool data_file_load(const char *path, FileBytes *to, Error *err);

// Returns `memory` if it has `bytes` or more; else frees it and returns new memory.
void *data_memory(void *memory, size_t *capacity, size_t bytes);
