// synthetic.c - images for a network to learn, made from the seed, without a download.
//
// Each class has a pattern: a few waves across the image, in each colour. An image is the sum of
// the pattern of its class, a weaker pattern of a different class and noise. Both patterns are
// shifted randomly and wrap at the edges:
//
//   pixel = 128 + strong * pattern[label] + weak * pattern[other] + noise
//
// The label is the class of the stronger pattern. If both are nearly equally strong, it is hard to
// tell.
#include "progress.h"
#include "data/formats.h"
#include "rng.h"
#include "threads.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    CLASSES = 10,
    CHANNELS = 3,
    TRAIN_COUNT = 50000,
    TEST_COUNT = 10000,
    WAVES = 5,
    PITCH_MAX = 3,          // maximum periods of a wave across the image
    NOISE = 40,             // strength of the noise, of 64
    BLOCK = sizeof(Philox), // pixels whose noise comes from one call of the generator
};

// The purpose of a random number: the upper 32 bits of Philox's counter.
enum { FOR_PATTERNS = 1, FOR_TRAIN, FOR_TEST };

typedef struct Job {
    uint64_t seed;
    int size;
    int8_t *patterns;       // (classes, channels, size, stride): rows twice, for shifting
    Dataset *set;
    uint32_t purpose;
} Job;

// --- patterns ------------------------------------------------------------------------------------

// Room for a row twice, and for the last block, which may reach beyond.
static size_t pattern_stride(int size) { return 2 * (size_t)size + BLOCK; }

typedef struct Wave {
    float pitch_y, pitch_x, phase, height;
} Wave;

static Wave wave_of(uint64_t seed, int class, int channel, int wave)
{
    uint64_t at = (uint64_t)((class * CHANNELS + channel) * WAVES + wave);
    Philox r = philox(seed, (uint64_t)FOR_PATTERNS << 32, at);
    const float turn = (float)(2 * M_PI);
    return (Wave){ .pitch_y = turn * (float)((int)(r.v[0] % (2 * PITCH_MAX + 1)) - PITCH_MAX),
                   .pitch_x = turn * (float)((int)(r.v[1] % PITCH_MAX) + 1),
                   .phase = turn * uniform_of(r.v[2]),
                   .height = 20 + 24 * uniform_of(r.v[3]) };
}

static void pattern_make(const Job *job, int class)
{
    const int size = job->size;
    for (int c = 0; c < CHANNELS; c++) {
        Wave waves[WAVES];
        for (int w = 0; w < WAVES; w++)
            waves[w] = wave_of(job->seed, class, c, w);
        for (int y = 0; y < size; y++) {
            size_t plane = (size_t)class * CHANNELS + c;
            int8_t *row = job->patterns + (plane * size + y) * pattern_stride(size);
            for (int x = 0; x < size; x++) {
                float sum = 0;
                for (int w = 0; w < WAVES; w++)
                    sum += waves[w].height * sinf(waves[w].pitch_y * (float)y / (float)size +
                                                  waves[w].pitch_x * (float)x / (float)size +
                                                  waves[w].phase);
                row[x] = row[x + size] = (int8_t)fmaxf(-127, fminf(127, sum));
            }
        }
    }
}

// --- images --------------------------------------------------------------------------------------

// A class's pattern in an image: its shift (y, x), and its strength in 64ths.
typedef struct Layer {
    int class, y, x, strength;
} Layer;

static Layer layer_of(int class, int size, uint32_t where, int strength)
{
    return (Layer){ class, (int)((where >> 16) % (uint32_t)size),
                    (int)((where & 0xffff) % (uint32_t)size), strength };
}

static const int8_t *layer_row(const Job *job, const Layer *layer, int channel, int y)
{
    size_t plane = (size_t)layer->class * CHANNELS + channel;
    size_t row = plane * job->size + (y + layer->y) % job->size;
    return job->patterns + row * pattern_stride(job->size) + layer->x;
}

// BLOCK pixels of both patterns and noise. The length is fixed and every sum fits in 16 bits, so
// that compilers vectorise it.
static void block_make(uint8_t *restrict out, const int8_t *restrict strong, int strength,
                       const int8_t *restrict weak, int weakness, const int8_t *restrict noise)
{
    for (int i = 0; i < BLOCK; i++) {
        int16_t sum = (int16_t)(strength * strong[i] + weakness * weak[i] + NOISE * noise[i]);
        int16_t value = (int16_t)(128 + (sum >> 6));
        out[i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
}

static void image_make(const Job *job, int index)
{
    const int size = job->size;
    const uint64_t image = (uint64_t)job->purpose << 32 | (uint32_t)index;
    Philox what = philox(job->seed, image, 0), where = philox(job->seed, image, 1);

    int label = (int)(what.v[0] % CLASSES);
    int other = (label + 1 + (int)(what.v[1] % (CLASSES - 1))) % CLASSES;
    int strength = 24 + (int)(what.v[2] % 24);
    Layer strong = layer_of(label, size, where.v[0], strength);
    Layer weak = layer_of(other, size, where.v[1], strength * (int)(what.v[3] >> 24) / 256);

    uint64_t blocks = 2; // of random bits so far: `what` and `where`
    uint8_t *out = job->set->inputs + (size_t)index * CHANNELS * size * size;
    for (int row = 0; row < CHANNELS * size; row++, out += size) {
        const int8_t *strong_row = layer_row(job, &strong, row / size, row % size);
        const int8_t *weak_row = layer_row(job, &weak, row / size, row % size);
        for (int x = 0; x < size; x += BLOCK) {
            uint8_t pixels[BLOCK];
            Philox noise = philox(job->seed, image, blocks++);
            block_make(pixels, strong_row + x, strong.strength, weak_row + x, weak.strength,
                       (const int8_t *)noise.v);
            memcpy(out + x, pixels, size - x < BLOCK ? size - x : BLOCK);
        }
    }
    job->set->labels[index] = label;
}

static void images_make(Job *job, Dataset *set, uint32_t purpose)
{
    job->set = set;
    job->purpose = purpose;
    threads_start_openmp(omp_get_max_threads());
#pragma omp parallel for schedule(static)
    for (int i = 0; i < set->count; i++) {
        image_make(job, i);
        if (i % 64 == 0)
            progress_beat();
    }
}

bool synthetic_make(Data *data, const DataConfig *config, int64_t seed, Error *err)
{
    const int size = config->image_size > 0 ? config->image_size : 32;
    int train_count = config->train_count > 0 ? config->train_count : TRAIN_COUNT;
    int test_count = config->test_count > 0 ? config->test_count : TEST_COUNT;
    data->train.classes = data->test.classes = CLASSES;
    if (!dataset_alloc(&data->train, train_count, CHANNELS, size, size, err) ||
        !dataset_alloc(&data->test, test_count, CHANNELS, size, size, err))
        return false;

    Job job = { .seed = (uint64_t)seed, .size = size };
    job.patterns = xcalloc((size_t)CLASSES * CHANNELS * size, pattern_stride(size));
    for (int class = 0; class < CLASSES; class++)
        pattern_make(&job, class);
    images_make(&job, &data->train, FOR_TRAIN);
    images_make(&job, &data->test, FOR_TEST);
    free(job.patterns);
    // Seed and size determine each image, except that machines may round a pixel of a pattern
    // differently.
    data_checksum(data, (int64_t[]){ seed, size }, 2 * sizeof seed);
    return true;
}
