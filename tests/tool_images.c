// tool_images.c - the test images of a data set, for tools/reference/make.py: nothing else makes
// synthetic ones.
//
//   tool_images --out FILE [--data NAME --image-size PIXELS --test-samples N --seed N]
//
// FILE (safetensors) gets images U8 (n, channels, height, width) and labels I32 (n).
#include "args.h"
#include "check.h"
#include "data.h"
#include "checkpoint/safetensors.h"

#include <stdlib.h>

static bool write_images(const Dataset *d, const char *path, Error *err)
{
    int64_t count = d->count, channels = d->channels, height = d->height, width = d->width;
    const StTensor tensors[] = {
        { "images", "U8", 4, { count, channels, height, width }, d->images,
          (size_t)(count * channels * height * width) },
        { "labels", "I32", 1, { count }, d->labels, (size_t)count * sizeof *d->labels },
    };
    return st_write(path, tensors, 2, NULL, 0, err);
}

int main(int argc, char **argv)
{
    Data data;
    Error error;
    Args args = { .summary = "Writes the test images of a data set." };
    const char *out = NULL;
    int64_t seed = 0;
    DataConfig config = data_defaults();
    data_options(&args, &config);
    args_add(&args, ARGS_ROWS(
        { "out", 0, ARG_STRING, &out, "FILE", "where to" },
        { "seed", 0, ARG_INT64, &seed, "N", "of synthetic images", 0, 1e15 }));
    args_parse(&args, argc, argv);
    CHECK(out, "--out FILE", "where to?");
    if (!data_open(&data, &config, seed, &error) || !write_images(&data.test, out, &error))
        FAIL_ERROR(&error);
    data_close(&data);
    return 0;
}
