// images.c - makes the network's input from the bytes of images.
#include "ops/loops.h"

typedef struct ImagesJob {
    const uint8_t *images;      // (n, channels, h, w)
    int n, channels;
    float mean[3], std[3];
    void *out;
    Shape shape;
} ImagesJob;

// Loads a row of one channel of an image, with torch's operations in torch's order, which gives the
// same bits.
INLINE void images(const ImagesJob *j, Type type, size_t row)
{
    const Shape *s = &j->shape;
    size_t plane = row / s->h, image = plane / j->channels;
    int c = (int)(plane % j->channels);
    size_t to = (image * s->h + row % s->h) * s->w * s->c + c;
    const uint8_t *from = j->images + row * s->w;
    const float mean = j->mean[c], std = j->std[c];
    const bool there = image < (size_t)j->n;
    FOR_ROW(i, k, s->w)
        store_one(type, j->out, to + (size_t)i * s->c,
                  there ? ((float)from[i] / 255.0f - mean) / std : 0);
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
