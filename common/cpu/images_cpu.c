// images_cpu.c - images_load of ops.h for the CPU. It runs in the loader's worker threads, so it is
// plain loops in one thread: OpenMP's threads belong to the training step.
#include "ops.h"
#include "rng.h"

#include <string.h>

enum { CHANNELS_MAX = 3 };

// x / 255, minus mean, over deviation, for all 256 values there are; computed in torch's order, so
// that the bits are torch's.
static void tables_fill(float tables[][256], int channels, const Augment *augment)
{
    for (int c = 0; c < channels; c++)
        for (int v = 0; v < 256; v++)
            tables[c][v] = ((float)v / 255.0f - augment->mean[c]) / augment->std[c];
}

// Where an image lies on its canvas: canvas pixel (y, x) shows image pixel (y - top, x - left), or
// black if there is none; in a mirrored image x counts from the right.
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

static void row_fill(float *out, int step, int begin, int end, float value)
{
    for (int x = begin; x < end; x++)
        out[(ptrdiff_t)x * step] = value;
}

// One row of one channel, from black over the image's pixels to black again. `step` is the distance
// of neighbours in out: 1 in planes, the block elsewhere.
static void row_load(float *out, int step, int width, const uint8_t *row, int w, const Place *place,
                     const float *table)
{
    int begin = place->left > 0 ? place->left : 0;
    int end = place->left + w < width ? place->left + w : width;
    const uint8_t *from = row + begin - place->left;
    if (place->flip) { // the same, seen in the mirror: the row is written from its end
        out += (ptrdiff_t)(width - 1) * step;
        step = -step;
    }
    row_fill(out, step, 0, begin, table[0]);
    float *to = out + (ptrdiff_t)begin * step;
    for (int x = begin; x < end; x++, to += step)
        *to = table[*from++];
    row_fill(out, step, end, width, table[0]);
}

static void image_load(float *out, Shape canvas, const uint8_t *image, int c, int h, int w,
                       Place place, float tables[][256])
{
    const int block = canvas.block;
    for (int channel = 0; channel < c; channel++) {
        float *plane =
            out + (size_t)(channel / block) * canvas.h * canvas.w * block + channel % block;
        for (int y = 0; y < canvas.h; y++) {
            float *to = plane + (size_t)y * canvas.w * block;
            int source = y - place.top;
            if (source >= 0 && source < h)
                row_load(to, block, canvas.w, image + ((size_t)channel * h + source) * w, w, &place,
                         tables[channel]);
            else
                row_fill(to, block, 0, canvas.w, tables[channel][0]);
        }
    }
}

void images_load(Stream *stream, const uint8_t *images, const int32_t *labels, int c, int h, int w,
                 const int32_t *ids, int n, int64_t epoch, const Augment *augment,
                 float *out, Shape out_shape, int32_t *labels_out)
{
    (void)stream;
    float tables[CHANNELS_MAX][256];
    tables_fill(tables, c, augment);

    const size_t image_floats = (size_t)out_shape.c * out_shape.h * out_shape.w;
    if (out_shape.c > c) // channels that only fill up a block
        memset(out, 0, (size_t)n * image_floats * sizeof *out);
    for (int i = 0; i < n; i++) {
        const int32_t id = ids[i];
        image_load(out + i * image_floats, out_shape, images + (size_t)id * c * h * w, c, h, w,
                   place_of(out_shape, h, w, id, epoch, augment), tables);
        labels_out[i] = labels[id];
    }
    memset(out + (size_t)n * image_floats, 0,
           (size_t)(out_shape.n - n) * image_floats * sizeof *out);
    for (int i = n; i < out_shape.n; i++)
        labels_out[i] = -1;
}
