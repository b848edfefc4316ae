// A data set of picture files: which samples it has, and the loader's batches of them.
//
// ctest: PROCESSORS 2 BACKENDS cpu cuda fake SANITIZERS asan tsan
#include "data/pictures.h"
#include "test.h"

#include <png.h>
#include <sys/stat.h>

enum { CLASSES = 3, FILES = 20, SIZE = 40 };
static const char *const class_names[CLASSES] = { "a, b", "cat", "z\"" };
static Device *device;

// FILES pictures in each class of train, half as many in val; or a single level. Each has a colour
// of its own and a gradient.
static void picture_write(const char *path, int number)
{
    static uint8_t rgb[SIZE * SIZE * 3];
    png_image image = { .version = PNG_IMAGE_VERSION, .width = SIZE, .height = SIZE,
                        .format = PNG_FORMAT_RGB };
    for (int i = 0; i < SIZE * SIZE; i++) {
        rgb[3 * i] = (uint8_t)(number * 3);
        rgb[3 * i + 1] = (uint8_t)(i % SIZE * 6);
        rgb[3 * i + 2] = (uint8_t)(i / SIZE * 6);
    }
    EXPECT(png_image_write_to_file(&image, path, 0, rgb, 0, NULL), "%s: %s", path, image.message);
}

static const char *file_path(const char *dir, const char *part, int class, int number)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s%s/%03d.png", dir, part, class_names[class], number);
    return path;
}

static void part_make(const char *dir, const char *part, int files)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, part);
    mkdir(path, 0755);
    for (int class = 0; class < CLASSES; class++) {
        snprintf(path, sizeof path, "%s/%s%s", dir, part, class_names[class]);
        mkdir(path, 0755);
        for (int i = 0; i < files; i++)
            picture_write(file_path(dir, part, class, i), class * FILES + i);
    }
}

static const char *tree_make(const char *name, bool single)
{
    const char *dir = test_path(name);
    mkdir(dir, 0755);
    part_make(dir, single ? "" : "train/", FILES);
    if (!single)
        part_make(dir, "val/", FILES / 2);
    return dir;
}

static DataConfig config_of(const char *dir)
{
    DataConfig config = data_defaults();
    config.data = dir;
    config.image_size = 32;
    return config;
}

static bool opened(Data *data, const DataConfig *config)
{
    Error err = { 0 };
    return EXPECT(data_open(data, config, 5, &err), "%s", err.text);
}

// --- which samples -------------------------------------------------------------------------------

TEST(a_tree_is_a_data_set)
{
    Data data;
    DataConfig config = config_of(tree_make("tree", false));
    if (!opened(&data, &config))
        return;
    EXPECT_EQ_INT(data.train.count, CLASSES * FILES);
    EXPECT_EQ_INT(data.test.count, CLASSES * FILES / 2);
    EXPECT_EQ_INT(data.train.classes, CLASSES);
    EXPECT_EQ_INT(data.test.height, 32);
    EXPECT_EQ_INT(data.train.labels[FILES], 1);
    EXPECT_EQ_STR(data_class_name(&data, 0), "a_ b");
    EXPECT_EQ_STR(data_class_name(&data, 2), "z_");
    EXPECT(data.augment.crop && data.augment.flip && !data.plain.crop, "augment");
    EXPECT_NEAR(data.plain.mean[0], 0.485, 1e-6);
    EXPECT_EQ_INT(data.test.pictures->resize, 37);  // 8/7 of 32
    data_close(&data);

    config.train_count = 6;     // of each class, not the first ones
    if (!opened(&data, &config))
        return;
    for (int i = 0; i < 6; i++)
        EXPECT_EQ_INT(data.train.labels[i], i / 2);
    data_cut(&data, 3);
    EXPECT(data.train.labels[2] == 2 && data.test.labels[2] == 2, "a class is missing");
    data_close(&data);
}

