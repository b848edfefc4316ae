// images_cpu.c - images_load of ops.h for the CPU. It runs in the loader's worker threads, so it is
// plain loops in one thread: OpenMP's threads belong to the training step.
#include "cpu/short_types.h"

#include <string.h>

enum { CHANNELS_MAX = 3 };

// (x / 255 - mean) / deviation for all 256 values, computed in torch's order to get torch's bits,
// then rounded to the type of the canvas.
typedef union Table {
    float wide[256];
    uint16_t half[256];
} Table;

static void tables_fill(Table *tables, int channels, Type type, const float *mean, const float *std)
{
    for (int c = 0; c < channels; c++)
        for (int v = 0; v < 256; v++)
            store(type, &tables[c], v, ((float)v / 255.0f - mean[c]) / std[c]);
}

// out[at] = table[value]
SPECIALIZED void put(size_t size, void *out, ptrdiff_t at, const void *table, uint8_t value)
{
    if (size == sizeof(float))
        ((float *)out)[at] = ((const float *)table)[value];
    else
        ((uint16_t *)out)[at] = ((const uint16_t *)table)[value];
}

// A plane's pixels, every `step`-th number of out: 1 in planes, the block elsewhere.
SPECIALIZED void plane_load(size_t size, void *out, int step, const uint8_t *plane, int pixels,
                            const Table *table)
{
    for (int i = 0; i < pixels; i++)
        put(size, out, (ptrdiff_t)i * step, table, plane[i]);
}

void images_load(Stream *stream, const uint8_t *images, int n, int channels, const float mean[3],
                 const float std[3], void *out, Shape shape)
{
    (void)stream;
    Table tables[CHANNELS_MAX];
    tables_fill(tables, channels, shape.type, mean, std);

    const size_t size = type_size(shape.type), all = shape_bytes(shape);
    const size_t image_bytes = shape.n ? all / (size_t)shape.n : 0;
    const int pixels = shape.h * shape.w, block = shape.block;
    if (shape.c > channels) // channels that only fill a block
        memset(out, 0, (size_t)n * image_bytes);
    for (int i = 0; i < n * channels; i++) {
        const int c = i % channels;
        const uint8_t *plane = images + (size_t)i * pixels;
        char *to = (char *)out + (size_t)(i / channels) * image_bytes +
                   ((size_t)(c / block) * pixels * block + c % block) * size;
        if (size == sizeof(float))
            plane_load(sizeof(float), to, block, plane, pixels, &tables[c]);
        else
            plane_load(sizeof(uint16_t), to, block, plane, pixels, &tables[c]);
    }
    memset((char *)out + (size_t)n * image_bytes, 0, (size_t)(shape.n - n) * image_bytes);
}
