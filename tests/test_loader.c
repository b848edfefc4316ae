// ctest: PROCESSORS 2 BACKENDS cpu cuda fake SANITIZERS asan tsan
// The loader's batches, from images in memory and from picture files. With 0 to 5 workers they must come in order,
// and have the pixels of a plain reference.
#include "data/pictures.h"
#include "rng.h"
#include "test_device.h"

#include <sys/stat.h>

enum { COUNT = 103, MOST_BYTES = 3 * 40 * 40, MOST_ROWS = 64 };

static Dataset dataset_make(int count, int channels, int height, int width)
{
    Dataset set = { .count = count, .channels = channels, .height = height, .width = width,
                    .classes = 10, .per_row = 1 };
    const int pixels = channels * height * width;
    set.inputs = malloc((size_t)count * pixels);
    set.labels = malloc((size_t)count * sizeof *set.labels);
    for (int id = 0; id < count; id++) {
        set.labels[id] = id * 3;
        for (int i = 0; i < pixels; i++)
            set.inputs[(size_t)id * pixels + i] = (uint8_t)(philox(9, id, i / 4).v[i % 4] >> 7);
    }
    return set;
}

static void dataset_drop(Dataset *set)
{
    free(set->inputs);
    free(set->labels);
}

static const Augment plain = { .mean = { 0.5f, 0.4f, 0.3f }, .std = { 0.2f, 0.25f, 0.3f } };
static const Augment jittered = { .crop = true, .flip = true, .padding = 4, .seed = 77,
                                  .mean = { 0.5f, 0.4f, 0.3f }, .std = { 0.2f, 0.25f, 0.3f } };

// The value that a batch must have in channel c of canvas pixel (y, x).
static float reference(const Dataset *set, int id, int64_t epoch, const Augment *augment,
                       Shape canvas, int c, int y, int x)
{
    Jitter jitter = jitter_of(augment->seed, epoch, id, augment->padding);
    if (augment->flip && jitter.flip)
        x = canvas.w - 1 - x;
    y -= (canvas.h - set->height) / 2;
    x -= (canvas.w - set->width) / 2;
    if (augment->crop) {
        y += jitter.y - augment->padding;
        x += jitter.x - augment->padding;
    }
    bool inside = y >= 0 && y < set->height && x >= 0 && x < set->width;
    int byte =
        inside ? set->inputs[((size_t)(id * set->channels + c) * set->height + y) * set->width + x]
               : 0;
    return (byte / 255.0f - augment->mean[c]) / augment->std[c];
}

// The index of a value in a batch of this shape.
static size_t place(Shape s, int n, int c, int y, int x)
{
    return (((size_t)n * s.h + y) * s.w + x) * s.c + c;
}

// A GPU may round differently.
static int wrong_numbers(const Dataset *set, const Batch *batch, const LoaderConfig *config,
                         const int32_t *ids, int64_t epoch)
{
    static uint8_t bytes[MOST_BYTES];
    static float images[(MOST_ROWS + 2) * MOST_BYTES];
    const float tolerance = strcmp(device_backend, "cpu") == 0 ? 0 : 1e-6f;
    int32_t labels[MOST_ROWS + 2];
    Shape shape = config->shape;
    shape.n = batch->rows;
    copy_to_host(device_stream(device), images, batch->inputs, shape_bytes(shape));
    copy_to_host(device_stream(device), labels, batch->labels, (size_t)shape.n * sizeof *labels);
    stream_sync(device_stream(device));
    int wrong = 0;
    for (int i = 0; i < shape.n; i++) {
        Dataset from = *set;
        Augment augment = config->augment;
        bool there = i < batch->count;
        int id = there ? ids[i] : 0;
        if (set->pictures && there) {
            PictureRoom room = { 0 };
            Error err;
            wrong += !picture_make(set, id, &augment, epoch, &room, bytes, &err);
            picture_room_free(&room);
            from.inputs = bytes - (size_t)id * set->channels * set->height * set->width;
            augment.crop = augment.flip = false;
        }
        wrong += labels[i] != (there ? set->labels[id] : -1);
        for (int c = 0; c < shape.c; c++)
            for (int y = 0; y < shape.h; y++)
                for (int x = 0; x < shape.w; x++) {
                    float off = images[place(shape, i, c, y, x)];
                    if (i < batch->count)
                        off -= reference(&from, id, epoch, &augment, shape, c, y, x);
                    wrong += !((off < 0 ? -off : off) <= tolerance);
                }
    }
    return wrong;
}

