// fuzz_data.c - libFuzzer target: the first byte selects a reader of data files, which gets the rest as a file. The
// reader must refuse it, or return labels below the number of classes. No allocation may be larger than a file of that
// size can need.
#include "data/formats.h"
#include "fuzz.h"

static void idx_try(const char *images, const char *labels)
{
    uint32_t crc[2];
    Error err = { .text = "" };
    Data data = { .train.classes = 10 };
    bool good = idx_pair_read(&data.train, images, labels, crc, &err);
    require(good || err.text[0]);
    for (int i = 0; good && i < data.train.count; i++)
        require(data.train.labels[i] >= 0 && data.train.labels[i] < 10);
    data_close(&data);
}

static void labels_try(const char *labels)
{
    static const uint8_t images[16 + 21 * 28 * 28] = { 0, 0, 8, 3,  0, 0, 0, 21,  0, 0, 0, 28,
                                                       0, 0, 0, 28 };
    char path[64];
    int fd = file_make(images, sizeof images, path);
    idx_try(path, labels);
    close(fd);
}

static void cifar_try(const char *path, int label_bytes, int classes)
{
    uint8_t images[3 * 3072];
    int32_t labels[3] = { -1, -1, -1 };
    Dataset part = { .count = 3, .classes = classes, .inputs = images, .labels = labels };
    uint32_t crc;
    Error err = { .text = "" };
    bool good = cifar_file_read(&part, path, label_bytes, &crc, &err);
    require(good || err.text[0]);
    for (int i = 0; good && i < 3; i++)
        require(labels[i] >= 0 && labels[i] < classes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0)
        return 0;
    char path[64];
    int fd = file_make(bytes + 1, size - 1, path);
    most_memory = 2 * size * 1032 + (4 << 20); // deflate's highest ratio; the memory grows by doubling
    switch (bytes[0] % 4) {
    case 0: labels_try(path); break;
    case 1: idx_try(path, "no labels"); break;
    case 2: cifar_try(path, 1, 10); break;
    case 3: cifar_try(path, 2, 100); break;
    }
    most_memory = SIZE_MAX;
    close(fd);
    return 0;
}
