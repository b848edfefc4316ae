// images_cpu.c - images_load of ops.h for the CPU. It runs in the loader's worker threads, so it is
// plain loops in one thread: OpenMP's threads belong to the training step.
#include "cpu/short_types.h"
#include "rng.h"

#include <string.h>

enum { CHANNELS_MAX = 3 };

// (x / 255 - mean) / deviation for all 256 values, computed in torch's order to get torch's bits,
// then rounded to the type of the canvas.
typedef union Table {
    float wide[256];
    uint16_t half[256];
} Table;

static void tables_fill(Table *tables, int channels, Type type, const Augment *augment)
{
    for (int c = 0; c < channels; c++)
        for (int v = 0; v < 256; v++)
            store(type, &tables[c], v, ((float)v / 255.0f - augment->mean[c]) / augment->std[c]);
}

// out[at] = table[value]
SPECIALIZED void put(size_t size, void *out, ptrdiff_t at, const void *table, uint8_t value)
{
    if (size == sizeof(float))
        ((float *)out)[at] = ((const float *)table)[value];
    else
        ((uint16_t *)out)[at] = ((const uint16_t *)table)[value];
}

// An image's position on its canvas: canvas pixel (y, x) shows image pixel (y - top, x - left),
// or black if there is none; in a mirrored image x counts from the right.
typedef struct Place {
    int top, left, flip;
} Place;

static Place place_of(Shape canvas, int h, int w, int32_t id, int64_t epoch, const Augment *augment)
{
    Place place = { (canvas.h - h) / 2, (canvas.w - w) / 2, 0 };
    Jitter jitter = jitter_of(augment->seed, epoch, id, augment->padding);
    if (augment->crop) {
        place.top += augment->padding - jitter.y;
        place.left += augment->padding - jitter.x;
    }
    if (augment->flip)
        place.flip = jitter.flip;
    return place;
}

SPECIALIZED void row_black(size_t size, void *out, int step, int begin, int end, const void *table)
{
    for (int x = begin; x < end; x++)
        put(size, out, (ptrdiff_t)x * step, table, 0);
}

// One row of one channel, from black over the image's pixels to black again. `step` is the distance
// of neighbours in out: 1 in planes, the block elsewhere.
SPECIALIZED void row_load(size_t size, void *out, int step, int width, const uint8_t *row, int w,
                          const Place *place, const void *table)
{
    int begin = place->left > 0 ? place->left : 0;
    int end = place->left + w < width ? place->left + w : width;
    const uint8_t *from = row + begin - place->left;
    if (place->flip) { // mirrored: the row is written from its end
        out = (char *)out + (ptrdiff_t)(width - 1) * step * (ptrdiff_t)size;
        step = -step;
    }
    row_black(size, out, step, 0, begin, table);
    for (int x = begin; x < end; x++)
        put(size, out, (ptrdiff_t)x * step, table, *from++);
    row_black(size, out, step, end, width, table);
}

SPECIALIZED void image_load(size_t size, char *out, Shape canvas, const uint8_t *image, int c,
                            int h, int w, Place place, const Table *tables)
{
    const int block = canvas.block;
    for (int channel = 0; channel < c; channel++) {
        size_t plane = (size_t)(channel / block) * canvas.h * canvas.w * block + channel % block;
        for (int y = 0; y < canvas.h; y++) {
            char *to = out + (plane + (size_t)y * canvas.w * block) * size;
            int source = y - place.top;
            if (source >= 0 && source < h)
                row_load(size, to, block, canvas.w, image + ((size_t)channel * h + source) * w, w,
                         &place, &tables[channel]);
            else
                row_black(size, to, block, 0, canvas.w, &tables[channel]);
        }
    }
}

void images_load(Stream *stream, const uint8_t *images, const int32_t *labels, int c, int h, int w,
                 const int32_t *ids, int n, int64_t epoch, const Augment *augment,
                 void *out, Shape out_shape, int32_t *labels_out)
{
    (void)stream;
    Table tables[CHANNELS_MAX];
    tables_fill(tables, c, out_shape.type, augment);

    const size_t size = type_size(out_shape.type);
    const size_t image_bytes = (size_t)out_shape.c * out_shape.h * out_shape.w * size;
    if (out_shape.c > c) // channels that only fill a block
        memset(out, 0, (size_t)n * image_bytes);
    for (int i = 0; i < n; i++) {
        const int32_t id = ids[i];
        const uint8_t *image = images + (size_t)id * c * h * w;
        const Place place = place_of(out_shape, h, w, id, epoch, augment);
        char *to = (char *)out + (size_t)i * image_bytes;
        if (size == sizeof(float))
            image_load(sizeof(float), to, out_shape, image, c, h, w, place, tables);
        else
            image_load(sizeof(uint16_t), to, out_shape, image, c, h, w, place, tables);
        labels_out[i] = labels[id];
    }
    memset((char *)out + (size_t)n * image_bytes, 0, (size_t)(out_shape.n - n) * image_bytes);
    for (int i = n; i < out_shape.n; i++)
        labels_out[i] = -1;
}
