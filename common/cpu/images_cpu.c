// images_cpu.c - images_load of ops.h for the CPU. It runs in the loader's worker threads, so it is
// plain loops in one thread: OpenMP's threads belong to the training step.
#include "cpu/short_types.h"

#include <string.h>

// One channel of one image.
SPECIALIZED void plane_load(Type type, const uint8_t *plane, size_t pixels, const float *table,
                            void *out)
{
    for (size_t i = 0; i < pixels; i++)
        store_exact(type, out, i, table[plane[i]]);
}

// Images are in planes here: ops_input_block is 1. The table holds the results for all 256 values,
// computed in torch's order to get torch's bits, then rounded to the type.
void images_load(Stream *stream, const uint8_t *images, int n, int channels, const float mean[3],
                 const float std[3], void *out, Shape shape)
{
    const Type type = shape.type;
    const size_t pixels = (size_t)shape.h * shape.w, used = (size_t)n * channels * pixels;
    for (int c = 0; c < channels; c++) {
        float table[256];
        for (int v = 0; v < 256; v++)
            table[v] = rounded(type, ((float)v / 255.0f - mean[c]) / std[c]);
        for (int i = 0; i < n; i++) {
            size_t first = ((size_t)i * channels + c) * pixels;
            BY_TYPE(type, plane_load, images + first, pixels, table, at(type, out, first));
        }
    }
    memset(at(type, out, used), 0, shape_bytes(shape) - used * type_size(type));
}
