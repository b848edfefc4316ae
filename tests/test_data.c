// ctest: TIMEOUT 120
// Reading data sets: what is right comes out unchanged, what is wrong is refused, and named. With
// DDP_CIFAR10 in the environment (the unpacked directory, or the archive) the real CIFAR-10 too.
#include "data/formats.h"
#include "rng.h"
#include "test.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <zlib.h>

// --- tools ---------------------------------------------------------------------------------------

static void file_write(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static size_t file_load(const char *path, uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "rb");
    size_t got = file ? fread(bytes, 1, size, file) : 0;
    if (file)
        fclose(file);
    return got;
}

static void gzip_write(const char *path, const void *bytes, size_t size)
{
    gzFile file = gzopen(path, "wb");
    if (!file || gzwrite(file, bytes, (unsigned)size) != (int)size || gzclose(file) != Z_OK) {
        perror(path);
        exit(1);
    }
}

// The readers' own calls end up here, and read no more bytes than this: any disk may do that.
static size_t read_most = SIZE_MAX;
static _Atomic int short_reads;

ssize_t pread(int fd, void *to, size_t bytes, off_t offset)
{
    short_reads += bytes > read_most;
    return syscall(SYS_pread64, fd, to, bytes > read_most ? read_most : bytes, offset);
}

ssize_t preadv(int fd, const struct iovec *pieces, int count, off_t offset)
{
    struct iovec some[IOV_MAX];
    int n = 0;
    for (size_t left = read_most; n < count && left > 0; n++) {
        some[n] = pieces[n];
        if (some[n].iov_len > left) {
            some[n].iov_len = left;
            short_reads++;
        }
        left -= some[n].iov_len;
    }
    return syscall(SYS_preadv, fd, some, n, offset, 0);
}

static bool open_from(Data *data, const char *where, Error *err)
{
    DataConfig config = data_defaults();
    config.data = where;
    *err = (Error){ 0 };
    return data_open(data, &config, 0, err);
}

static bool says(const Error *err, const char *words) { return strstr(err->text, words) != NULL; }

// data_open refuses, and says all of these words.
static void expect_refused(const char *where, const char *word1, const char *word2)
{
    Data data;
    Error err;
    bool opened = open_from(&data, where, &err);
    if (!EXPECT(!opened, "%s was opened; wanted: %s ... %s", where, word1, word2)) {
        data_close(&data);
        return;
    }
    EXPECT(says(&err, word1) && says(&err, word2), "\"%s\" says nothing of \"%s\" or \"%s\"",
           err.text, word1, word2);
    EXPECT(!strchr(err.text, '\n'), "\"%s\" is more than one line", err.text);
    EXPECT(err.hint[0], "\"%s\" has no hint", err.text);
    EXPECT(!data.train.images && !data.train.labels && !data.test.images && !data.test.labels,
           "memory is left after \"%s\"", err.text);
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

// A whole small data set in a directory of that name.
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
        (zipped ? gzip_write : file_write)(path, bytes, size);
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
        wrong += data->train.images[i] != idx_pixel(i);
    for (int i = 0; i < TEST_N * PIXELS; i++)
        wrong += data->test.images[i] != idx_pixel(i);
    for (int i = 0; i < TRAIN; i++)
        wrong += data->train.labels[i] != i * 7 % 10;
    EXPECT_EQ_INT(wrong, 0);
}

TEST(idx_is_read_plain_and_gzipped)
{
    for (int kind = 0; kind < 4; kind++) {
        const bool zipped = kind & 1;
        read_most = kind & 2 ? 99 : SIZE_MAX;
        short_reads = 0;
        const char *dir = test_path(zipped ? "idx-zipped" : "idx-plain");
        idx_set_write(dir, zipped);
        Data data;
        Error err;
        if (!EXPECT(open_from(&data, dir, &err), "%s", err.text))
            continue;
        idx_set_expect(&data);
        EXPECT_EQ_STR(data.name, "mnist");
        EXPECT_EQ_STR(data.source, dir);
        EXPECT(!data.augment.crop && !data.augment.flip, "digits are not to be mirrored or moved");
        EXPECT_NEAR(data.augment.mean[0], 0.1307, 1e-6);
        EXPECT_NEAR(data.augment.std[0], 0.3081, 1e-6);
        EXPECT((short_reads > 0) == (kind >= 2), "%d short reads", short_reads);
        data_close(&data);
    }
    read_most = SIZE_MAX;
}

