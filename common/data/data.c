// data.c - finds a data set and opens it.
#include "data/formats.h"
#include "data/pictures.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

// --- options -------------------------------------------------------------------------------------

DataConfig data_defaults(void)
{
    return (DataConfig){ .data = "auto", .block = 64, .workers = 2, .augment = true };
}

#define TEXTS "words|shakespeare|text:"
#define IMAGE_SETS "cifar10|cifar100|mnist|fashion-mnist"

void data_options(Args *args, DataConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "data", 0, ARG_STRING, &config->data, "SET",
          "auto (fashion-mnist, else cifar10, else synthetic), cifar100, mnist, or a directory; "
          "text: words, shakespeare, or text:FILE", .local = true },
        { "block", 0, ARG_INT, &config->block, "N", "text: bytes in each window",
          .min = 2, .max = 4096, .needs = "data " TEXTS },
        { "image-size", 0, ARG_INT, &config->image_size, "PIXELS",
          "width and height of images (default: 32 if synthetic, 224 for picture files)",
          .min = 28, .max = 1024, .needs = "data not auto|" IMAGE_SETS "|" TEXTS },
        { "train-samples", 0, ARG_INT, &config->train_count, "N", "train with N samples (0: all)",
          .min = 0, .max = 1e8 },
        { "test-samples", 0, ARG_INT, &config->test_count, "N", "test with N samples (0: all)",
          .min = 0, .max = 1e8 },
        { "workers", 'j', ARG_INT, &config->workers, "N", "threads that prepare batches",
          .min = 0, .max = 64, .local = true },
        { "augment", 0, ARG_FLAG, &config->augment, NULL,
          "randomly crop and flip training images (not digits, clothes); text: shift windows" }));
}

// --- the sets, and where to look for them --------------------------------------------------------

enum { NAMED_CLASSES = 10 };

typedef struct KnownSet {
    const char *name;
    const char *folder;         // under data/
    const char *system_folder;  // where the system may have it, or NULL
    const char *probe;          // a file by which set_in_directory knows it
    bool (*read)(Data *data, const char *dir, const char *hint, Error *err);
    int classes;
    bool jitter;                // crop and flip: not for digits and clothes
    float mean[3], std[3];
    const char *class_names[NAMED_CLASSES];
} KnownSet;

enum { CIFAR10, CIFAR100, MNIST, FASHION, KNOWN_SETS };
static const KnownSet known_sets[KNOWN_SETS] = {
    { "cifar10", "cifar-10-batches-bin", NULL, "data_batch_1.bin", cifar10_read, 10, true,
      { 0.4914f, 0.4822f, 0.4465f }, { 0.2023f, 0.1994f, 0.2010f },
      { "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
        "truck" } },
    { "cifar100", "cifar-100-binary", NULL, "train.bin", cifar100_read, 100, true,
      { 0.5071f, 0.4865f, 0.4409f }, { 0.2673f, 0.2564f, 0.2762f }, { NULL } },
    [MNIST] = { "mnist", "mnist", "/usr/share/datasets/mnist", "train-images-idx3-ubyte", idx_read,
      10, false, { 0.1307f }, { 0.3081f },
      { "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" } },
    [FASHION] = { "fashion-mnist", "fashion-mnist", "/usr/share/datasets/fashion-mnist",
      "train-images-idx3-ubyte", idx_read, 10, false, { 0.2860f }, { 0.3530f },
      { "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
        "Ankle boot" } },
};

// Names the file of a text, and a hint if the file is missing. False: --data is not a text.
static bool text_named(const char *data, const char **file, const char **hint)
{
    static const char here[] = "data/shakespeare/input.txt",
                      source[] = DDP_SOURCE_DIR "/data/shakespeare/input.txt";
    if (strcmp(data, "words") == 0) {
        *file = "/usr/share/dict/words";
        *hint = "./ddp setup installs it (the package wamerican); or --data text:FILE";
    } else if (strcmp(data, "shakespeare") == 0) {
        *file = data_file_missing(here) && !data_file_missing(source) ? source : here;
        *hint = "./ddp data shakespeare downloads it";
    } else if (strncmp(data, "text:", strlen("text:")) == 0) {
        *file = data + strlen("text:");
        *hint = "give the path of a text file: --data text:FILE";
    } else {
        return false;
    }
    return true;
}

