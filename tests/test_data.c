// Data sets: good files are read unchanged, bad files are refused with a message that names them. Also augmentation,
// fingerprints, synthetic images.
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

static size_t file_load(const char *path, uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "rb");
    size_t got = file ? fread(bytes, 1, size, file) : 0;
    if (file)
        fclose(file);
    return got;
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

static void idx_set_expect(const Data *data)
{
    EXPECT_EQ_INT(data->train.count, TRAIN);
    EXPECT_EQ_INT(data->test.count, TEST_N);
    EXPECT_EQ_INT(data->train.channels, 1);
    EXPECT_EQ_INT(data->train.height, 28);
    EXPECT_EQ_INT(data->test.width, 28);
    EXPECT_EQ_INT(data->test.classes, 10);
    int wrong = 0;
    for (int i = 0; i < TRAIN * PIXELS; i++)
        wrong += data->train.inputs[i] != idx_pixel(i);
    for (int i = 0; i < TEST_N * PIXELS; i++)
        wrong += data->test.inputs[i] != idx_pixel(i);
    for (int i = 0; i < TRAIN; i++)
        wrong += data->train.labels[i] != i * 7 % 10;
    EXPECT_EQ_INT(wrong, 0);
}

TEST(idx_is_read_plain_and_gzipped)
{
    static const char *const names[2] = { "mnist", "fashion-mnist" };
    for (int zipped = 0; zipped < 2; zipped++) {
        idx_set_write(test_path("digits"), zipped);
        Data data;
        Error err;
        if (!EXPECT(open_from(&data, in(names[zipped], "digits"), &err), "%s", err.text))
            continue;
        idx_set_expect(&data);
        EXPECT_EQ_STR(data.name, names[zipped]);
        EXPECT_EQ_STR(data.source, test_path("digits"));
        EXPECT(!data.augment.crop && !data.augment.flip, "digits must not be cropped or flipped");
        EXPECT_NEAR(data.augment.mean[0], zipped ? 0.2860 : 0.1307, 1e-6);
        data_close(&data);
    }
}

static bool pair_read(const char *images, const char *labels, Error *err)
{
    Data data = { .train.classes = 10 };
    uint32_t crc[2];
    *err = (Error){ 0 };
    bool good = idx_pair_read(&data.train, images, labels, crc, err);
    data_close(&data);
    return good;
}

// A file is refused if it is truncated anywhere, a gzipped one also if its checksum is wrong.
TEST(idx_truncated_is_refused)
{
    static uint8_t plain[IMAGES_MAX], zipped[IMAGES_MAX];
    const char *path = test_path("bad-images"), *labels = test_path("bad-labels");
    Error err;
    file_write(labels, false, plain, idx_labels(plain, 2));
    size_t size = idx_images(plain, 2);
    file_write(path, true, plain, size);
    size_t zipped_size = file_load(path, zipped, sizeof zipped);
    EXPECT(zipped_size > 100 && pair_read(path, labels, &err), "%s", err.text);
    for (size_t length = 0; length < size; length += length < 40 ? 1 : 41) {
        file_write(path, false, plain, length);
        EXPECT(!pair_read(path, labels, &err) && says(&err, path), "%zu: %s", length, err.text);
    }
    for (size_t at = 0; at < zipped_size; at += 7) {
        file_write(path, false, zipped, at);
        EXPECT(!pair_read(path, labels, &err) && says(&err, path), "%zu: %s", at, err.text);
    }
    zipped[zipped_size - 5] ^= 8;
    file_write(path, false, zipped, zipped_size);
    EXPECT(!pair_read(path, labels, &err) && says(&err, path), "checksum: %s", err.text);
}

typedef struct Damage {
    bool labels;            // damage the label file, not the image file
    int at;                 // offset of the changed bytes
    uint8_t bytes[4];
    int length;             // number of changed bytes
    int growth;             // number of appended bytes
    const char *message;
} Damage;