// The first ten labels tell Fashion-MNIST from MNIST; where they are unknown, the directory's name
// does.
TEST(fashion_is_recognised)
{
    const char *dir = test_path("clothes"), *labels = test_path("clothes/train-labels-idx1-ubyte");
    static const uint8_t fashion[10] = { 9, 0, 0, 3, 0, 2, 7, 2, 5, 5 };
    uint8_t bytes[8 + TRAIN];
    idx_set_write(dir, false);
    size_t size = idx_labels(bytes, TRAIN);
    memcpy(bytes + 8, fashion, 10);
    file_write(labels, bytes, size);
    idx_set_write(test_path("my-fashion"), true);

    const char *const dirs[2] = { dir, test_path("my-fashion") };
    for (int i = 0; i < 2; i++) {
        Data data;
        Error err;
        if (!EXPECT(open_from(&data, dirs[i], &err), "%s", err.text))
            continue;
        EXPECT_EQ_STR(data.name, "fashion-mnist");
        EXPECT_NEAR(data.augment.mean[0], 0.2860, 1e-6);
        data_close(&data);
    }
}

static IdxFile idx_named(const char *path, int ndim)
{
    return (IdxFile){ .path = path, .hint = "h", .ndim = ndim, .height = 28, .width = 28,
                      .classes = 10 };
}

// One file through the reader alone. bytes == NULL: it must be refused.
static void idx_expect(const char *path, int ndim, const uint8_t *bytes, size_t size,
                       const char *what, size_t at)
{
    IdxFile idx = idx_named(path, ndim);
    Error err = { 0 };
    bool good = idx_file_read(&idx, &err);
    if (bytes)
        EXPECT(good && memcmp(idx.bytes, bytes, size) == 0, "%s at %zu: %s", what, at, err.text);
    else
        EXPECT(!good && !idx.bytes && says(&err, path), "%s at %zu: %s", what, at,
               good ? "accepted" : err.text);
    free(idx.bytes);
}

// Compressed, noise is as long as before: the file is read in three chunks.
TEST(idx_of_many_chunks)
{
    enum { COUNT = 1000 };
    static uint8_t bytes[16 + COUNT * PIXELS];
    size_t size = idx_images(bytes, COUNT);
    for (size_t i = 16; i < size; i++)
        bytes[i] = (uint8_t)philox(1, 0, i).v[0];
    gzip_write(test_path("chunks"), bytes, size);
    idx_expect(test_path("chunks"), 3, bytes + 16, size - 16, "gzip", 0);
}

TEST(idx_truncated_anywhere_is_refused)
{
    static uint8_t plain[IMAGES_MAX], zipped[IMAGES_MAX];
    const char *path = test_path("truncated");
    size_t size = idx_images(plain, 2);
    for (size_t length = 0; length < size; length += length < 40 ? 1 : 41) {
        file_write(path, plain, length);
        idx_expect(path, 3, NULL, 0, "plain, truncated", length);
    }
    gzip_write(path, plain, size);
    size_t zipped_size = file_load(path, zipped, sizeof zipped);
    for (size_t length = 0; length < zipped_size; length++) {
        file_write(path, zipped, length);
        idx_expect(path, 3, NULL, 0, "gzip, truncated", length);
    }
}

// Whatever byte of a gzipped file changes: it is refused, or the images are the same (the date in
// the gzip header means nothing to us).
TEST(idx_flipped_bits_are_noticed)
{
    static uint8_t plain[IMAGES_MAX], zipped[IMAGES_MAX];
    const char *path = test_path("flipped");
    size_t size = idx_images(plain, 2);
    gzip_write(path, plain, size);
    size_t zipped_size = file_load(path, zipped, sizeof zipped);
    EXPECT(zipped_size > 100, "%zu bytes", zipped_size);
    for (size_t at = 0; at < zipped_size; at++) {
        bool meaningless = at >= 4 && at < 10; // date, hint at the method, system
        for (int bit = 0; bit < 8; bit += 3) {
            zipped[at] ^= (uint8_t)(1 << bit);
            file_write(path, zipped, zipped_size);
            zipped[at] ^= (uint8_t)(1 << bit);
            if (at != 3 || bit == 3) // other flags of byte 3: "text", reserved, or a longer header
                idx_expect(path, 3, meaningless ? plain + 16 : NULL, size - 16, "flipped", at);
        }
    }
}

typedef struct Damage {
    const char *what;
    int ndim;               // which file
    int at;                 // from here on: bytes
    uint8_t bytes[4];
    int length;             // how many bytes
    int growth;             // bytes appended
    const char *message;
} Damage;

