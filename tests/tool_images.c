// tool_images.c - writes a data set's images as the programs decode them, for tools/reference.
//
//   tool_images --out FILE [--data NAME --image-size PIXELS --test-samples N --seed N]
//
// FILE (safetensors) gets the test images U8 (n, channels, height, width) and their labels I32 (n).
// For a folder of pictures it gets the augmented training images of the first epoch instead, with
// their labels and their crop boxes I32 (n, 5): left, top, width, height, mirrored.
#include "args.h"
#include "check.h"
#include "checkpoint/safetensors.h"
#include "data/pictures.h"

#include <stdlib.h>

typedef struct Box {
    int32_t x, y, width, height, flip;
} Box;

static Box *make_all(Data *data)
{
    Dataset *set = &data->train;
    size_t bytes = (size_t)set->channels * (size_t)set->height * (size_t)set->width;
    Box *boxes = xmalloc((size_t)set->count * sizeof *boxes);
    PictureRoom room = { 0 };
    Error error;
    set->inputs = xmalloc((size_t)set->count * bytes);
    for (int i = 0; i < set->count; i++) {
        uint8_t *image = set->inputs + (size_t)i * bytes;
        if (!picture_make(set, i, &data->augment, 0, &room, image, &error))
            FAIL_ERROR(&error);
        const Span *x = &room.view.x, *y = &room.view.y;
        boxes[i] = (Box){ x->low, y->low, x->high - x->low, y->high - y->low, room.view.flip };
    }
    picture_room_free(&room);
    return boxes;
}

static bool write_images(const Dataset *d, const Box *boxes, const char *path, Error *err)
{
    int64_t count = d->count, channels = d->channels, height = d->height, width = d->width;
    const StTensor tensors[] = {
        { "boxes", "I32", 2, { count, 5 }, boxes, (size_t)count * sizeof *boxes },
        { "labels", "I32", 1, { count }, d->labels, (size_t)count * sizeof *d->labels },
        { "images", "U8", 4, { count, channels, height, width }, d->inputs,
          (size_t)(count * channels * height * width) },
    };
    return st_write(path, boxes ? tensors : tensors + 1, boxes ? 3 : 2, NULL, 0, err);
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
        { "seed", 0, ARG_INT64, &seed, "N", "seed of synthetic images and crops", 0, 1e15 }));
    args_parse(&args, argc, argv);
    CHECK(out, "give --out FILE", "no output file");
    if (!data_open(&data, &config, seed, &error))
        FAIL_ERROR(&error);
    Box *boxes = data.train.pictures ? make_all(&data) : NULL;
    if (!write_images(boxes ? &data.train : &data.test, boxes, out, &error))
        FAIL_ERROR(&error);
    free(boxes);
    data_close(&data);
    return 0;
}