static void epoch_check(Loader *loader, const Dataset *set, const LoaderConfig *config,
                        const int32_t *ids, int count, int64_t epoch, int first)
{
    const int n = config->shape.n, batches = (count + n - 1) / n;
    loader_start(loader, ids, count, epoch, first);
    for (int index = first; index < batches; index++) {
        const Batch *batch = loader_next(loader);
        int wanted = count - index * n < n ? count - index * n : n;
        if (!EXPECT(batch && batch->index == index && batch->count == wanted,
                    "batch %d: %d, count %d", index, batch ? batch->index : -1,
                    batch ? batch->count : -1))
            return;
        EXPECT_EQ_INT(batch->rows, config->fill_last ? n : wanted);
        EXPECT_EQ_INT(batch->slot, index % LOADER_SLOTS);
        int wrong = wrong_numbers(set, batch, config, ids + (size_t)index * n, epoch);
        EXPECT(wrong == 0, "epoch %d, batch %d: %d values are wrong", (int)epoch, index, wrong);
    }
    EXPECT(!loader_next(loader), "a batch after the last");
    EXPECT(!loader_next(loader), "a batch after the last, on the second call");
}

// Crops and flips depend neither on the batch size nor on the worker. An epoch may be abandoned while the workers are
// busy.
static void expect_epochs(const Dataset *set, Shape shape, const Augment *augment)
{
    static int32_t ids[COUNT];
    for (int workers = 0; workers <= 5; workers++)
        for (int n = 1; n <= MOST_ROWS; n = n * 3 + 1) {
            LoaderConfig config = { shape, workers == 3 ? plain : *augment, workers,
                                    workers % 2 == 0 };
            config.shape.n = n;
            Loader *loader = loader_new(device, set, &config);
            torch_randperm((uint64_t)n, set->count, ids);
            epoch_check(loader, set, &config, ids, set->count, 0, 0);
            torch_randperm((uint64_t)n + 1, set->count, ids);
            epoch_check(loader, set, &config, ids, set->count, 1, set->count / n / 2);
            loader_start(loader, ids, set->count, 2, 0);
            for (int taken = n % 3; taken > 0; taken--)
                loader_next(loader);
            epoch_check(loader, set, &config, ids, set->count - 1, 3, 0);
            loader_start(loader, ids, set->count, 4, 0);    // freed while the workers are busy
            loader_free(loader);
        }
}

TEST(batches_come_in_order)
{
    Dataset color = dataset_make(COUNT, 3, 12, 12), gray = dataset_make(COUNT, 1, 9, 14);
    expect_epochs(&color, (Shape){ 0, 3, 12, 12 }, &jittered);
    expect_epochs(&gray, (Shape){ 0, 1, 12, 17 }, &jittered);      // small images in the middle of larger ones
    dataset_drop(&color);
    dataset_drop(&gray);
}

// A data set of two classes, with most of the fuzz corpus's pictures.
static void corpus_open(Data *data, const char *name)
{
    char script[4096];
    Error err;
    DataConfig config = data_defaults();
    snprintf(script, sizeof script,
             "cd '%s/tests/fuzz/corpus/picture' && for set in train val; do for class in a b; do "
             "dir='%s'/$set/$class; mkdir -p $dir; for f in *; do cp $f $dir/$f.jpg; done; "
             "done; done", DDP_SOURCE_DIR, test_path(name));
    config.data = test_path(name);
    config.image_size = 32;
    if (system(script) != 0 || !data_open(data, &config, 5, &err))
        FAIL("", "%s: the corpus cannot be opened", name);
}

TEST(batches_of_pictures)
{
    Data data;
    corpus_open(&data, "corpus");
    expect_epochs(&data.train, (Shape){ 0, 3, 32, 32 }, &data.augment);
    data_close(&data);
}

TEST_MAIN_ON_DEVICE(1, 0)
