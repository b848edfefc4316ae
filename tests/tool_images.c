// tool_images.c - writes a data set's images as the programs decode them, for tools/reference.
//
//   tool_images --out FILE [--data NAME --image-size PIXELS --test-samples N --seed N]
//
// FILE (safetensors) gets the test images U8 (n, channels, height, width) and their labels I32 (n).
#include "args.h"
#include "check.h"
#include "checkpoint/safetensors.h"
#include "data.h"

#include <stdlib.h>

static bool write_images(const Dataset *d, const char *path, Error *err)
{
    int64_t count = d->count, channels = d->channels, height = d->height, width = d->width;
    const StTensor tensors[] = {
        { "labels", "I32", 1, { count }, d->labels, (size_t)count * sizeof *d->labels },
        { "images", "U8", 4, { count, channels, height, width }, d->inputs,
          (size_t)(count * channels * height * width) },
    };
    return st_write(path, tensors, 2, NULL, 0, err);
}

int main(int argc, char **argv)
{
    Data data;
    Error error;
    Args args = { .summary = "Writes the images of a data set." };
    const char *out = NULL;
    int64_t seed = 0;
    DataConfig config;
    data_options(&args, &config);
    args_add(&args, ARGS_ROWS(
        { "out", 0, ARG_STRING, &out, "FILE", "safetensors file to write" },
        { "seed", 0, ARG_INT64, &seed, "N", "seed of synthetic images", 0, 1e15 }));
    args_parse(&args, argc, argv);
    CHECK(out, "give --out FILE", "no output file");
    if (!data_open(&data, &config, seed, &error))
        FAIL_ERROR(&error);
    if (!write_images(&data.test, out, &error))
        FAIL_ERROR(&error);
    data_close(&data);
    return 0;
}