TEST(idx_damage_is_named)
{
    static const Damage damages[] = {
        { "magic", 3, 3, { 1 }, 1, 0, "magic number 00000801 at byte 0, not 00000803" },
        { "magic of labels", 1, 3, { 3 }, 1, 0, "magic number 00000803 at byte 0, not 00000801" },
        { "type", 3, 2, { 0x0d }, 1, 0, "magic number 00000d03" },
        { "no images", 3, 4, { 0, 0, 0, 0 }, 4, 0, "0 items at byte 4" },
        { "one less", 3, 7, { 1 }, 1, 0, NULL },
        { "one more", 3, 7, { 3 }, 1, 0, NULL },
        { "2^31 images", 3, 4, { 0x80, 0, 0, 0 }, 4, 0, "2147483648 items at byte 4" },
        { "2^31 - 1 images", 3, 4, { 0x7f, 0xff, 0xff, 0xff }, 4, 0, NULL },
        { "height", 3, 11, { 29 }, 1, 0, "images of 29x28 at byte 8, not 28x28" },
        { "width", 3, 12, { 1 }, 1, 0, "images of 28x16777244" },
        { "longer", 3, 0, { 0 }, 0, 1, NULL },
        { "labels longer", 1, 0, { 0 }, 0, 1, NULL },
        { "label 10", 1, 8 + 5, { 10 }, 1, 0, "label 10 at byte 13" },
        { "label 255", 1, 8 + 19, { 255 }, 1, 0, "label 255 at byte 27" },
    };
    static uint8_t bytes[IMAGES_MAX + 1];
    const char *path = test_path("damaged");
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        const Damage *damage = &damages[i];
        for (int zipped = 0; zipped < 2; zipped++) {
            size_t size = damage->ndim == 3 ? idx_images(bytes, 2) : idx_labels(bytes, TRAIN);
            memcpy(bytes + damage->at, damage->bytes, (size_t)damage->length);
            bytes[size] = 0;
            (zipped ? gzip_write : file_write)(path, bytes, size + (size_t)damage->growth);

            IdxFile idx = idx_named(path, damage->ndim);
            Error err = { 0 };
            EXPECT(!idx_file_read(&idx, &err), "%s (zipped %d): accepted", damage->what, zipped);
            EXPECT(says(&err, path), "%s: \"%s\" names no file", damage->what, err.text);
            EXPECT(says(&err, damage->message ? damage->message : ""), "%s: \"%s\"", damage->what,
                   err.text);
        }
    }
}

// Sizes found and expected; what a gzip header claims is weighed before any memory is asked for.
TEST(idx_sizes_are_named)
{
    static uint8_t bytes[IMAGES_MAX + 16];
    static const struct {
        const char *what;
        int claimed, written;
        bool zipped;
        const char *message;
    } cases[] = {
        { "short", 2, 1, false, "800 bytes long, not the 1584 of 2 items" },
        { "long", 1, 2, false, "1584 bytes long, not the 800 of 1 items" },
        { "short gzip", 2, 1, true, "inflates to 800 bytes only" },
        { "long gzip", 1, 2, true, "inflates to more than the 800 bytes" },
        { "bomb", 2000000000, 2, true, "claims 2000000000 items, more than gzip can put into" },
    };
    const char *path = test_path("sizes");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t size = idx_images(bytes, cases[i].written);
        put_big_endian(bytes + 4, (uint32_t)cases[i].claimed);
        (cases[i].zipped ? gzip_write : file_write)(path, bytes, size);
        IdxFile idx = idx_named(path, 3);
        Error err = { 0 };
        EXPECT(!idx_file_read(&idx, &err), "%s: accepted", cases[i].what);
        EXPECT(says(&err, cases[i].message), "%s: \"%s\"", cases[i].what, err.text);
    }

    size_t size = idx_images(bytes, 2);
    gzip_write(path, bytes, size);
    size = file_load(path, bytes, sizeof bytes);
    memcpy(bytes + size, "behind", 6);
    file_write(path, bytes, size + 6);
    idx_expect(path, 3, NULL, 0, "bytes behind the gzip stream", size);
}

TEST(idx_sets_that_do_not_fit_together)
{
    static uint8_t bytes[IMAGES_MAX];
    const char *dir = test_path("misfit");
    idx_set_write(dir, true);
    gzip_write(test_path("misfit/t10k-labels-idx1-ubyte.gz"), bytes, idx_labels(bytes, TEST_N + 1));
    expect_refused(dir, "t10k-labels-idx1-ubyte.gz: 11 labels for the 10 images of ",
                   "t10k-images");
    unlink(test_path("misfit/t10k-labels-idx1-ubyte.gz"));
    expect_refused(dir, "t10k-labels-idx1-ubyte.gz", "No such file");
}

// --- CIFAR ---------------------------------------------------------------------------------------

enum { CIFAR_IMAGE = 3072 };

// A file as long as a real one but mostly holes, so zeros: quickly made, and needs no space.
static void cifar_file_make(const char *dir, const char *name, int records, int label_bytes)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    if (fd < 0 || ftruncate(fd, (off_t)records * (label_bytes + CIFAR_IMAGE)) != 0) {
        perror(path);
        exit(1);
    }
    close(fd);
}

static void bytes_put(const char *dir, const char *name, int64_t offset, const void *bytes,
                      size_t size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY);
    if (fd < 0 || pwrite(fd, bytes, size, offset) != (ssize_t)size) {
        perror(path);
        exit(1);
    }
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
    const uint8_t *image = set->images + (size_t)sample * CIFAR_IMAGE;
    int wrong = 0;
    for (int i = 0; i < CIFAR_IMAGE; i++)
        wrong += image[i] != cifar_pixel(record, i);
    EXPECT(wrong == 0, "sample %d: %d bytes are wrong", sample, wrong);
    EXPECT(set->labels[sample] == label, "sample %d: label %d, wanted %d", sample,
           set->labels[sample], label);
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

