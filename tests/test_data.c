// Data sets: good files are read unchanged, bad files are refused with a message that names them. Also augmentation,
// fingerprints and synthetic images. Damage of all kinds: tests/fuzz/fuzz_data.c.
#include "check.h"
#include "data/formats.h"
#include "test.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

// --- tools ---------------------------------------------------------------------------------------

static void file_write(const char *path, bool zipped, const void *bytes, size_t size)
{
    gzFile file = gzopen(path, zipped ? "wb" : "wbT");
    EXPECT(file && gzwrite(file, bytes, (unsigned)size) == (int)size && gzclose(file) == Z_OK, "%s", path);
}

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

static bool says(const Error *err, const char *words) { return strstr(err->text, words) != NULL; }

static void expect_refused(const char *where, const char *word1, const char *word2)
{
    Data data;
    Error err;
    bool opened = open_from(&data, where, &err);
    if (!EXPECT(!opened, "%s was opened; wanted: %s ... %s", where, word1, word2)) {
        data_close(&data);
        return;
    }
    EXPECT(says(&err, word1) && says(&err, word2), "\"%s\" lacks \"%s\" or \"%s\"",
           err.text, word1, word2);
    EXPECT(!strchr(err.text, '\n'), "\"%s\" is more than one line", err.text);
    EXPECT(err.hint[0], "\"%s\" has no hint", err.text);
    EXPECT(!data.train.inputs && !data.train.labels && !data.test.inputs && !data.test.labels,
           "memory is not freed after \"%s\"", err.text);
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

static void idx_set_write(const char *dir, bool zipped)
{
    static uint8_t bytes[IMAGES_MAX];
    static const char *const names[4] = { "train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                          "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte" };
    mkdir(dir, 0755);
    for (int i = 0; i < 4; i++) {
        int count = i < 2 ? TRAIN : TEST_N;
        size_t size = i % 2 == 0 ? idx_images(bytes, count) : idx_labels(bytes, count);
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s%s", dir, names[i], zipped ? ".gz" : "");
        file_write(path, zipped, bytes, size);
    }
}

TEST(idx_is_read_plain_and_gzipped)
{
    static const char *const names[2] = { "mnist", "fashion-mnist" };
    for (int zipped = 0; zipped < 2; zipped++) {
        int wrong = 0;
        Data data;
        Error err;
        idx_set_write(test_path("digits"), zipped);
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

// A byte of a file is changed, or its end is missing. Other damage: tests/fuzz/fuzz_data.c.
TEST(idx_damage_is_named)
{
    static const struct { bool zipped; const char *file; int at, byte; const char *message; } damages[] = {
        { false, "train-images-idx3-ubyte", 4, 0x80, "its header claims 2147483668 items" },
        { false, "t10k-labels-idx1-ubyte", 9, 10, "image 1 has label 10" },
        { true, "train-labels-idx1-ubyte.gz", -5, 8, "incorrect data check" },     // the checksum
        { true, "train-labels-idx1-ubyte.gz", -3, -1, "unexpected end of file" },  // a part of it is missing
    };
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        const char *folder = damages[i].zipped ? "zipped" : "damaged";
        char path[PATH_MAX];
        idx_set_write(test_path(folder), damages[i].zipped);
        snprintf(path, sizeof path, "%s/%s", test_path(folder), damages[i].file);
        FILE *file = fopen(path, "r+");
        fseek(file, damages[i].at, damages[i].at < 0 ? SEEK_END : SEEK_SET);
        if (damages[i].byte >= 0)
            fputc(damages[i].byte, file);
        else
            EXPECT(ftruncate(fileno(file), ftell(file)) == 0, "truncate");
        fclose(file);
        expect_refused(in("mnist", folder), damages[i].file, damages[i].message);
    }
}

// --- CIFAR ---------------------------------------------------------------------------------------

enum { CIFAR_IMAGE = 3072 };

// A sparse file of zeros: quick to make.
static void cifar_file_make(const char *dir, const char *name, int records, int label_bytes)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    EXPECT(ftruncate(fd, (off_t)records * (label_bytes + CIFAR_IMAGE)) == 0, "%s", path);
    close(fd);
}

static void bytes_put(const char *dir, const char *name, int64_t offset, const void *bytes,
                      size_t size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY);
    EXPECT(pwrite(fd, bytes, size, offset) == (ssize_t)size, "%s", path);
    close(fd);
}

static uint8_t cifar_pixel(int record, int i) { return (uint8_t)(record * 31 + i * 7 + i / 1024); }

static void record_put(const char *dir, const char *name, int record, int label_bytes, int label)
{
    uint8_t bytes[2 + CIFAR_IMAGE] = { 1 };
    bytes[label_bytes - 1] = (uint8_t)label;
    for (int i = 0; i < CIFAR_IMAGE; i++)
        bytes[label_bytes + i] = cifar_pixel(record, i);
    size_t size = (size_t)label_bytes + CIFAR_IMAGE;
    bytes_put(dir, name, (int64_t)record * (int64_t)size, bytes, size);
}

static void record_expect(const Dataset *set, int sample, int record, int label)
{
    int wrong = 0;
    for (int i = 0; i < CIFAR_IMAGE; i++)
        wrong += set->inputs[(size_t)sample * CIFAR_IMAGE + i] != cifar_pixel(record, i);
    EXPECT(wrong == 0, "sample %d: %d bytes are wrong", sample, wrong);
    EXPECT_EQ_INT(set->labels[sample], label);
}

static const char *const cifar10_files[6] = { "data_batch_1.bin", "data_batch_2.bin",
                                              "data_batch_3.bin", "data_batch_4.bin",
                                              "data_batch_5.bin", "test_batch.bin" };

static void cifar10_make(const char *dir)
{
    mkdir(dir, 0755);
    for (int i = 0; i < 6; i++)
        cifar_file_make(dir, cifar10_files[i], 10000, 1);
}

TEST(cifar10_is_read)
{
    const char *dir = test_path("cifar10");
    Data data;
    Error err;
    cifar10_make(dir);
    for (int i = 0; i < 6; i++) {
        record_put(dir, cifar10_files[i], 0, 1, i);
        record_put(dir, cifar10_files[i], 9999, 1, 9 - i);
    }
    if (!EXPECT(open_from(&data, in("cifar10", "cifar10"), &err), "%s", err.text))
        return;
    EXPECT_EQ_STR(data.name, "cifar10");
    EXPECT(data.train.count == 50000 && data.test.count == 10000, "%d + %d", data.train.count, data.test.count);
    EXPECT(data.augment.crop && data.augment.flip && data.augment.padding == 4, "no augmentation");
    EXPECT_NEAR(data.augment.std[0], 0.2023, 1e-6);
    EXPECT_EQ_STR(data_class_name(&data, 9), "truck");
    for (int i = 0; i < 6; i++) {
        const Dataset *set = i < 5 ? &data.train : &data.test;
        record_expect(set, i % 5 * 10000, 0, i);
        record_expect(set, i % 5 * 10000 + 9999, 9999, 9 - i);
    }
    data_close(&data);
}

TEST(cifar100_is_read)
{
    const char *dir = test_path("cifar100");
    mkdir(dir, 0755);
    cifar_file_make(dir, "train.bin", 50000, 2);
    cifar_file_make(dir, "test.bin", 10000, 2);
    record_put(dir, "train.bin", 41234, 2, 57);
    record_put(dir, "test.bin", 9999, 2, 99);
    Data data;
    Error err;
    if (EXPECT(open_from(&data, in("cifar100", "cifar100"), &err), "%s", err.text)) {
        EXPECT_EQ_STR(data.name, "cifar100");
        EXPECT_EQ_INT(data.train.classes, 100);
        EXPECT(!data_class_name(&data, 0), "cifar100 has names");
        record_expect(&data.train, 41234, 41234, 57);
        record_expect(&data.test, 9999, 9999, 99);
        data_close(&data);
    }
    bytes_put(dir, "train.bin", (int64_t)41234 * 3074 + 1, "\x64", 1);
    expect_refused(in("cifar100", "cifar100"), "train.bin: record 41234 has label 100", "labels are 0 to 99");
}

TEST(damaged_cifar_is_refused)
{
    cifar10_make(test_path("broken"));
    EXPECT_EQ_INT(truncate(test_path("broken/data_batch_5.bin"), 15365000), 0);
    expect_refused(in("cifar10", "broken"), "data_batch_5.bin has 15365000 bytes, not 30730000", "");
    unlink(test_path("broken/data_batch_3.bin"));
    expect_refused(in("cifar10", "broken"), "data_batch_3.bin: No such file", "");
}

// --- finding a data set --------------------------------------------------------------------------

// A damaged Fashion-MNIST is an error: no other set replaces it.
TEST(auto_prefers_fashion_mnist)
{
    char before[PATH_MAX];
    if (!getcwd(before, sizeof before) || chdir(test_path("")) != 0)
        exit(1);
    mkdir("data", 0755);
    cifar10_make("data/cifar-10-batches-bin");
    idx_set_write("data/fashion-mnist", false);
    Data data;
    Error err;
    if (EXPECT(open_from(&data, "auto", &err), "%s", err.text)) {
        EXPECT_EQ_STR(data.name, "fashion-mnist");
        EXPECT_EQ_STR(data.source, "data/fashion-mnist");
        data_close(&data);
    }
    EXPECT_EQ_INT(truncate("data/fashion-mnist/t10k-images-idx3-ubyte", 77), 0);
    expect_refused("auto", "t10k-images-idx3-ubyte", "its header claims 10 items");
    if (chdir(before) != 0)
        exit(1);
}

// --- fingerprints --------------------------------------------------------------------------------

typedef char Print[sizeof ((Data *)0)->fingerprint];

static const char *print_of(Print out, const char *where)
{
    Data data;
    Error err;
    snprintf(out, sizeof(Print), "%s", "none");
    if (EXPECT(open_from(&data, where, &err), "%s", err.text)) {
        snprintf(out, sizeof(Print), "%s", data.fingerprint);
        data_close(&data);
    }
    return out;
}

#define EXPECT_OTHER(a, b) EXPECT(strcmp((a), (b)) != 0, "both are \"%s\"", (a))

TEST(fingerprints_of_files)
{
    Print first, other;
    const char *dir = test_path("print");
    idx_set_write(dir, false);
    idx_set_write(test_path("print-copy"), true);
    print_of(first, in("mnist", "print"));
    EXPECT(strncmp(first, "mnist, 20 + 10 images, checksum ", 32) == 0, "%s", first);
    EXPECT_EQ_STR(print_of(other, in("mnist", "print-copy")), first);
    bytes_put(dir, "train-images-idx3-ubyte", 16 + 7777, "\x63", 1);
    EXPECT_OTHER(print_of(other, in("mnist", "print")), first);
    idx_set_write(dir, false);
    bytes_put(dir, "t10k-labels-idx1-ubyte", 8 + 1, "\x01", 1);
    EXPECT_OTHER(print_of(other, in("mnist", "print")), first);
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
    EXPECT(!same_beginning(&b.train, &c.train, 1), "two seeds give the same images");
    EXPECT(!same_beginning(&a.train, &a.test, 1), "test images are training images");
    EXPECT_OTHER(a.fingerprint, b.fingerprint);
    EXPECT_OTHER(b.fingerprint, c.fingerprint);
    EXPECT(a.augment.crop && a.augment.flip && !a.plain.crop && !a.plain.flip, "only training images are augmented");
    EXPECT_EQ_INT(c.augment.seed, 2);
    data_close(&a);
    data_close(&b);
    data_close(&c);
}

TEST_MAIN
