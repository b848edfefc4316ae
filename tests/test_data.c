// Data sets: good files are read unchanged, damaged ones are refused. Also fingerprints and synthetic images.
#include "check.h"
#include "data/formats.h"
#include "test.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

// --- tools ---------------------------------------------------------------------------------------

// "NAME:PATH" of a folder in $TMP. Valid during the next three calls.
static const char *in(const char *name, const char *folder)
{
    static char sets[4][PATH_MAX];
    static int turn;
    char *set = sets[turn++ % 4];
    snprintf(set, sizeof sets[0], "%s:%s", name, test_path(folder));
    return set;
}

static bool open_from(Data *data, const char *where, Error *err)
{
    DataConfig config = data_defaults();
    config.data = where;
    *err = (Error){ 0 };
    return data_open(data, &config, 0, err);
}

static void expect_refused(const char *where, const char *words)
{
    Data data;
    Error err;
    if (EXPECT(!open_from(&data, where, &err), "%s was opened; wanted: %s", where, words))
        EXPECT_HAS(err.text, words);
    else
        data_close(&data);
}

static const char *path_in(const char *folder, const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", test_path(folder), name);
    return path;
}

static void bytes_put(const char *folder, const char *name, int64_t offset, const void *bytes, size_t size)
{
    FILE *file = fopen(path_in(folder, name), "r+");
    EXPECT(file && fseek(file, offset, SEEK_SET) == 0 && fwrite(bytes, size, 1, file) == 1
               && fclose(file) == 0, "%s", name);
}

// --- IDX -----------------------------------------------------------------------------------------

enum { TRAIN = 20, TEST_N = 10, PIXELS = 28 * 28, IMAGES_MAX = 16 + TRAIN * PIXELS };

static void put_big_endian(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (24 - 8 * i));
}

static uint8_t idx_pixel(int i) { return (uint8_t)(i % 251 * (i / 5000 + 1)); }

static size_t idx_images(uint8_t *out, int count)
{
    put_big_endian(out, 0x803);
    put_big_endian(out + 4, (uint32_t)count);
    put_big_endian(out + 8, 28);
    put_big_endian(out + 12, 28);
    for (int i = 0; i < count * PIXELS; i++)
        out[16 + i] = idx_pixel(i);
    return 16 + (size_t)count * PIXELS;
}

static size_t idx_labels(uint8_t *out, int count)
{
    put_big_endian(out, 0x801);
    put_big_endian(out + 4, (uint32_t)count);
    for (int i = 0; i < count; i++)
        out[8 + i] = (uint8_t)(i * 7 % 10);
    return 8 + (size_t)count;
}

