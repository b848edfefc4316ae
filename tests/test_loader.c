// ctest: PROCESSORS 2 BACKENDS cpu cuda fake SANITIZERS asan tsan
// images_load against a pixel-by-pixel reference; the loader's order, whatever its workers do.
#include "data.h"
#include "rng.h"
#include "test.h"

#include <time.h>

// --- tools ---------------------------------------------------------------------------------------

static Device *device;

// Sample id's pixels and label say which sample it is.
static Dataset dataset_make(int count, int channels, int height, int width)
{
    Dataset set = { .count = count, .channels = channels, .height = height, .width = width,
                    .classes = 10 };
    const int pixels = channels * height * width;
    set.images = malloc((size_t)count * pixels);
    set.labels = malloc((size_t)count * sizeof *set.labels);
    for (int id = 0; id < count; id++) {
        set.labels[id] = id * 3;
        for (int i = 0; i < pixels; i++)
            set.images[(size_t)id * pixels + i] = (uint8_t)(philox(9, id, i / 4).v[i % 4] >> 7);
    }
    return set;
}

static void dataset_drop(Dataset *set)
{
    free(set->images);
    free(set->labels);
}

static const Augment plain = { .mean = { 0.5f, 0.4f, 0.3f }, .std = { 0.2f, 0.25f, 0.3f } };
static const Augment jittered = { .crop = true, .flip = true, .padding = 4, .seed = 77,
                                  .mean = { 0.5f, 0.4f, 0.3f }, .std = { 0.2f, 0.25f, 0.3f } };

// One number of what images_load promises: channel c of canvas pixel (y, x).
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
        inside ? set->images[((size_t)(id * set->channels + c) * set->height + y) * set->width + x]
               : 0;
    return (byte / 255.0f - augment->mean[c]) / augment->std[c];
}

// Where that number is in a batch of this shape: data[n][c / block][h][w][block].
static size_t place(Shape s, int n, int c, int y, int x)
{
    size_t plane = (size_t)n * (s.c / s.block) + c / s.block;
    return ((plane * s.h + y) * s.w + x) * s.block + c % s.block;
}

// How many numbers of a batch of these ids are not what they should be. A GPU may round
// differently.
static int wrong_numbers(const Dataset *set, const float *images, Shape shape, const int32_t *ids,
                         int n, int64_t epoch, const Augment *augment)
{
    const float tolerance = strcmp(device_backend, "cpu") == 0 ? 0 : 1e-6f;
    int wrong = 0;
    for (int i = 0; i < shape.n; i++)
        for (int c = 0; c < shape.c; c++)
            for (int y = 0; y < shape.h; y++)
                for (int x = 0; x < shape.w; x++) {
                    float wanted =
                        i < n ? reference(set, ids[i], epoch, augment, shape, c, y, x) : 0;
                    float off = images[place(shape, i, c, y, x)] - wanted;
                    wrong += !((off < 0 ? -off : off) <= tolerance);
                }
    return wrong;
}

// A batch as the host sees it.
typedef struct HostBatch {
    float *images;
    int32_t *labels;
} HostBatch;

static HostBatch batch_fetch(const Batch *batch, Shape shape)
{
    HostBatch host;
    shape.n = batch->rows;
    host.images = malloc(shape_count(shape) * sizeof *host.images);
    host.labels = malloc((size_t)shape.n * sizeof *host.labels);
    copy_to_host(device_stream(device), host.images, batch->images, shape_count(shape) * 4);
    copy_to_host(device_stream(device), host.labels, batch->labels, (size_t)shape.n * 4);
    stream_sync(device_stream(device));
    return host;
}

static void batch_drop(HostBatch *host)
{
    free(host->images);
    free(host->labels);
}

// --- images_load ---------------------------------------------------------------------------------

