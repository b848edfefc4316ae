// formats.h - the formats that data_open can read: one reader each.
#pragma once
#include "data/files.h"

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