TEST(idx_damage_is_named)
{
    static const Damage damages[] = {
        { false, 3, { 1 }, 1, 0, "begins with the number 00000801, not 00000803" },
        { true, 3, { 3 }, 1, 0, "begins with the number 00000803, not 00000801" },
        { false, 4, { 0, 0, 0, 0 }, 4, 0, "its header claims 0 items" },
        { false, 7, { 1 }, 1, 0, "the file is too long" },
        { false, 7, { 3 }, 1, 0, "the file is too short" },
        { false, 4, { 0x80, 0, 0, 0 }, 4, 0, "its header claims 2147483648 items" },
        { false, 4, { 0x7f, 0xff, 0xff, 0xff }, 4, 0, "its header claims 2147483647 items; its size is " },
        { false, 11, { 29 }, 1, 0, "its images have 29x28 pixels, not 28x28" },
        { true, 7, { 3 }, 1, 1, "3 labels for the 2 images of " },
        { true, 0, { 0 }, 0, 1, "the file is too long" },
        { true, 8 + 1, { 10 }, 1, 0, "image 1 has label 10" },
    };
    static uint8_t bytes[2][IMAGES_MAX + 1];
    const char *paths[2] = { test_path("damaged-images"), test_path("damaged-labels") };
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        const Damage *damage = &damages[i];
        for (int zipped = 0; zipped < 2; zipped++) {
            size_t sizes[2] = { idx_images(bytes[0], 2), idx_labels(bytes[1], 2) };
            memcpy(bytes[damage->labels] + damage->at, damage->bytes, (size_t)damage->length);
            bytes[damage->labels][sizes[damage->labels]] = 0;
            sizes[damage->labels] += (size_t)damage->growth;
            for (int k = 0; k < 2; k++)
                file_write(paths[k], zipped, bytes[k], sizes[k]);
            Error err;
            EXPECT(!pair_read(paths[0], paths[1], &err), "%s: accepted", damage->message);
            EXPECT(says(&err, paths[damage->labels]) && says(&err, damage->message),
                   "\"%s\", not \"%s\"", err.text, damage->message);
        }
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
    static const int records[] = { 0, 1, 5000, 9999 };
    const char *dir = test_path("cifar10");
    cifar10_make(dir);
    for (int i = 0; i < 24; i++)
        record_put(dir, cifar10_files[i / 4], records[i % 4], 1, i % 10);
    Data data;
    Error err;
    if (!EXPECT(open_from(&data, in("cifar10", "cifar10"), &err), "%s", err.text))
        return;
    EXPECT_EQ_STR(data.name, "cifar10");
    EXPECT_EQ_INT(data.train.count, 50000);
    EXPECT_EQ_INT(data.test.count, 10000);
    EXPECT(data.augment.crop && data.augment.flip && data.augment.padding == 4, "no augmentation");
    EXPECT_NEAR(data.augment.std[0], 0.2023, 1e-6);
    EXPECT_EQ_STR(data_class_name(&data, 9), "truck");
    for (int i = 0; i < 24; i++) {
        int first = i < 20 ? i / 4 * 10000 : 0;
        record_expect(i < 20 ? &data.train : &data.test, first + records[i % 4], records[i % 4],
                      i % 10);
    }
    EXPECT_EQ_INT(data.train.inputs[(size_t)20002 * CIFAR_IMAGE + 5], 0);
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
    EXPECT_EQ_INT(mkfifo(test_path("broken/data_batch_3.bin"), 0600), 0);
    expect_refused(in("cifar10", "broken"), "data_batch_3.bin: not a regular file", "");
}

// --- finding a data set --------------------------------------------------------------------------

TEST(names_and_folders)
{
    expect_refused("", "--data : no such data set or folder", "");
    expect_refused("cifar", "--data cifar: no such data set or folder", "");
    expect_refused("cifar10:", "/data_batch_1.bin: No such file", "");
    expect_refused("text", "--data text: there is no path after it", "");
    expect_refused(test_file("file", "x", 1), "file/train: Not a directory", "");
}

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
    expect_refused("auto", "t10k-images-idx3-ubyte", "the file is too short");
    if (chdir(before) != 0)
        exit(1);
}

TEST(sample_counts_limit_the_sets)
{
    idx_set_write(test_path("cut"), true);
    DataConfig config = data_defaults();
    config.data = in("mnist", "cut");
    config.train_count = 7;
    config.test_count = TEST_N;
    Data data;
    Error err;
    if (EXPECT(data_open(&data, &config, 0, &err), "%s", err.text)) {
        EXPECT_EQ_INT(data.train.count, 7);
        EXPECT_EQ_INT(data.test.count, TEST_N);
        data_close(&data);
    }
    config.test_count = TEST_N + 1;
    EXPECT(!data_open(&data, &config, 0, &err), "opened with more samples than the set has");
    EXPECT(says(&err, "--test-samples 11") && says(&err, "has only 10"), "%s", err.text);
}

TEST(only_training_images_are_augmented)
{
    DataConfig config = data_defaults();
    config.data = "synthetic";
    config.train_count = config.test_count = 1;
    for (int wanted = 0; wanted < 2; wanted++) {
        Data data;
        Error err;
        config.augment = wanted;
        if (!EXPECT(data_open(&data, &config, 7, &err), "%s", err.text))
            continue;
        EXPECT(data.augment.crop == wanted && data.augment.flip == wanted, "augment: %d", wanted);
        EXPECT(!data.plain.crop && !data.plain.flip, "augment: %d", wanted);
        EXPECT_EQ_INT(data.augment.seed, 7);
        EXPECT_NEAR(data.plain.mean[1], 0.5, 0);
        EXPECT_NEAR(data.plain.std[2], 0.25, 0);
        data_close(&data);
    }
}