TEST(images_match_the_reference)
{
    static const struct {
        int channels, height, width, canvas_height, canvas_width;
    } cases[] = {
        { 3, 32, 32, 32, 32 }, { 1, 28, 28, 32, 32 },  { 1, 28, 28, 28, 28 },
        { 3, 9, 14, 12, 17 },  { 2, 11, 11, 11, 11 },
    };
    bool cuda = strcmp(device_backend, "cuda") == 0;    // there channels are side by side
    const int32_t ids[7] = { 6, 0, 3, 3, 1, 5, 2 };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        Dataset set = dataset_make(7, cases[k].channels, cases[k].height, cases[k].width);
        for (int mode = 0; mode < 4; mode++) {
            Augment augment = mode & 1 ? jittered : plain;
            augment.flip = mode & 2;
            int rows = mode == 3 ? 9 : 7, c = cases[k].channels;    // two rows of nothing
            Shape shape = { rows, c, cases[k].canvas_height, cases[k].canvas_width, cuda ? c : 1 };
            Loader *loader = loader_new(device, &set, &(LoaderConfig){ shape, augment, 0, true });
            loader_start(loader, ids, 7, 5, 0);
            HostBatch host = batch_fetch(loader_next(loader), shape);
            int wrong = wrong_numbers(&set, host.images, shape, ids, 7, 5, &augment);
            EXPECT(wrong == 0, "case %zu, mode %d: %d numbers are wrong", k, mode, wrong);
            for (int i = 0; i < shape.n; i++)
                EXPECT_EQ_INT(host.labels[i], i < 7 ? ids[i] * 3 : -1);
            batch_drop(&host);
            loader_free(loader);
        }
        dataset_drop(&set);
    }
}

// --- epochs --------------------------------------------------------------------------------------

static const Shape small = { 0, 3, 12, 12, 1 };

// Takes an epoch from batch `first` on and checks every batch of it.
static void epoch_check(Loader *loader, const Dataset *set, const LoaderConfig *config,
                        const int32_t *ids, int count, int64_t epoch, int first)
{
    const int n = config->shape.n, batches = (count + n - 1) / n;
    loader_start(loader, ids, count, epoch, first);
    EXPECT_EQ_INT(loader_batches(loader), batches);
    for (int index = first; index < batches; index++) {
        const Batch *batch = loader_next(loader);
        int wanted = count - index * n < n ? count - index * n : n;
        if (!EXPECT(batch && batch->index == index && batch->count == wanted,
                    "batch %d: %d, count %d", index, batch ? batch->index : -1,
                    batch ? batch->count : -1))
            return;
        EXPECT_EQ_INT(batch->rows, config->pad_tail ? n : wanted);
        EXPECT_EQ_INT(batch->slot, index % LOADER_SLOTS);

        Shape shape = config->shape;
        shape.n = batch->rows;
        HostBatch host = batch_fetch(batch, shape);
        int wrong = wrong_numbers(set, host.images, shape, ids + (size_t)index * n, wanted, epoch,
                                  &config->augment);
        EXPECT(wrong == 0, "epoch %d, batch %d: %d numbers are wrong", (int)epoch, index, wrong);
        for (int i = 0; i < batch->rows; i++)
            EXPECT_EQ_INT(host.labels[i], i < wanted ? ids[index * n + i] * 3 : -1);
        batch_drop(&host);
    }
    EXPECT(!loader_next(loader), "a batch after the last");
    EXPECT(!loader_next(loader), "a batch after the last, asked twice");
}

// Every sample once an epoch, in the order of the ids, as the reference makes it: so neither the
// batch a sample is in nor the worker that loads it changes its crop or flip.
TEST(batches_come_in_order)
{
    enum { COUNT = 203 };
    static int32_t ids[COUNT];
    Dataset set = dataset_make(COUNT, 3, 12, 12);
    for (int workers = 0; workers <= 5; workers++)
        for (int n = 1; n <= 64; n = n * 3 + 1) {
            LoaderConfig config = { small, jittered, workers, workers % 2 == 0 };
            config.shape.n = n;
            Loader *loader = loader_new(device, &set, &config);
            for (int64_t epoch = 0; epoch < 2; epoch++) {
                torch_randperm((uint64_t)epoch, COUNT, ids);
                epoch_check(loader, &set, &config, ids, COUNT, epoch, 0);
            }
            loader_free(loader);
        }
    dataset_drop(&set);
}