static const KnownSet *set_named(const char *name)
{
    for (int i = 0; i < KNOWN_SETS; i++)
        if (strcmp(known_sets[i].name, name) == 0)
            return &known_sets[i];
    return NULL;
}

// A folder counts as found even if its files are damaged: a damaged data set is an error and must
// not be skipped.
static bool set_find(const KnownSet *set, char dir[PATH_MAX])
{
    const char *roots[] = { "data", DDP_SOURCE_DIR "/data" };
    for (int i = 0; i < 2; i++) {
        snprintf(dir, PATH_MAX, "%s/%s", roots[i], set->folder);
        if (!data_file_missing(dir))
            return true;
    }
    snprintf(dir, PATH_MAX, "%s", set->system_folder ? set->system_folder : "");
    return !data_file_missing(dir);
}

// Returns the set in this directory, or NULL. MNIST and Fashion-MNIST have the same file names, so
// the word "fashion" in the path decides.
static const KnownSet *set_in_directory(const char *dir)
{
    char path[PATH_MAX];
    for (int i = 0; i < KNOWN_SETS; i++) {
        for (int zipped = 0; zipped < (i == MNIST ? 2 : 1); zipped++) {
            snprintf(path, sizeof path, "%s/%s%s", dir, known_sets[i].probe, zipped ? ".gz" : "");
            if (!data_file_missing(path))
                return &known_sets[i == MNIST && strcasestr(dir, "fashion") ? FASHION : i];
        }
    }
    return NULL;
}

// --- opening -------------------------------------------------------------------------------------

static void describe(Data *data, const DataConfig *config, int64_t seed, const KnownSet *set,
                     const char *source)
{
    bool jitter = config->augment && set->jitter;
    snprintf(data->name, sizeof data->name, "%s", set->name);
    snprintf(data->source, sizeof data->source, "%s", source);
    data->plain = (Augment){ .seed = (uint64_t)seed };
    memcpy(data->plain.mean, set->mean, sizeof set->mean);
    memcpy(data->plain.std, set->std, sizeof set->std);
    data->augment = data->plain;
    data->augment.crop = data->augment.flip = jitter;
    data->augment.padding = jitter ? 4 : 0;
}

static bool set_open(Data *data, const KnownSet *set, const char *dir, const DataConfig *config,
                     int64_t seed, Error *err)
{
    char hint[sizeof err->hint];
    snprintf(hint, sizeof hint, "./ddp data %s downloads it", set->name);
    describe(data, config, seed, set, dir);
    data->train.classes = data->test.classes = set->classes;
    data->class_names = set->class_names[0] ? set->class_names : NULL;
    return set->read(data, dir, hint, err);
}

// Pictures are later normalised with ImageNet's mean and deviation, as in torchvision's examples.
static bool folder_data_open(Data *data, const DataConfig *config, int64_t seed, Error *err)
{
    static const KnownSet folder = { "folder", .mean = { 0.485f, 0.456f, 0.406f },
                                     .std = { 0.229f, 0.224f, 0.225f }, .jitter = true };
    describe(data, config, seed, &folder, config->data);
    return pictures_open(data, config, err);
}

static bool synthetic_open(Data *data, const DataConfig *config, int64_t seed, Error *err)
{
    static const KnownSet synthetic = { "synthetic", .mean = { 0.5f, 0.5f, 0.5f },
                                        .std = { 0.25f, 0.25f, 0.25f }, .jitter = true };
    char source[64];
    snprintf(source, sizeof source, "made from seed %lld", (long long)seed);
    describe(data, config, seed, &synthetic, source);
    return synthetic_make(data, config, seed, err);
}

