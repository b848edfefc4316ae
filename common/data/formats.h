// formats.h - a function for each kind of data set that data_open reads or makes. pictures.h has
// the one for folders of pictures.
#pragma once
#include "data/files.h"

// Each fills data->train and data->test, and adds to data->checksum. Functions with `dir` read the
// `classes` of both sets, so set these first. On an error the caller calls data_close.
bool cifar10_read(Data *data, const char *dir, const char *hint, Error *err);
bool cifar100_read(Data *data, const char *dir, const char *hint, Error *err);
bool idx_read(Data *data, const char *dir, const char *hint, Error *err);
bool synthetic_make(Data *data, const DataConfig *config, int64_t seed, Error *err);
// A text, in windows of `block` bytes. words: the file is a list of words; the text is those lines
// that have only the letters a to z, in a random order.
bool text_read(Data *data, const char *path, int block, bool words, Error *err);

bool dataset_alloc(Dataset *set, int count, int channels, int height, int width, Error *err);
// Adds the bytes to data->checksum.
void data_checksum(Data *data, const void *bytes, size_t size);

// A CIFAR file of part->count records, each of label_bytes labels (the last one counts) and 3 x 32
// x 32 bytes. The caller allocates part->inputs and part->labels.
bool cifar_file_read(const Dataset *part, const char *path, int label_bytes, const char *hint,
                     uint32_t *crc, Error *err);

// A pair of IDX files, plain or gzipped: images of 28x28 pixels, and labels below set->classes. On
// an error the caller frees what was allocated in `set`.
bool idx_pair_read(Dataset *set, const char *images, const char *labels, const char *hint,
                   uint32_t *crc, Error *err);
