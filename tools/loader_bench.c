// loader_bench.c - measures the loader's pictures per second without a model, over one epoch of the
// training set. tools/bench.py compares this rate with that of PyTorch's DataLoader.
//
//   build/cpu/loader_bench --data DIR -j 4
#include "args.h"
#include "check.h"
#include "clock.h"
#include "data.h"

int main(int argc, char **argv)
{
    Data data;
    Error error;
    int rows = 64;
    Args args = { .summary = "Measures how fast batches are made." };
    DataConfig config;
    data_options(&args, &config);
    args_add(&args, ARGS_ROWS(
        { "batch-size", 'b', ARG_INT, &rows, "N", "samples per batch", 1, 65536 }));
    args_parse(&args, argc, argv);
    if (!data_open(&data, &config, 0, &error))
        FAIL_ERROR(&error);

    const Dataset *set = &data.train;
    Shape shape = { rows, set->channels, set->height, set->width, TYPE_F32 };
    Device *device = device_open(0, 1);
    Loader *loader =
        loader_new(device, set, &(LoaderConfig){ shape, data.augment, config.workers, false });
    double begin = clock_now();
    int made = 0;
    loader_start(loader, NULL, set->count, 0, 0);
    for (const Batch *batch; (batch = loader_next(loader));)
        made += batch->count;
    double seconds = clock_now() - begin;
    printf("%d images of 3x%dx%d, %d workers: %.1f images/s\n", made, set->height, set->width,
           config.workers, made / seconds);
    loader_free(loader);
    device_close(device);
    data_close(&data);
    return 0;
}
