// formats.h - a function for each kind of data set that data_open reads or makes, and what these
// functions share. The function for folders of pictures is in pictures.h. A new kind needs such a
// function, and a row in known_sets (data.c) that names it.
#pragma once
#include "data.h"

// Each function fills data->train and data->test, and adds to data->checksum. data.c has set
// `classes` of both, the seed and the classes' names. `path`: a folder, or a text's file. If an
// error has no hint, data.c adds the set's hint. On an error the caller calls data_close.
bool cifar10_read(Data *data, const char *path, const DataConfig *config, Error *err);
bool cifar100_read(Data *data, const char *path, const DataConfig *config, Error *err);
bool idx_read(Data *data, const char *path, const DataConfig *config, Error *err);
// A text, in windows of config->block bytes.
bool text_read(Data *data, const char *path, const DataConfig *config, Error *err);
// The file is a list of words. The text consists of the words that have only the letters a to z, in
// a random order.
bool words_read(Data *data, const char *path, const DataConfig *config, Error *err);
// Makes images from the seed.
bool synthetic_make(Data *data, const char *path, const DataConfig *config, Error *err);

// Reads a CIFAR file of part->count records, each of label_bytes labels (the last one counts) and 3
// x 32 x 32 bytes. The caller allocates part->inputs and part->labels.
bool cifar_file_read(const Dataset *part, const char *path, int label_bytes, uint32_t *crc,
                     Error *err);
// A pair of IDX files, plain or gzipped: images of 28x28 pixels, and labels below set->classes. On
// an error the caller frees what was allocated in `set`.
bool idx_pair_read(Dataset *set, const char *images, const char *labels, uint32_t crc[2],
                   Error *err);

void dataset_alloc(Dataset *set, int count, int channels, int height, int width);
// Adds the bytes to data->checksum.
void data_checksum(Data *data, const void *bytes, size_t size);

bool data_file_missing(const char *path);

// Begin with { 0 }. data_file_load enlarges the memory and reuses it; the caller frees `bytes`.
typedef struct FileBytes {
    uint8_t *bytes;
    size_t size, capacity;
} FileBytes;
// Reads a whole file, and decompresses a gzipped one. Fails at more than `most` bytes.
bool data_file_load(const char *path, size_t most, FileBytes *to, Error *err);