// A part of each class is set apart, the same in every run; no file is in both.
TEST(a_single_level_is_split)
{
    Data data, again;
    DataConfig config = config_of(tree_make("single", true));
    config.val_split = 0.3;
    if (!opened(&data, &config) || !opened(&again, &config))
        return;
    int seen[CLASSES * FILES] = { 0 }, apart[CLASSES] = { 0 }, differ = 0;
    EXPECT_EQ_INT(data.train.count, CLASSES * FILES * 7 / 10);
    EXPECT_EQ_INT(data.test.count, CLASSES * FILES * 3 / 10);
    for (int i = 0; i < data.train.count; i++)
        seen[data.train.pictures->files[i]]++;
    for (int i = 0; i < data.test.count; i++) {
        seen[data.test.pictures->files[i]]++;
        apart[data.test.labels[i]]++;
        differ += data.test.pictures->files[i] != again.test.pictures->files[i];
    }
    for (int i = 0; i < CLASSES * FILES; i++)
        EXPECT_EQ_INT(seen[i], 1);
    for (int k = 0; k < CLASSES; k++)
        EXPECT_EQ_INT(apart[k], FILES * 3 / 10);
    EXPECT_EQ_INT(differ, 0);
    data_close(&again);
    data_close(&data);
}

TEST(fingerprints_of_trees)
{
    char first[80];
    Data data;
    const char *dir = tree_make("print", false);
    DataConfig config = config_of(dir), copy = config_of(tree_make("print-copy", false));
    if (!opened(&data, &config))
        return;
    snprintf(first, sizeof first, "%s", data.fingerprint);
    data_close(&data);
    if (opened(&data, &copy))
        EXPECT_EQ_STR(data.fingerprint, first);
    data_close(&data);
    picture_write(file_path(config.data, "train/", 1, 4), 77);
    if (opened(&data, &config))
        EXPECT(strcmp(data.fingerprint, first) != 0, "another picture: %s", first);
    data_close(&data);
    char from[4096];
    snprintf(from, sizeof from, "%s", file_path(copy.data, "val/", 2, 3));
    rename(from, file_path(copy.data, "val/", 2, 300));
    if (opened(&data, &copy))
        EXPECT(strcmp(data.fingerprint, first) != 0, "another name: %s", first);
    data_close(&data);
}

// Is image `id` in that epoch, with that seed, image 7 of epoch 0?
static bool same_image(const Data *data, int id, const Augment *augment, int64_t epoch,
                       uint64_t seed)
{
    static uint8_t first[3 * 32 * 32], other[3 * 32 * 32];
    PictureTools tools = { 0 };
    Error err;
    Augment seeded = *augment;
    seeded.seed = seed;
    bool good = picture_make(&data->train, 7, augment, 0, &tools, first, &err) &&
                picture_make(&data->train, id, &seeded, epoch, &tools, other, &err);
    picture_tools_free(&tools);
    return good && memcmp(first, other, sizeof first) == 0;
}

// Training: another part of the picture in each epoch. Evaluation: its middle.
TEST(crops_follow_seed_and_epoch)
{
    Data data;
    DataConfig config = config_of(tree_make("crops", false));
    if (!opened(&data, &config))
        return;
    EXPECT(same_image(&data, 7, &data.augment, 0, 5), "the same image twice");
    EXPECT(!same_image(&data, 7, &data.augment, 1, 5), "another epoch");
    EXPECT(!same_image(&data, 7, &data.augment, 0, 6), "another seed");
    EXPECT(same_image(&data, 7, &data.plain, 1, 6), "the middle, always");
    data_close(&data);
}

// --- batches -------------------------------------------------------------------------------------

// How many numbers of the batch are not (byte / 255 - mean) / std of picture_make's bytes.
static int wrong_numbers(const Data *data, const LoaderConfig *config, const Batch *batch,
                         const int32_t *ids, int64_t epoch)
{
    enum { PIXELS = 32 * 32 };
    static float images[64 * 3 * PIXELS];
    static uint8_t bytes[3 * PIXELS];
    const float tolerance = strcmp(device_backend, "cpu") == 0 ? 0 : 1e-6f;
    int32_t labels[64];
    Stream *stream = device_stream(device);
    PictureTools tools = { 0 };
    int wrong = 0;
    copy_to_host(stream, images, batch->images, (size_t)batch->rows * 3 * PIXELS * sizeof *images);
    copy_to_host(stream, labels, batch->labels, (size_t)batch->rows * sizeof *labels);
    stream_sync(stream);
    for (int i = 0; i < batch->rows; i++) {
        Error err = { 0 };
        bool there = i < batch->count && picture_make(&data->train, ids[i], &config->augment, epoch,
                                                      &tools, bytes, &err);
        wrong += labels[i] != (there ? data->train.labels[ids[i]] : -1);
        for (int k = 0; k < 3 * PIXELS; k++) {
            int c = k / PIXELS;
            float value = ((there ? bytes[k] : 0) / 255.0f - config->augment.mean[c]) /
                          config->augment.std[c];
            float off = images[i * 3 * PIXELS + k] - (i < batch->count ? value : 0);
            wrong += !((off < 0 ? -off : off) <= tolerance);
        }
    }
    picture_tools_free(&tools);
    return wrong;
}