static bool text_open(Data *data, const DataConfig *config, int64_t seed, const char *file,
                      const char *hint, Error *err)
{
    const KnownSet set = { strchr(config->data, ':') ? "text" : config->data, .jitter = true };
    if (data_file_missing(file))
        return error_set(err, hint, "--data %s: there is no file %s", config->data, file);
    describe(data, config, seed, &set, file);
    return text_read(data, file, config->block, strcmp(data->name, "words") == 0, err);
}

static bool set_missing(const KnownSet *set, Error *err)
{
    char hint[sizeof err->hint];
    const char *system = set->system_folder;
    snprintf(hint, sizeof hint, "./ddp data %s downloads it", set->name);
    return error_set(err, hint, "--data %s: there is no data/%s, here or in the source tree%s%s",
                     set->name, set->folder, system ? ", and no " : "", system ? system : "");
}

static void dataset_cut(Dataset *set, int count)
{
    if (set->pictures)
        pictures_cut(set, count);
    set->count = count;
}

static bool dataset_cut_to(Dataset *set, int count, const char *option, const char *name,
                           Error *err)
{
    if (count > set->count)
        return error_set(err, "0 uses all samples", "%s %d: %s has only %d such samples", option,
                         count, name, set->count);
    if (count > 0)
        dataset_cut(set, count);
    return true;
}

static void fingerprint_write(Data *data)
{
    snprintf(data->fingerprint, sizeof data->fingerprint, "%s, %d + %d %s, checksum %08x",
             data->name, data->train.count, data->test.count, data->samples, data->checksum);
}

static bool data_find_and_read(Data *data, const DataConfig *config, int64_t seed, Error *err)
{
    const char *wanted = config->data, *file, *hint;
    char dir[PATH_MAX];
    if (strcmp(wanted, "auto") == 0) {
        const KnownSet *preferred[] = { &known_sets[FASHION], &known_sets[CIFAR10] };
        for (int i = 0; i < 2; i++)
            if (set_find(preferred[i], dir))
                return set_open(data, preferred[i], dir, config, seed, err);
        return synthetic_open(data, config, seed, err);
    }
    if (strcmp(wanted, "synthetic") == 0)
        return synthetic_open(data, config, seed, err);
    if (text_named(wanted, &file, &hint))
        return text_open(data, config, seed, file, hint, err);

    const KnownSet *set = set_named(wanted);
    if (set)
        return set_find(set, dir) ? set_open(data, set, dir, config, seed, err)
                                  : set_missing(set, err);
    if (data_file_missing(wanted))
        return error_set(err, "choose auto|synthetic|" IMAGE_SETS "|" TEXTS "FILE, or a directory",
                         "--data %s: no such data set or directory", wanted);
    set = set_in_directory(wanted);
    return set ? set_open(data, set, wanted, config, seed, err)
               : folder_data_open(data, config, seed, err);
}

bool data_open(Data *data, const DataConfig *config, int64_t seed, Error *err)
{
    *data = (Data){ .samples = "images", .unit = "images" };
    bool good = data_find_and_read(data, config, seed, err) &&
        dataset_cut_to(&data->train, config->train_count, "--train-samples", data->name, err) &&
        dataset_cut_to(&data->test, config->test_count, "--test-samples", data->name, err);
    if (good)
        fingerprint_write(data);
    else
        data_close(data);
    return good;
}

void data_close(Data *data)
{
    pictures_close(&data->train);
    pictures_close(&data->test);
    free(data->train.inputs);
    free(data->train.labels);
    free(data->test.inputs);
    free(data->test.labels);
    *data = (Data){ 0 };
}

int64_t data_order(const Data *data, bool shuffle)
{
    const uint32_t decides[] = { data->checksum, (uint32_t)data->train.count, shuffle };
    return 1 + (int64_t)crc32_z(0, (const uint8_t *)decides, sizeof decides);
}

const char *data_class_name(const Data *data, int label)
{
    return data->class_names ? data->class_names[label] : NULL;
}
