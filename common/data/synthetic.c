// synthetic.c - images for a network to learn, made from the seed, without a download.
//
// Each class has a pattern, GRID x GRID cells of random strength in each colour. An image is the
// pattern of its class, of random strength and at a random place (the pattern wraps at the
// edges), plus noise:
//
//   pixel = 128 + strength * pattern[label] + noise
#include "data/formats.h"
#include "progress.h"
#include "rng.h"
#include "threads.h"

#include <omp.h>
#include <stdlib.h>

enum { CLASSES = 10, CHANNELS = 3, GRID = 4, TRAIN_COUNT = 50000, TEST_COUNT = 10000 };
enum { WEAKEST = 6, STRONGEST = 36, NOISE = 40 };       // in units of 1/64

// The purpose of a random number: the upper 32 bits of Philox's counter.
enum { FOR_PATTERNS = 1, FOR_TRAIN, FOR_TEST };

// (classes, channels, size, 2 * size): each row twice, so that a row that begins anywhere wraps.
static int8_t *patterns_make(uint64_t seed, int size)
{
    int8_t *patterns = xmalloc((size_t)CLASSES * CHANNELS * size * 2 * size), *to = patterns;
    for (int plane = 0; plane < CLASSES * CHANNELS; plane++) {
        Philox random = philox(seed, (uint64_t)FOR_PATTERNS << 32, (uint64_t)plane);
        const int8_t *cells = (const int8_t *)random.v;         // (GRID, GRID): all 16 bytes
        for (int y = 0; y < size; y++)
            for (int x = 0; x < 2 * size; x++)
                *to++ = cells[y * GRID / size * GRID + x % size * GRID / size];
    }
    return patterns;
}

static int32_t image_make(uint8_t *to, const int8_t *patterns, uint64_t seed, uint64_t image,
                          int size)
{
    Philox what = philox(seed, image, 0), bits = what;
    const int8_t *noise = (const int8_t *)bits.v;
    int label = (int)(what.v[0] % CLASSES);
    int strength = WEAKEST + (int)(what.v[1] % (STRONGEST - WEAKEST));
    int top = (int)(what.v[2] % (uint32_t)size), left = (int)(what.v[3] % (uint32_t)size);
    for (int row = 0, i = 0; row < CHANNELS * size; row++) {
        int plane = label * CHANNELS + row / size, y = (row + top) % size;
        const int8_t *from = patterns + ((size_t)plane * size + y) * 2 * size + left;
        for (int x = 0; x < size; x++, i++) {
            if (i % (int)sizeof bits == 0)
                bits = philox(seed, image, 1 + (uint64_t)i / sizeof bits);
            int value = 128 + (strength * from[x] + NOISE * noise[i % sizeof bits]) / 64;
            to[i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
        }
    }
    return label;
}

static void set_make(Dataset *set, const int8_t *patterns, uint64_t seed, uint64_t purpose)
{
    size_t bytes = (size_t)CHANNELS * set->height * set->width;
#pragma omp parallel for schedule(static)
    for (int i = 0; i < set->count; i++) {
        set->labels[i] = image_make(set->inputs + i * bytes, patterns, seed,
                                    purpose << 32 | (uint32_t)i, set->width);
        if (i % 64 == 0)
            progress_beat();
    }
}

bool synthetic_make(Data *data, const char *path, const DataConfig *config, Error *err)
{
    const uint64_t seed = data->plain.seed;
    int size = config->image_size > 0 ? config->image_size : 32;
    int train_count = config->train_count > 0 ? config->train_count : TRAIN_COUNT;
    int test_count = config->test_count > 0 ? config->test_count : TEST_COUNT;
    dataset_alloc(&data->train, train_count, CHANNELS, size, size);
    dataset_alloc(&data->test, test_count, CHANNELS, size, size);
    int8_t *patterns = patterns_make(seed, size);
    threads_start_openmp(omp_get_max_threads());
    set_make(&data->train, patterns, seed, FOR_TRAIN);
    set_make(&data->test, patterns, seed, FOR_TEST);
    free(patterns);
    data_checksum(data, (int64_t[]){ (int64_t)seed, size }, 2 * sizeof seed); // they set all pixels
    return true;
}