static void idx_set_write(const char *folder, bool zipped)
{
    static uint8_t bytes[IMAGES_MAX];
    static const char *const names[4] = { "train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                          "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte" };
    mkdir(test_path(folder), 0755);
    for (int i = 0; i < 4; i++) {
        int count = i < 2 ? TRAIN : TEST_N;
        size_t size = i % 2 == 0 ? idx_images(bytes, count) : idx_labels(bytes, count);
        char name[40];
        snprintf(name, sizeof name, "%s%s", names[i], zipped ? ".gz" : "");
        gzFile file = gzopen(path_in(folder, name), zipped ? "wb" : "wbT");
        EXPECT(file && gzwrite(file, bytes, (unsigned)size) == (int)size && gzclose(file) == Z_OK, "%s", name);
    }
}

TEST(idx_is_read_plain_and_gzipped)
{
    static const char *const names[2] = { "mnist", "fashion-mnist" };
    for (int zipped = 0; zipped < 2; zipped++) {
        int wrong = 0;
        Data data;
        Error err;
        idx_set_write("digits", zipped);
        if (!EXPECT(open_from(&data, in(names[zipped], "digits"), &err), "%s", err.text))
            continue;
        EXPECT(data.train.count == TRAIN && data.test.count == TEST_N, "%d + %d", data.train.count, data.test.count);
        EXPECT(data.train.channels == 1 && data.train.height == 28 && data.test.width == 28, "not 28x28");
        for (int i = 0; i < TRAIN * PIXELS; i++)
            wrong += data.train.inputs[i] != idx_pixel(i);
        for (int i = 0; i < TEST_N * PIXELS; i++)
            wrong += data.test.inputs[i] != idx_pixel(i);
        for (int i = 0; i < TRAIN; i++)
            wrong += data.train.labels[i] != i * 7 % 10;
        EXPECT_EQ_INT(wrong, 0);
        EXPECT_EQ_STR(data.name, names[zipped]);
        EXPECT_EQ_STR(data.source, test_path("digits"));
        EXPECT(!data.augment.crop && !data.augment.flip, "digits must not be cropped or flipped");
        EXPECT_NEAR(data.augment.mean[0], zipped ? 0.2860 : 0.1307, 1e-6);
        data_close(&data);
    }
}

TEST(damaged_idx_is_refused)
{
    idx_set_write("damaged", false);
    bytes_put("damaged", "t10k-labels-idx1-ubyte", 9, "\x0a", 1);
    expect_refused(in("mnist", "damaged"), "image 1 has label 10");
    idx_set_write("damaged", false);
    bytes_put("damaged", "t10k-images-idx3-ubyte", 4, "\x80", 1);
    expect_refused(in("mnist", "damaged"), "its header claims 2147483658 items");
    struct stat info;
    idx_set_write("zipped", true);
    stat(path_in("zipped", "train-labels-idx1-ubyte.gz"), &info);
    EXPECT_EQ_INT(truncate(path_in("zipped", "train-labels-idx1-ubyte.gz"), info.st_size - 3), 0);  // cuts its checksum
    expect_refused(in("mnist", "zipped"), "unexpected end of file");
}

// --- CIFAR ---------------------------------------------------------------------------------------

enum { CIFAR_IMAGE = 3072 };

static uint8_t cifar_pixel(int record, int i) { return (uint8_t)(record * 31 + i * 7 + i / 1024); }

// Of `records` records, only the first and the last are not zeros: a sparse file is quick to make.
static void cifar_file_make(const char *folder, const char *name, int records, int label_bytes, int label)
{
    const int size = label_bytes + CIFAR_IMAGE;
    mkdir(test_path(folder), 0755);
    fclose(fopen(path_in(folder, name), "w"));
    EXPECT_EQ_INT(truncate(path_in(folder, name), (off_t)records * size), 0);
    for (int record = 0; record < records; record += records - 1) {
        uint8_t bytes[2 + CIFAR_IMAGE] = { 1 };
        bytes[label_bytes - 1] = (uint8_t)(label + record % 2);
        for (int i = 0; i < CIFAR_IMAGE; i++)
            bytes[label_bytes + i] = cifar_pixel(record, i);
        bytes_put(folder, name, (int64_t)record * size, bytes, (size_t)size);
    }
}

// The file's records are the set's samples from `first` on.
static void cifar_file_expect(const Dataset *set, int first, int records, int label)
{
    for (int record = 0; record < records; record += records - 1) {
        int wrong = 0, sample = first + record;
        for (int i = 0; i < CIFAR_IMAGE; i++)
            wrong += set->inputs[(size_t)sample * CIFAR_IMAGE + i] != cifar_pixel(record, i);
        EXPECT(wrong == 0, "sample %d: %d bytes are wrong", sample, wrong);
        EXPECT_EQ_INT(set->labels[sample], label + record % 2);
    }
}

TEST(cifar10_is_read)
{
    static const char *const files[6] = { "data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                          "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin" };
    Data data;
    Error err;
    for (int i = 0; i < 6; i++)
        cifar_file_make("cifar10", files[i], 10000, 1, i);
    if (!EXPECT(open_from(&data, in("cifar10", "cifar10"), &err), "%s", err.text))
        return;
    EXPECT(data.train.count == 50000 && data.test.count == 10000, "%d + %d", data.train.count, data.test.count);
    EXPECT(data.augment.crop && data.augment.flip && data.augment.padding == 4, "no augmentation");
    EXPECT_NEAR(data.augment.std[0], 0.2023, 1e-6);
    EXPECT_EQ_STR(data_class_name(&data, 9), "truck");
    for (int i = 0; i < 6; i++)
        cifar_file_expect(i < 5 ? &data.train : &data.test, i % 5 * 10000, 10000, i);
    data_close(&data);
}

TEST(cifar100_is_read)
{
    Data data;
    Error err;
    cifar_file_make("cifar100", "train.bin", 50000, 2, 57);
    cifar_file_make("cifar100", "test.bin", 10000, 2, 98);
    if (!EXPECT(open_from(&data, in("cifar100", "cifar100"), &err), "%s", err.text))
        return;
    EXPECT_EQ_INT(data.train.classes, 100);
    cifar_file_expect(&data.train, 0, 50000, 57);
    cifar_file_expect(&data.test, 0, 10000, 98);
    data_close(&data);
    EXPECT_EQ_INT(truncate(path_in("cifar100", "train.bin"), 153699000), 0);
    expect_refused(in("cifar100", "cifar100"), "train.bin has 153699000 bytes, not 153700000");
}

// --- finding a data set --------------------------------------------------------------------------

// --data auto must not open another set in place of the damaged one.
TEST(auto_refuses_a_damaged_set)
{
    char before[PATH_MAX];
    if (!getcwd(before, sizeof before) || chdir(test_path("")) != 0)
        exit(1);
    mkdir("data", 0755);
    idx_set_write("data/fashion-mnist", false);
    EXPECT_EQ_INT(truncate("data/fashion-mnist/t10k-images-idx3-ubyte", 77), 0);
    expect_refused("auto", "t10k-images-idx3-ubyte");
    if (chdir(before) != 0)
        exit(1);
}

// --- fingerprints --------------------------------------------------------------------------------

#define EXPECT_OTHER(a, b) EXPECT(strcmp((a), (b)) != 0, "both are \"%s\"", (a))

TEST(fingerprints_of_files)
{
    char prints[4][sizeof ((Data *)0)->fingerprint] = { "" };
    for (int i = 0; i < 4; i++) {
        Data data;
        Error err;
        idx_set_write(i == 1 ? "zipped" : "print", i == 1);
        if (i == 2)
            bytes_put("print", "train-images-idx3-ubyte", 16 + 7777, "\x63", 1);
        if (i == 3)
            bytes_put("print", "t10k-labels-idx1-ubyte", 8 + 1, "\x01", 1);
        if (!EXPECT(open_from(&data, in("mnist", i == 1 ? "zipped" : "print"), &err), "%s", err.text))
            return;
        snprintf(prints[i], sizeof prints[i], "%s", data.fingerprint);
        data_close(&data);
    }
    EXPECT_HAS(prints[0], "mnist, 20 + 10 images, checksum ");
    EXPECT_EQ_STR(prints[1], prints[0]);
    EXPECT_OTHER(prints[2], prints[0]);
    EXPECT_OTHER(prints[3], prints[0]);
}

// --- synthetic images ----------------------------------------------------------------------------

static Data synthetic(int train_count, int test_count, int64_t seed)
{
    Data data;
    Error err;
    DataConfig config = data_defaults();
    config.data = "synthetic";
    config.train_count = train_count;
    config.test_count = test_count;
    if (!data_open(&data, &config, seed, &err))
        FAIL_ERROR(&err);
    return data;
}

static bool same_beginning(const Dataset *a, const Dataset *b, int count)
{
    size_t bytes = (size_t)count * a->channels * a->height * a->width;
    return memcmp(a->inputs, b->inputs, bytes) == 0 &&
           memcmp(a->labels, b->labels, (size_t)count * sizeof *a->labels) == 0;
}

TEST(synthetic_images_come_from_the_seed)
{
    Data a = synthetic(600, 300, 1), b = synthetic(199, 97, 1), c = synthetic(199, 97, 2);
    // 199 and 97 are prime, so that several cores get unequal shares.
    EXPECT(same_beginning(&a.train, &b.train, 199), "training images depend on their number");
    EXPECT(same_beginning(&a.test, &b.test, 97), "test images depend on their number");
    EXPECT(!same_beginning(&a.train, &a.test, 1), "test images are training images");
    EXPECT_OTHER(b.fingerprint, c.fingerprint);
    EXPECT(a.augment.crop && a.augment.flip && !a.plain.crop && !a.plain.flip, "only training images are augmented");
    EXPECT_EQ_INT(c.augment.seed, 2);
    data_close(&a);
    data_close(&b);
    data_close(&c);
}

TEST_MAIN