// Epochs of any length from any batch on, and none of them needs to be finished, or begun.
TEST(epochs_begin_and_end_anywhere)
{
    enum { COUNT = 100 };
    static int32_t ids[2 * COUNT];
    Dataset set = dataset_make(COUNT, 3, 12, 12);
    for (int workers = 0; workers <= 3; workers++) {
        LoaderConfig config = { small, jittered, workers, false };
        config.shape.n = 8;
        Loader *loader = loader_new(device, &set, &config);
        EXPECT_EQ_INT(loader_batches(loader), 0);
        EXPECT(!loader_next(loader), "a batch before the first epoch");
        for (int round = 0; round < 60; round++) {
            int count = (int)(philox(3, 0, round).v[0] % (2 * COUNT)); // some ids twice
            int batches = (count + 7) / 8;
            int first = (int)(philox(3, 1, round).v[0] % (batches + 1));
            int taken = (int)(philox(3, 2, round).v[0] % 6);
            torch_randperm(round, COUNT, ids);
            torch_randperm(round + 1, COUNT, ids + COUNT);
            loader_start(loader, ids, count, round, first);
            if (round % 3 == 0)
                nanosleep(&(struct timespec){ 0, 300000 }, NULL); // the workers get ahead
            for (int i = 0; i < taken && first + i < batches; i++) {
                const Batch *batch = loader_next(loader);
                EXPECT(batch && batch->index == first + i, "round %d: not batch %d", round,
                       first + i);
            }
            if (round % 5 == 4)
                epoch_check(loader, &set, &config, ids, count, round, first);
        }
        loader_start(loader, ids, COUNT, 0, 0); // freed while the workers are at it
        loader_free(loader);
    }
    dataset_drop(&set);
    loader_free(NULL);
}

// The last batch, of one row, is full long before the first: the caller still waits for its own.
TEST(a_batch_is_whole_when_it_is_given)
{
    enum { ROWS = 1000, COUNT = ROWS + 1 };
    static int32_t ids[COUNT];
    Dataset set = dataset_make(COUNT, 3, 12, 12);
    LoaderConfig config = { small, plain, 2, false };
    config.shape.n = ROWS;
    Loader *loader = loader_new(device, &set, &config);
    for (int round = 0; round < 30; round++) {
        torch_randperm((uint64_t)round, COUNT, ids);
        loader_start(loader, ids, COUNT, 0, 0);
        HostBatch host = batch_fetch(loader_next(loader), config.shape);
        int wrong = 0;
        for (int i = 0; i < ROWS; i++)
            wrong += host.labels[i] != ids[i] * 3;
        EXPECT(wrong == 0, "round %d: %d labels are wrong", round, wrong);
        batch_drop(&host);
    }
    loader_free(loader);
    dataset_drop(&set);
}

// Two loaders (training, evaluation) at once, and the waiting that loader_next reports.
TEST(loaders_do_not_disturb_each_other)
{
    enum { COUNT = 60 };
    int32_t ids[COUNT];
    torch_randperm(1, COUNT, ids);
    Dataset set = dataset_make(COUNT, 3, 12, 12);
    LoaderConfig one = { small, jittered, 2, false }, two = { small, plain, 1, true };
    one.shape.n = 7;
    two.shape.n = 25;
    Loader *train = loader_new(device, &set, &one), *test = loader_new(device, &set, &two);
    loader_start(train, ids, COUNT, 3, 0);
    EXPECT_EQ_INT(loader_next(train)->index, 0);
    epoch_check(test, &set, &two, ids, COUNT, 0, 0);
    EXPECT_EQ_INT(loader_next(train)->index, 1);
    epoch_check(train, &set, &one, ids, COUNT, 4, 2);

    loader_wait_ms(train);
    EXPECT(loader_wait_ms(train) == 0, "waiting is not counted from the last time on");
    loader_free(test);
    loader_free(train);

    one.workers = 0; // without workers the caller prepares the batch, and waits for it
    train = loader_new(device, &set, &one);
    loader_start(train, ids, COUNT, 0, 0);
    loader_next(train);
    double ms = loader_wait_ms(train);
    EXPECT(ms > 0 && ms < 5000, "%g ms", ms);
    loader_free(train);
    dataset_drop(&set);
}

int main(void)
{
    if (strcmp(device_backend, "cuda") == 0 && device_count() == 0)
        TEST_SKIP("no GPU");
    device = device_open(0, 1);
    images_match_the_reference();
    batches_come_in_order();
    epochs_begin_and_end_anywhere();
    a_batch_is_whole_when_it_is_given();
    loaders_do_not_disturb_each_other();
    device_close(device);
    return test_done();
}
