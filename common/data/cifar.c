// cifar.c - the binary versions of CIFAR-10 and CIFAR-100 (Krizhevsky, 2009).
//
//   CIFAR-10    six files of 10,000 records:    [label] [1024 red] [1024 green] [1024 blue]
//   CIFAR-100   train.bin 50,000, test.bin 10,000:  [coarse label] [fine label] [the same 3072]
//
// No file has a header. Only a file's length and labels (CIFAR-100: the fine ones) are checked.
#include "data/formats.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { IMAGE_BYTES = 3 * 32 * 32 };

static const char hint[] = "download the data set again";

bool cifar_file_read(const Dataset *part, const char *path, int label_bytes, uint32_t *crc,
                     Error *err)
{
    const size_t record = label_bytes + IMAGE_BYTES, wanted = part->count * record;
    FileBytes file = { 0 };
    bool good = data_file_load(path, INT_MAX, &file, err);
    if (good && file.size != wanted)
        good = error_set(err, hint, "%s has %zu bytes, not %zu", path, file.size, wanted);
    for (int i = 0; i < part->count && good; i++) {
        const uint8_t *at = file.bytes + i * record;
        part->labels[i] = at[label_bytes - 1];
        memcpy(part->inputs + (size_t)i * IMAGE_BYTES, at + label_bytes, IMAGE_BYTES);
        if (part->labels[i] >= part->classes)
            good = error_set(err, hint, "%s: record %d has label %d, but labels are 0 to %d", path,
                             i, part->labels[i], part->classes - 1);
    }
    *crc = good ? crc32_z(0, file.bytes, file.size) : 0;
    free(file.bytes);
    return good;
}

// The last of the `count` files has the test images.
static bool cifar_read(Data *data, const char *dir, const char *const *names, int count,
                       int label_bytes, Error *err)
{
    char path[PATH_MAX];
    dataset_alloc(&data->train, 50000, 3, 32, 32);
    dataset_alloc(&data->test, 10000, 3, 32, 32);
    for (int i = 0; i < count; i++) {
        uint32_t crc;
        Dataset part = data->test;
        if (i < count - 1) {
            part = data->train;
            part.count /= count - 1;
            part.inputs += (size_t)i * part.count * IMAGE_BYTES;
            part.labels += (size_t)i * part.count;
        }
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (!cifar_file_read(&part, path, label_bytes, &crc, err))
            return false;
        data_checksum(data, &crc, sizeof crc);
    }
    return true;
}

bool cifar10_read(Data *data, const char *path, const DataConfig *config, Error *err)
{
    static const char *const names[] = { "data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                         "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin" };
    return cifar_read(data, path, names, 6, 1, err);
}

bool cifar100_read(Data *data, const char *path, const DataConfig *config, Error *err)
{
    return cifar_read(data, path, (const char *[]){ "train.bin", "test.bin" }, 2, 2, err);
}