// Records at the beginning and the end of files and of what one call reads.
static const int landmarks[] = { 0, 1, 511, 512, 5000, 9727, 9728, 9999 };
enum { LANDMARKS = sizeof landmarks / sizeof *landmarks };

static void cifar10_expect(const char *dir)
{
    Data data;
    Error err;
    if (!EXPECT(open_from(&data, dir, &err), "%s", err.text))
        return;
    EXPECT_EQ_STR(data.name, "cifar10");
    EXPECT_EQ_INT(data.train.count, 50000);
    EXPECT_EQ_INT(data.test.count, 10000);
    EXPECT_EQ_INT(data.train.channels * data.train.height * data.train.width, CIFAR_IMAGE);
    EXPECT_EQ_INT(data.train.classes, 10);
    EXPECT(data.augment.crop && data.augment.flip && data.augment.padding == 4, "no augmentation");
    EXPECT_NEAR(data.augment.mean[2], 0.4465, 1e-6);
    EXPECT_NEAR(data.augment.std[0], 0.2023, 1e-6);
    for (int file = 0; file < 6; file++)
        for (int i = 0; i < LANDMARKS; i++)
            record_expect(file < 5 ? &data.train : &data.test,
                          (file < 5 ? file * 10000 : 0) + landmarks[i], landmarks[i],
                          (landmarks[i] + file) % 10);
    EXPECT_EQ_INT(data.train.images[(size_t)20002 * CIFAR_IMAGE + 5], 0); // between landmarks
    data_close(&data);
}

TEST(cifar10_is_read)
{
    const char *dir = test_path("cifar10");
    cifar10_make(dir);
    for (int file = 0; file < 6; file++)
        for (int i = 0; i < LANDMARKS; i++)
            record_put(dir, cifar10_files[file], landmarks[i], 1, (landmarks[i] + file) % 10);
    cifar10_expect(dir);
    short_reads = 0;
    read_most = 4099;
    cifar10_expect(dir);
    EXPECT(short_reads > 0, "no read was short");
    read_most = SIZE_MAX;
}

TEST(cifar100_is_read)
{
    const char *dir = test_path("cifar100");
    mkdir(dir, 0755);
    cifar_file_make(dir, "train.bin", 50000, 2);
    cifar_file_make(dir, "test.bin", 10000, 2);
    for (int part = 0; part < 5; part++)
        for (int i = 0; i < LANDMARKS; i++)
            record_put(dir, "train.bin", part * 10000 + landmarks[i], 2,
                       (landmarks[i] + part) % 100);
    record_put(dir, "test.bin", 9999, 2, 99);
    Data data;
    Error err;
    if (EXPECT(open_from(&data, dir, &err), "%s", err.text)) {
        EXPECT_EQ_STR(data.name, "cifar100");
        EXPECT_EQ_INT(data.train.classes, 100);
        EXPECT_NEAR(data.augment.mean[0], 0.5071, 1e-6);
        for (int part = 0; part < 5; part++)
            for (int i = 0; i < LANDMARKS; i++) {
                int record = part * 10000 + landmarks[i];
                record_expect(&data.train, record, record, (landmarks[i] + part) % 100);
            }
        record_expect(&data.test, 9999, 9999, 99);
        data_close(&data);
    }
    bytes_put(dir, "train.bin", (int64_t)41234 * 3074 + 1, "\x64", 1);
    expect_refused(dir, "train.bin: label 100 at byte 126753317 (record 41234)", "100 classes");
}

TEST(cifar_damage_is_refused)
{
    const char *dir = test_path("broken");
    char path[PATH_MAX];
    cifar10_make(dir);
    snprintf(path, sizeof path, "%s/data_batch_4.bin", dir);

    static const int64_t sizes[] = { 0, 1, 3072, 3073, 30729999, 30730001, 30733073, 153650000 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char message[64];
        EXPECT_EQ_INT(truncate(path, sizes[i]), 0);
        snprintf(message, sizeof message, ": %lld bytes long, not 30730000", (long long)sizes[i]);
        expect_refused(dir, "data_batch_4.bin", message);
    }
    cifar_file_make(dir, "data_batch_4.bin", 10000, 1);
    static const int records[] = { 0, 777, 9999 };
    for (int i = 0; i < 3; i++) {
        char message[64];
        int64_t offset = (int64_t)records[i] * 3073;
        bytes_put(dir, "data_batch_4.bin", offset, "\x0a", 1);
        snprintf(message, sizeof message, "label 10 at byte %lld (record %d)", (long long)offset,
                 records[i]);
        expect_refused(dir, "data_batch_4.bin", message);
        bytes_put(dir, "data_batch_4.bin", offset, "", 1);
    }
    unlink(path);
    expect_refused(dir, "data_batch_4.bin", "No such file");
}

