// files.h - what the readers of all formats share: files, memory, threads.
#pragma once
#include "data.h"
#include <zlib.h>

// A file, plain or gzipped. `hint` goes with every error about it.
typedef struct DataFile {
    const char *path, *hint;
    gzFile gz;
    int64_t size;           // as it is on the disk
    uint32_t crc;           // of all that has been read
} DataFile;

// Refuses what is no regular file, and never waits (opening a FIFO would, until it has a writer).
bool data_file_open(DataFile *file, const char *path, const char *hint, Error *err);
void data_file_close(DataFile *file);
// Reads exactly so many bytes; what is gzipped is inflated.
bool data_file_read(DataFile *file, void *to, size_t bytes, Error *err);
// Fails unless everything has been read and, in a gzipped file, its checksum is right.
bool data_file_end(DataFile *file, Error *err);

bool data_file_missing(const char *path); // nothing there, not even something of the wrong kind
bool data_path_join(char *path, size_t size, const char *dir, const char *name, Error *err);

// Memory for so many images and labels. data_close frees it.
bool dataset_alloc(Dataset *set, int count, int channels, int height, int width, Error *err);

// Adds them to data->checksum: a copy of the data set elsewhere gives the same.
void data_checksum(Data *data, const void *bytes, size_t size);

// Runs task(arg, 0), ..., task(arg, count - 1), each on a thread of its own (not OpenMP's, which
// would not survive the fork of a later step). The error is that of the lowest index that failed.
typedef bool (*DataTask)(void *arg, int index, Error *err);
bool data_parallel(DataTask task, void *arg, int count, Error *err);