// --- fingerprints --------------------------------------------------------------------------------

typedef char Print[sizeof ((Data *)0)->fingerprint];

static const char *print_with(Print out, const DataConfig *config, int64_t seed)
{
    Data data;
    Error err = { 0 };
    snprintf(out, sizeof(Print), "%s", "none");
    if (EXPECT(data_open(&data, config, seed, &err), "%s", err.text)) {
        snprintf(out, sizeof(Print), "%s", data.fingerprint);
        data_close(&data);
    }
    return out;
}

static const char *print_of(Print out, const char *where)
{
    DataConfig config = data_defaults();
    config.data = where;
    return print_with(out, &config, 0);
}

#define EXPECT_OTHER(a, b) EXPECT(strcmp((a), (b)) != 0, "both are \"%s\"", (a))

TEST(fingerprints_of_files)
{
    Print first, other;
    idx_set_write(test_path("print"), false);
    idx_set_write(test_path("print-copy"), true);
    print_of(first, in("mnist", "print"));
    EXPECT(strncmp(first, "mnist, 20 + 10 images, checksum ", 32) == 0, "%s", first);
    EXPECT_EQ_STR(print_of(other, in("mnist", "print-copy")), first);
    bytes_put(test_path("print"), "train-images-idx3-ubyte", 16 + 7777, "\x63", 1);
    EXPECT_OTHER(print_of(other, in("mnist", "print")), first);
    idx_set_write(test_path("print"), false);
    bytes_put(test_path("print"), "t10k-labels-idx1-ubyte", 8 + 1, "\x01", 1);
    EXPECT_OTHER(print_of(other, in("mnist", "print")), first);

    static const int64_t places[] = { 0, 1, 4097, 10000 * 3073 - 1 };
    const char *dir = test_path("cprint");
    cifar10_make(dir);
    print_of(first, in("cifar10", "cprint"));
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        bytes_put(dir, cifar10_files[i + 2], places[i], "\x03", 1);
        EXPECT_OTHER(print_of(other, in("cifar10", "cprint")), first);
        bytes_put(dir, cifar10_files[i + 2], places[i], "", 1);
    }
    EXPECT_EQ_STR(print_of(other, in("cifar10", "cprint")), first);
}

TEST(fingerprints_of_synthetic_sets)
{
    static const struct {
        int size, train_count, test_count, seed;
    } others[] = { { 32, 50, 20, 4 }, { 32, 10, 20, 3 }, { 16, 50, 20, 3 }, { 32, 50, 19, 3 } };
    Print first, other;
    DataConfig config = data_defaults();
    config.data = "synthetic";
    config.train_count = 50;
    config.test_count = 20;
    print_with(first, &config, 3);
    EXPECT(strncmp(first, "synthetic, 50 + 20 images, checksum ", 36) == 0, "%s", first);
    EXPECT_EQ_STR(print_with(other, &config, 3), first);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        config.image_size = others[i].size;
        config.train_count = others[i].train_count;
        config.test_count = others[i].test_count;
        EXPECT_OTHER(print_with(other, &config, others[i].seed), first);
    }
}

TEST(orders)
{
    Data data = { .train.count = 50, .test.count = 20, .checksum = 7 };
    int64_t order = data_order(&data, true);
    EXPECT(order > 0 && data_order(&data, false) != order, "%lld", (long long)order);
    data.test.count = 10;
    EXPECT_EQ_INT(data_order(&data, true), order);
    data.train.count = 49;
    EXPECT(data_order(&data, true) != order, "other samples");
    data.train.count = 50;
    data.checksum = 8;
    EXPECT(data_order(&data, true) != order, "other data");
}

// --- synthetic images ----------------------------------------------------------------------------

static Data synthetic(int size, int train_count, int test_count, int64_t seed)
{
    DataConfig config = data_defaults();
    config.data = "synthetic";
    config.image_size = size;
    config.train_count = train_count;
    config.test_count = test_count;
    Data data;
    Error err;
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
    Data a = synthetic(32, 600, 300, 1), b = synthetic(32, 199, 97, 1),
         c = synthetic(32, 200, 100, 2);
    // 199 and 97 are prime, so that several cores get unequal shares.
    EXPECT(same_beginning(&a.train, &b.train, 199), "training images depend on their number");
    EXPECT(same_beginning(&a.test, &b.test, 97), "test images depend on their number");
    EXPECT(!same_beginning(&b.train, &c.train, 1), "two seeds give the same images");
    EXPECT(!same_beginning(&a.train, &a.test, 1), "test images are training images");
    EXPECT_EQ_STR(a.name, "synthetic");
    EXPECT(a.augment.crop && a.augment.flip, "no augmentation");

    data_close(&a);
    data_close(&b);
    data_close(&c);
}

TEST_MAIN
