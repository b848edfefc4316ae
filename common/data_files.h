// data_files.h - what the files data*.c share. Nobody else needs it.
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

// --- the sets ------------------------------------------------------------------------------------

// These fill data->train and data->test, whose classes are set, from the files in `dir`. On an
// error what they have allocated stays there for data_close.
bool cifar10_read(Data *data, const char *dir, const char *hint, Error *err);
bool cifar100_read(Data *data, const char *dir, const char *hint, Error *err);
bool idx_read(Data *data, const char *dir, const char *hint, Error *err);
bool synthetic_make(Data *data, const DataConfig *config, int64_t seed, Error *err);

// Records [first, first + count) of a CIFAR file that must have `records` of them: each label_bytes
// labels (the last one counts) and 3 x 32 x 32 bytes. open checks the size, read the labels.
typedef struct CifarPart {
    const char *path, *hint;
    int records, first, count;
    int label_bytes, classes;
    DataFile file;
    uint8_t *images;
    int32_t *labels;
} CifarPart;
bool cifar_part_open(CifarPart *part, Error *err);
bool cifar_part_read(const CifarPart *part, Error *err);

// An IDX file, plain or gzipped, of ndim dimensions: 3 for images, which must be height x width, 1
// for labels, which must be below classes. The caller frees bytes.
typedef struct IdxFile {
    const char *path, *hint;
    int ndim, height, width, classes;
    uint8_t *bytes;
    int count;
    bool zipped;
    uint32_t crc;           // gzipped: of all that it inflates to, as it is stored there
} IdxFile;
bool idx_file_read(IdxFile *idx, Error *err);