static void epoch_check(Loader *loader, const Data *data, const LoaderConfig *config,
                        const int32_t *ids, int count, int64_t epoch, int first)
{
    const int n = config->shape.n;
    loader_start(loader, ids, count, epoch, first);
    for (int index = first; index * n < count; index++) {
        const Batch *batch = loader_next(loader);
        int wanted = count - index * n < n ? count - index * n : n;
        if (!EXPECT(batch && batch->index == index && batch->count == wanted, "batch %d", index))
            return;
        int wrong = wrong_numbers(data, config, batch, ids + (size_t)index * n, epoch);
        EXPECT(wrong == 0, "epoch %d, batch %d: %d numbers are wrong", (int)epoch, index, wrong);
    }
    EXPECT(!loader_next(loader), "a batch after the last");
}

// Every sample once, in the order of the ids, with the crop that only seed, epoch and id decide:
// whatever the number of workers, the batch, and where an epoch begins.
TEST(batches_of_pictures)
{
    enum { COUNT = CLASSES * FILES };
    Data data;
    int32_t ids[COUNT];
    DataConfig config = config_of(tree_make("batches", false));
    if (!opened(&data, &config))
        return;
    for (int i = 0; i < COUNT; i++)
        ids[i] = i * 7 % COUNT;
    for (int workers = 0; workers <= 5; workers++)
        for (int n = 1; n <= 64; n = n * 4 + 3) {
            LoaderConfig c = { { n, 3, 32, 32, 1 }, workers == 2 ? data.plain : data.augment,
                               workers, workers % 2 == 0 };
            Loader *loader = loader_new(device, &data.train, &c);
            epoch_check(loader, &data, &c, ids, COUNT, 0, 0);
            epoch_check(loader, &data, &c, ids, COUNT, 1, COUNT / n / 2);
            loader_start(loader, ids, COUNT, 2, 0); // ended while the workers are at it
            loader_next(loader);
            epoch_check(loader, &data, &c, ids, COUNT - 1, 3, 0);
            loader_free(loader);
        }
    data_close(&data);
}

// Left out: a black row, which has no label; the rows beside it are as they should be.
TEST(bad_pictures_are_left_out)
{
    Data data;
    int32_t ids[CLASSES * FILES];
    DataConfig config = config_of(tree_make("bad", false));
    config.bad_images = "skip";
    if (!opened(&data, &config))
        return;
    EXPECT_EQ_INT(truncate(file_path(config.data, "train/", 0, 3), 100), 0);
    EXPECT_EQ_INT(unlink(file_path(config.data, "train/", 2, 19)), 0);
    for (int i = 0; i < CLASSES * FILES; i++)
        ids[i] = i;
    LoaderConfig c = { { 16, 3, 32, 32, 1 }, data.augment, 3, false };
    Loader *loader = loader_new(device, &data.train, &c);
    epoch_check(loader, &data, &c, ids, CLASSES * FILES, 0, 0);
    loader_free(loader);
    data_close(&data);
}

int main(void)
{
    if (strcmp(device_backend, "cuda") == 0 && device_count() == 0)
        TEST_SKIP("no GPU");
    device = device_open(0, 1);
    a_tree_is_a_data_set();
    a_single_level_is_split();
    fingerprints_of_trees();
    crops_follow_seed_and_epoch();
    batches_of_pictures();
    bad_pictures_are_left_out();
    device_close(device);
    return test_done();
}