// --- what is no file at all ----------------------------------------------------------------------

TEST(no_regular_file_is_refused_at_once)
{
    const char *dir = test_path("odd");
    static const char *const targets[2] = { "odd/data_batch_2.bin",
                                            "odd/train-images-idx3-ubyte.gz" };
    for (int kind = 0; kind < 2; kind++) { // CIFAR, IDX
        if (kind == 0)
            cifar10_make(dir);
        else
            idx_set_write(dir, true);
        const char *path = test_path(targets[kind]);
        unlink(path);
        mkdir(path, 0755);
        expect_refused(dir, strrchr(path, '/') + 1, "a directory where a file should be");
        rmdir(path);
        EXPECT_EQ_INT(mkfifo(path, 0644), 0);
        expect_refused(dir, strrchr(path, '/') + 1, "something else");
        unlink(path);
        EXPECT_EQ_INT(symlink(path, path), 0);
        expect_refused(dir, strrchr(path, '/') + 1, "symbolic links");
        unlink(path);
        EXPECT_EQ_INT(symlink("/dev/zero", path), 0);
        expect_refused(dir, strrchr(path, '/') + 1, "something else");
        unlink(path);
        if (kind == 0)
            unlink(test_path("odd/data_batch_1.bin"));
    }
}

// --- finding -------------------------------------------------------------------------------------

TEST(names_and_directories)
{
    expect_refused("cifer10", "--data cifer10: no such data set or directory", "");
    expect_refused("", "no such data set or directory", "");
    mkdir(test_path("empty"), 0755);
    expect_refused(test_path("empty"), "no data set in this directory",
                   "train-images-idx3-ubyte[.gz]");
    file_write(test_path("file"), "x", 1);
    expect_refused(test_path("file"), "no data set in this directory", "");
    char deep[PATH_MAX + 10];
    memset(deep, 'a', sizeof deep);
    deep[sizeof deep - 1] = 0;
    expect_refused(deep, "too long", "");
}

// A set named that is not there: the hint is the command that fetches it.
TEST(missing_sets_say_how_to_get_them)
{
    Data data;
    Error err;
    if (open_from(&data, "cifar100", &err)) {
        data_close(&data); // this machine has it
        return;
    }
    EXPECT(says(&err, "cifar100") && says(&err, "data/cifar-100-binary"), "%s", err.text);
    EXPECT_EQ_STR(err.hint, "./ddp data cifar100");
}

// CIFAR-10 in data/ comes first, even when it is broken: a damaged set is not passed over in
// silence.
TEST(auto_takes_the_best)
{
    char before[PATH_MAX];
    if (!getcwd(before, sizeof before) || chdir(test_path("")) != 0)
        exit(1);
    mkdir("data", 0755);
    cifar10_make("data/cifar-10-batches-bin");
    Data data;
    Error err;
    if (EXPECT(open_from(&data, "auto", &err), "%s", err.text)) {
        EXPECT_EQ_STR(data.name, "cifar10");
        EXPECT_EQ_STR(data.source, "data/cifar-10-batches-bin");
        data_close(&data);
    }
    EXPECT_EQ_INT(truncate("data/cifar-10-batches-bin/test_batch.bin", 77), 0);
    expect_refused("auto", "test_batch.bin: 77 bytes long", "30730000");
    EXPECT_EQ_INT(rename("data/cifar-10-batches-bin", "data/elsewhere"), 0);

    const char *wanted = access(DDP_SOURCE_DIR "/data/cifar-10-batches-bin", F_OK) == 0
                             ? "cifar10"
                             : "fashion-mnist";
    idx_set_write("data/fashion-mnist", true);
    if (EXPECT(open_from(&data, "auto", &err), "%s", err.text)) {
        EXPECT_EQ_STR(data.name, wanted);
        data_close(&data);
    }
    if (EXPECT(open_from(&data, "fashion-mnist", &err), "%s", err.text)) {
        EXPECT_EQ_STR(data.source, "data/fashion-mnist");
        idx_set_expect(&data);
        data_close(&data);
    }
    if (chdir(before) != 0)
        exit(1);
}

