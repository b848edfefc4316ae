// files.h - what the readers of all formats share: files, memory, threads, checksums.
#pragma once
#include "data.h"
#include <stddef.h>

// --- files ---------------------------------------------------------------------------------------

// A regular file, open for reading; `hint` goes with every error about it.
typedef struct DataFile {
    const char *path, *hint;
    int fd;
    int64_t size;
} DataFile;

// Refuses what is no regular file, and never waits (opening a FIFO would, until somebody writes).
bool data_file_open(DataFile *file, const char *path, const char *hint, Error *err);
void data_file_close(DataFile *file);
// Reads exactly so many bytes. The caller has compared the size: less means that the file changes.
bool data_file_read(const DataFile *file, int64_t offset, void *to, size_t bytes, Error *err);
bool data_file_missing(const char *path); // nothing there, not even something of the wrong kind
bool data_path_join(char *path, size_t size, const char *dir, const char *name, Error *err);

// --- memory and threads --------------------------------------------------------------------------

// Uninitialised memory for images, in huge pages where the system has them: 180 MB in small ones
// are 45,000 page faults. NULL if there is not enough. The caller frees.
uint8_t *data_images_alloc(size_t bytes);

// Runs task(arg, 0), ..., task(arg, count - 1), each on a thread of its own (not OpenMP's, which
// would not survive the fork of a later step). The error is that of the lowest index that failed.
typedef bool (*DataTask)(void *arg, int index, Error *err);
bool data_parallel(DataTask task, void *arg, int count, Error *err);

// --- the fingerprint -----------------------------------------------------------------------------

// Adds bytes to data->checksum: all of them, or those at three fixed places, the first, the middle
// and the last few KB. A copy of the data elsewhere gives the same.
void data_checksum_all(Data *data, const void *bytes, size_t size);
void data_checksum_samples(Data *data, const void *bytes, size_t size);
