// dataset.c - memory, checksum and labels of a data set.
#include "data/formats.h"

#include <stdlib.h>

void data_checksum(Data *data, const void *bytes, size_t size)
{
    data->checksum = crc32_z(data->checksum, bytes, size);
}

bool dataset_alloc(Dataset *set, int count, int channels, int height, int width, Error *err)
{
    size_t bytes = (size_t)count * channels * height * width;
    *set = (Dataset){ .count = count, .channels = channels, .height = height, .width = width,
                      .classes = set->classes, .per_row = 1 };
    set->inputs = malloc(bytes);
    set->labels = malloc(count * sizeof *set->labels);
    return (set->inputs && set->labels) ||
           error_set(err, "if images are synthetic, use a smaller --train-samples, --test-samples "
                     "or --image-size",
                     "out of memory: %d images of %dx%dx%d need %zu MiB", count, channels, height,
                     width, bytes >> 20);
}

int dataset_label(const Dataset *set, int64_t n)
{
    return dataset_is_text(set) ? set->inputs[n + 1] : set->labels[n];
}
