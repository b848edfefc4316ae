// images.c - from bytes to the network's input.
#include "ops/loops.h"

typedef struct ImagesJob {
    const uint8_t *images;      // (n, channels, h, w)
    int n, channels;
    float mean[3], std[3];
    void *out;
    Shape shape;
} ImagesJob;

// Loads a row of one channel of an image, with torch's operations in torch's order, which gives the
// same bits. step: the distance from pixel to pixel in `out`.
INLINE void image_row(const ImagesJob *j, Type type, size_t row, int step)
{
    const Shape *s = &j->shape;
    size_t plane = row / s->h, y = row % s->h, image = plane / j->channels;
    int c = (int)(plane % j->channels), block = s->block;
    size_t first = image * (j->channels / block) + c / block;
    size_t to = (first * s->h + y) * s->w * block + c % block;
    const uint8_t *from = j->images + row * s->w;
    const float mean = j->mean[c], std = j->std[c];
    const bool there = image < (size_t)j->n;
    FOR_ROW(i, k, s->w)
        store_one(type, j->out, to + (size_t)i * step,
                  there ? ((float)from[i] / 255.0f - mean) / std : 0);
}

// Where a plane's pixels are neighbours in memory, the constant 1 lets compilers make vector code
// of the loop.
INLINE void images(const ImagesJob *j, Type type, size_t row)
{
    if (j->shape.block == 1)
        image_row(j, type, row, 1);
    else
        image_row(j, type, row, j->shape.block);
}
ROWS(images, ImagesJob)

void images_load(Stream *stream, const uint8_t *bytes, int n, int channels, const float mean[3],
                 const float std[3], void *out, Shape shape)
{
    ImagesJob job = { bytes, n, channels, { mean[0], mean[1], mean[2] }, { std[0], std[1], std[2] },
                      out, shape };
    size_t rows = (size_t)shape.n * channels * shape.h;
    RUN_ROWS(images, stream, matrix_of(shape.type, rows, shape.w), &job);
}