TEST(sets_are_cut)
{
    const char *dir = test_path("cut");
    idx_set_write(dir, true);
    DataConfig config = data_defaults();
    config.data = dir;
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
    EXPECT(!data_open(&data, &config, 0, &err), "more than there are");
    EXPECT(says(&err, "--test-samples 11") && says(&err, "has 10"), "%s", err.text);
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

// Ten names in the order of the labels, or none.
static void expect_names(const char *set, const char *const *wanted)
{
    Data data = { 0 };
    snprintf(data.name, sizeof data.name, "%s", set);
    for (int i = 0; i < 10; i++) {
        const char *name = data_class_name(&data, i);
        EXPECT(wanted ? name && strcmp(name, wanted[i]) == 0 : !name, "%s: class %d is %s", set, i,
               name ? name : "nameless");
    }
    EXPECT(!data_class_name(&data, -1) && !data_class_name(&data, 10), "%s has more", set);
}

TEST(classes_have_names)
{
    static const char *const digits[] = { "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" };
    static const char *const clothes[] = { "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                           "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot" };
    static const char *const things[] = { "airplane", "automobile", "bird", "cat", "deer",
                                          "dog", "frog", "horse", "ship", "truck" };
    expect_names("mnist", digits);
    expect_names("fashion-mnist", clothes);
    expect_names("cifar10", things);
    expect_names("cifar100", NULL);
    expect_names("synthetic", NULL);
}

// --- fingerprints --------------------------------------------------------------------------------

typedef char Print[80];

static const char *print_with(Print out, const DataConfig *config, int64_t seed, int cut)
{
    Data data;
    Error err = { 0 };
    snprintf(out, sizeof(Print), "%s", "none");
    if (EXPECT(data_open(&data, config, seed, &err), "%s", err.text)) {
        if (cut > 0)
            data_cut(&data, cut);
        snprintf(out, sizeof(Print), "%s", data.fingerprint);
        data_close(&data);
    }
    return out;
}

static const char *print_of(Print out, const char *where)
{
    DataConfig config = data_defaults();
    config.data = where;
    return print_with(out, &config, 0, 0);
}

#define EXPECT_OTHER(a, b) EXPECT(strcmp((a), (b)) != 0, "both are \"%s\"", (a))

TEST(fingerprints_of_idx)
{
    Print first, other;
    idx_set_write(test_path("print"), false);
    idx_set_write(test_path("print-copy"), false);
    print_of(first, test_path("print"));
    EXPECT(strncmp(first, "mnist, 20 + 10 images, checksum ", 32) == 0, "%s", first);
    EXPECT_EQ_STR(print_of(other, test_path("print-copy")), first);
    uint8_t value = 99;             // in the middle of 20 * 784 bytes
    bytes_put(test_path("print-copy"), "train-images-idx3-ubyte", 16 + 7840, &value, 1);
    EXPECT_OTHER(print_of(other, test_path("print-copy")), first);
    idx_set_write(test_path("print-copy"), false);
    value = 1;                      // a label, anywhere: it was 1 * 7 % 10
    bytes_put(test_path("print-copy"), "t10k-labels-idx1-ubyte", 8 + 1, &value, 1);
    EXPECT_OTHER(print_of(other, test_path("print-copy")), first);
}

// What gzip stores covers every byte, and does not depend on how well was compressed.
TEST(fingerprints_of_gzip)
{
    static uint8_t bytes[IMAGES_MAX];
    Print first, other;
    idx_set_write(test_path("zprint"), true);
    idx_set_write(test_path("zprint-copy"), true);
    print_of(first, test_path("zprint"));
    EXPECT(strncmp(first, "mnist, 20 + 10 images, gzip checksum ", 37) == 0, "%s", first);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/train-images-idx3-ubyte.gz", test_path("zprint-copy"));
    size_t size = idx_images(bytes, TRAIN);
    gzFile file = gzopen(path, "wb0");
    EXPECT(file && gzwrite(file, bytes, (unsigned)size) == (int)size && gzclose(file) == Z_OK, "%s",
           path);
    EXPECT_EQ_STR(print_of(other, test_path("zprint-copy")), first);
    bytes[16 + 5000] ^= 1;
    gzip_write(path, bytes, size);
    EXPECT_OTHER(print_of(other, test_path("zprint-copy")), first);
}

// Ends and middles of the images of every file, and all labels.
TEST(fingerprints_of_cifar)
{
    static const int64_t record = 1 + CIFAR_IMAGE, places[] = {
        1, 4097, 10000 * record - 1, 5000 * record + 1, 5000 * record, 1234 * record };
    char dir[PATH_MAX], copy[PATH_MAX];
    Print first, other;
    snprintf(dir, sizeof dir, "%s", test_path("cprint"));
    snprintf(copy, sizeof copy, "%s", test_path("cprint-copy"));
    cifar10_make(dir);
    cifar10_make(copy);
    record_put(dir, "data_batch_3.bin", 17, 1, 4);
    record_put(copy, "data_batch_3.bin", 17, 1, 4);
    print_of(first, dir);
    EXPECT(strncmp(first, "cifar10, 50000 + 10000 images, checksum ", 40) == 0, "%s", first);
    EXPECT_EQ_STR(print_of(other, copy), first);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *file = cifar10_files[i % 6];
        bytes_put(copy, file, places[i], &(uint8_t){ 3 }, 1);
        EXPECT_OTHER(print_of(other, copy), first);
        bytes_put(copy, file, places[i], &(uint8_t){ 0 }, 1);
    }
    EXPECT_EQ_STR(print_of(other, copy), first);
}

TEST(fingerprints_of_what_is_left)
{
    Print first, other;
    DataConfig config = data_defaults();
    config.data = "synthetic";
    config.train_count = 50;
    config.test_count = 20;
    print_with(first, &config, 3, 0);
    EXPECT(strncmp(first, "synthetic, 50 + 20 images, checksum ", 36) == 0, "%s", first);
    EXPECT_EQ_STR(print_with(other, &config, 3, 0), first);
    EXPECT_OTHER(print_with(other, &config, 4, 0), first);
    EXPECT_OTHER(print_with(other, &config, 3, 10), first);
    config.image_size = 16;
    EXPECT_OTHER(print_with(other, &config, 3, 0), first);
    config = data_defaults();
    idx_set_write(test_path("left"), true);
    config.data = test_path("left");
    print_with(first, &config, 0, 0);
    EXPECT_EQ_STR(print_with(other, &config, 1, 0), first);     // files know no seed
    config.train_count = 19;
    EXPECT_OTHER(print_with(other, &config, 0, 0), first);
    config.train_count = 0;
    config.test_count = 9;
    EXPECT_OTHER(print_with(other, &config, 0, 0), first);
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
    if (!data_open(&data, &config, seed, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    return data;
}

static bool same_beginning(const Dataset *a, const Dataset *b, int count)
{
    size_t bytes = (size_t)count * a->channels * a->height * a->width;
    return memcmp(a->images, b->images, bytes) == 0 &&
           memcmp(a->labels, b->labels, (size_t)count * sizeof *a->labels) == 0;
}

TEST(synthetic_images_come_from_the_seed)
{
    Data a = synthetic(32, 600, 300, 1), b = synthetic(32, 199, 97, 1),
         c = synthetic(32, 200, 100, 2);
    // 199 and 97 are primes: whatever the number of cores, there is a remainder.
    EXPECT(same_beginning(&a.train, &b.train, 199), "fewer images are other images");
    EXPECT(same_beginning(&a.test, &b.test, 97), "fewer images are other images");
    EXPECT(!same_beginning(&b.train, &c.train, 1), "another seed, the same images");
    EXPECT(!same_beginning(&a.train, &a.test, 1), "test images are training images");
    EXPECT_EQ_STR(a.name, "synthetic");
    EXPECT(a.augment.crop && a.augment.flip, "no augmentation");

    int classes[10] = { 0 };
    double sum = 0, square = 0;
    const size_t bytes = (size_t)600 * CIFAR_IMAGE;
    for (int i = 0; i < 600; i++)
        classes[a.train.labels[i]]++;
    for (int i = 0; i < 10; i++)
        EXPECT(classes[i] > 30 && classes[i] < 90, "class %d: %d of 600", i, classes[i]);
    for (size_t i = 0; i < bytes; i++) {
        double x = (a.train.images[i] / 255.0 - a.augment.mean[0]) / a.augment.std[0];
        sum += x;
        square += x * x;
    }
    EXPECT_NEAR(sum / (double)bytes, 0, 0.1);
    EXPECT_NEAR(square / (double)bytes, 1, 0.4);
    data_close(&a);
    data_close(&b);
    data_close(&c);
}

// The default size, and all sizes that a block of 16 pixels does not divide.
TEST(synthetic_images_of_any_size)
{
    Data whole = synthetic(8, 0, 0, 0);
    EXPECT_EQ_INT(whole.train.count, 50000);
    EXPECT_EQ_INT(whole.test.count, 10000);
    data_close(&whole);
    static const int sizes[] = { 8, 15, 16, 17, 28, 33, 64, 224 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Data data = synthetic(sizes[i], 3, 2, 0);
        EXPECT_EQ_INT(data.train.height, sizes[i]);
        EXPECT_EQ_INT(data.test.width, sizes[i]);
        data_close(&data);
    }
    DataConfig config = data_defaults();
    config.data = "synthetic";
    config.image_size = 1024;
    config.train_count = 100000000;
    Data data;
    Error err;
    EXPECT(!data_open(&data, &config, 0, &err), "300 TB of images");
    EXPECT(says(&err, "out of memory") && strstr(err.hint, "--train-samples"), "%s", err.text);
}

// How alike an image is to itself, moved by dy, dx: what a pattern looks like, wherever it lies.
enum { LAGS = 3 * 7 * 4 };

static void likeness(const uint8_t *image, double *out)
{
    for (int c = 0; c < 3; c++)
        for (int dy = -3; dy <= 3; dy++)
            for (int dx = 1; dx <= 4; dx++) {
                int64_t sum = 0;
                for (int y = 0; y < 32; y++)
                    for (int x = 0; x < 32; x++)
                        sum += (image[c * 1024 + y * 32 + x] - 128) *
                               (image[c * 1024 + (y + dy + 32) % 32 * 32 + (x + dx) % 32] - 128);
                *out++ = (double)sum;
            }
    double length = 0;
    for (int i = 0; i < LAGS; i++)
        length += out[i - LAGS] * out[i - LAGS];
    for (int i = 0; i < LAGS; i++)
        out[i - LAGS] /= sqrt(length) + 1;
}

// Each class is given the mean likeness of its training images; a test image goes to the nearest
// one. So little already finds more than half of the labels, though no two images show a pattern in
// one place.
TEST(synthetic_images_can_be_learned)
{
    enum { TRAIN_N = 1500, CHECKED = 500 };
    Data data = synthetic(32, TRAIN_N, CHECKED, 0);
    static double means[10][LAGS];
    double lags[LAGS];
    for (int i = 0; i < TRAIN_N; i++) {
        likeness(data.train.images + (size_t)i * CIFAR_IMAGE, lags);
        for (int k = 0; k < LAGS; k++)
            means[data.train.labels[i]][k] += lags[k] / TRAIN_N * 10;
    }
    int correct = 0;
    for (int i = 0; i < CHECKED; i++) {
        likeness(data.test.images + (size_t)i * CIFAR_IMAGE, lags);
        int best = 0;
        double nearest = INFINITY;
        for (int class = 0; class < 10; class++) {
            double distance = 0;
            for (int k = 0; k < LAGS; k++)
                distance += (lags[k] - means[class][k]) * (lags[k] - means[class][k]);
            if (distance < nearest) {
                nearest = distance;
                best = class;
            }
        }
        correct += best == data.test.labels[i];
    }
    EXPECT(correct > CHECKED / 2, "%d of %d", correct, CHECKED);
    EXPECT(correct < CHECKED * 95 / 100, "%d of %d: too easy", correct, CHECKED);
    data_close(&data);
}

// --- the real CIFAR-10 ---------------------------------------------------------------------------

static uint64_t fnv1a(uint64_t hash, const void *bytes, size_t size)
{
    const uint8_t *p = bytes;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ p[i]) * 1099511628211u;
    return hash;
}

static void real_cifar10_check(const char *dir)
{
    Data data;
    Error err;
    if (!EXPECT(open_from(&data, dir, &err), "%s", err.text))
        return;
    static const double means[3] = { 0.49140, 0.48216, 0.44653 };
    for (int c = 0; c < 3; c++) {
        uint64_t sum = 0;
        for (int i = 0; i < 50000; i++)
            for (int k = 0; k < 1024; k++)
                sum += data.train.images[(size_t)i * CIFAR_IMAGE + c * 1024 + k];
        EXPECT_NEAR((double)sum / (50000.0 * 1024 * 255), means[c], 0.00001);
    }
    uint64_t hash = 14695981039346656037u;
    hash = fnv1a(hash, data.train.images, (size_t)50000 * CIFAR_IMAGE);
    hash = fnv1a(hash, data.train.labels, (size_t)50000 * 4);
    hash = fnv1a(hash, data.test.images, (size_t)10000 * CIFAR_IMAGE);
    hash = fnv1a(hash, data.test.labels, (size_t)10000 * 4);
    EXPECT(hash == 0xfac40e9242827fd2, "hash %016llx", (unsigned long long)hash);
    data_close(&data);
}

TEST(real_cifar10)
{
    const char *place = getenv("DDP_CIFAR10");
    struct stat info;
    if (!place || stat(place, &info) != 0) {
        printf("DDP_CIFAR10 names no CIFAR-10: not checked against the real one\n");
        return;
    }
    if (S_ISDIR(info.st_mode)) {
        real_cifar10_check(place);
        return;
    }
    char command[2 * PATH_MAX];
    snprintf(command, sizeof command, "tar -C '%s' -xf '%s'", test_path(""), place);
    if (EXPECT(system(command) == 0, "%s", command))
        real_cifar10_check(test_path("cifar-10-batches-bin"));
}

int main(void)
{
    alarm(600); // nothing here may hang
    idx_is_read_plain_and_gzipped();
    fashion_is_recognised();
    idx_of_many_chunks();
    idx_truncated_anywhere_is_refused();
    idx_flipped_bits_are_noticed();
    idx_damage_is_named();
    idx_sizes_are_named();
    idx_sets_that_do_not_fit_together();
    cifar10_is_read();
    cifar100_is_read();
    cifar_damage_is_refused();
    no_regular_file_is_refused_at_once();
    names_and_directories();
    missing_sets_say_how_to_get_them();
    auto_takes_the_best();
    sets_are_cut();
    only_training_images_are_augmented();
    classes_have_names();
    fingerprints_of_idx();
    fingerprints_of_gzip();
    fingerprints_of_cifar();
    fingerprints_of_what_is_left();
    synthetic_images_come_from_the_seed();
    synthetic_images_of_any_size();
    synthetic_images_can_be_learned();
    real_cifar10();
    return test_done();
}
