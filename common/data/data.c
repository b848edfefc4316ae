// data.c - finds a data set and opens it.
#include "data/formats.h"
#include "data/pictures.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

// --- the sets, and where to look for them --------------------------------------------------------

enum { NAMED_CLASSES = 10 };

typedef struct KnownSet {
    const char *name;
    const char *place;          // the set's path below data/, or NULL
    const char *system_place;   // a path where the system may have the set, or NULL
    const char *hint;           // the hint if files are missing or damaged
    bool (*read)(Data *data, const char *path, const DataConfig *config, Error *err);
    int classes;
    bool jitter;                // does --augment apply? Not to digits and clothes.
    float mean[3], std[3];
    const char *class_names[NAMED_CLASSES];
} KnownSet;

// "auto" takes the first set that exists; synthetic always exists. The last row is for all folders
// of pictures; its mean and deviation are ImageNet's, as in torchvision's examples.
static const KnownSet known_sets[] = {
    { "fashion-mnist", "fashion-mnist", "/usr/share/datasets/fashion-mnist",
      "download it: ./ddp data fashion-mnist", idx_read, 10, false, { 0.2860f }, { 0.3530f },
      { "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
        "Ankle boot" } },
    { "cifar10", "cifar-10-batches-bin", NULL, "download it: ./ddp data cifar10", cifar10_read, 10,
      true, { 0.4914f, 0.4822f, 0.4465f }, { 0.2023f, 0.1994f, 0.2010f },
      { "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
        "truck" } },
    { "synthetic", NULL, NULL, NULL, synthetic_make, 10, true, { 0.5f, 0.5f, 0.5f },
      { 0.25f, 0.25f, 0.25f } },
    { "cifar100", "cifar-100-binary", NULL, "download it: ./ddp data cifar100", cifar100_read, 100,
      true, { 0.5071f, 0.4865f, 0.4409f }, { 0.2673f, 0.2564f, 0.2762f } },
    { "mnist", "mnist", NULL, "download it: ./ddp data mnist", idx_read, 10,
      false, { 0.1307f }, { 0.3081f },
      { "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" } },
    { "shakespeare", "shakespeare/input.txt", NULL, "download it: ./ddp data shakespeare",
      text_read, .jitter = true },
    { "words", NULL, "/usr/share/dict/words",
      "install it: ./ddp setup (package wamerican); or use --data text:FILE", words_read,
      .jitter = true },
    { "text", NULL, NULL, "name a file that can be read: --data text:FILE", text_read,
      .jitter = true },
    { "folder", NULL, NULL,
      "put .jpg, .jpeg or .png files in DIR/train/CLASS/ and DIR/val/CLASS/", pictures_open,
      .jitter = true, .mean = { 0.485f, 0.456f, 0.406f }, .std = { 0.229f, 0.224f, 0.225f } },
};
static const KnownSet *const folder = known_sets + sizeof known_sets / sizeof *known_sets - 1;

// Returns a set's path, or NULL. A damaged set counts as found: it is an error and must not be
// skipped.
static const char *set_find(const KnownSet *set, char path[PATH_MAX])
{
    const char *roots[] = { "data", DDP_SOURCE_DIR "/data" };
    for (int i = 0; i < 2 && set->place; i++) {
        snprintf(path, PATH_MAX, "%s/%s", roots[i], set->place);
        if (!data_file_missing(path))
            return path;
    }
    return set->system_place && !data_file_missing(set->system_place) ? set->system_place : NULL;
}

// The set of "NAME" or "NAME:PATH"; any other text is a folder.
static const KnownSet *set_named(const char *data)
{
    const size_t length = strcspn(data, ":");
    const KnownSet *set = known_sets;
    while (set < folder && (strlen(set->name) != length || memcmp(set->name, data, length) != 0))
        set++;
    return set;
}

// Returns the set for --data. *path: the set's path; NULL: the set is synthetic, or missing.
static const KnownSet *set_choose(const char *data, const char **path, char found[PATH_MAX])
{
    const KnownSet *set = known_sets;
    const char *colon = strchr(data, ':');
    if (strcmp(data, "auto") == 0) {
        while (set->place && !(*path = set_find(set, found)))
            set++;
        return set;
    }
    set = set_named(data);
    *path = set == folder ? data : colon ? colon + 1 : set_find(set, found);
    return set;
}

// --- options -------------------------------------------------------------------------------------

DataConfig data_defaults(void)
{
    return (DataConfig){ .data = "auto", .block = 64, .workers = 2, .augment = true };
}

static void check_options(Args *args, void *config)
{
    const char *data = ((DataConfig *)config)->data;
    const KnownSet *set = set_named(data);
    bool text = set->read == text_read || set->read == words_read;
    bool any_size = set->read == synthetic_make || (set == folder && strcmp(data, "auto") != 0);
    if (args_has(args, "arch") && args_is(args, "arch", "gpt") != text)
        args_reject(args, "data", text ? "only --arch gpt learns a text, such as %s"
                                       : "--arch gpt learns a text, such as words, not %s", data);
    if (args_given(args, "block") && !text)
        args_reject(args, "block", "has no effect without a text, such as --data text:FILE");
    if (args_given(args, "image-size") && !any_size)
        args_reject(args, "image-size", "has no effect with --data %s", data);
}

void data_options(Args *args, DataConfig *config)
{
    *config = data_defaults();
    args_add(args, ARGS_ROWS(
        { "data", 0, ARG_STRING, &config->data, "SET",
          "auto (fashion-mnist, else cifar10, else synthetic), mnist, cifar100, cifar10:DIR, or a "
          "folder of pictures; for gpt: words, shakespeare, text:FILE",
          .local = true, .first = true },
        { "block", 0, ARG_INT, &config->block, "N", "text: bytes in each window",
          .min = 2, .max = 4096 },
        { "image-size", 0, ARG_INT, &config->image_size, "PIXELS",
          "width and height of images (default: 32 if synthetic, 224 for picture files)",
          .min = 28, .max = 1024 },
        { "train-samples", 0, ARG_INT, &config->train_count, "N", "train with N samples (0: all)",
          .min = 0, .max = 1e8 },
        { "test-samples", 0, ARG_INT, &config->test_count, "N", "test with N samples (0: all)",
          .min = 0, .max = 1e8 },
        { "workers", 'j', ARG_INT, &config->workers, "N", "threads that prepare batches (0: none)",
          .min = 0, .max = 64, .local = true },
        { "augment", 0, ARG_FLAG, &config->augment, NULL,
          "randomly crop and flip training images (not digits or clothes); text: shift windows" }));
    args_check(args, check_options, config);
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
    data->train.classes = data->test.classes = set->classes;
    data->class_names = set->class_names[0] ? set->class_names : NULL;
}

static bool set_open(Data *data, const DataConfig *config, int64_t seed, Error *err)
{
    const char *path, *place;
    char found[PATH_MAX];
    const KnownSet *set = set_choose(config->data, &path, found);
    if (set == folder && data_file_missing(path))
        return error_set(err, "see --help for the data sets",
                         "--data %s: no such data set or folder", path);
    place = set->place ? set->place : set->system_place ? set->system_place : "path after it";
    if (!path && set->read != synthetic_make)
        return error_set(err, set->hint, "--data %s: there is no %s%s", set->name,
                         set->place ? "data/" : "", place);
    describe(data, config, seed, set, path ? path : "made from the seed");
    err->hint[0] = '\0';
    bool good = set->read(data, path, config, err);
    if (!good && !err->hint[0])
        snprintf(err->hint, sizeof err->hint, "%s", set->hint);
    return good;
}

static bool dataset_cut(Dataset *set, int count, const char *option, const char *name, Error *err)
{
    if (count > set->count)
        return error_set(err, "use 0 for all samples", "%s %d: this part of %s has only %d samples",
                         option, count, name, set->count);
    if (count > 0 && set->pictures)
        pictures_cut(set, count);
    set->count = count > 0 ? count : set->count;
    return true;
}

bool data_open(Data *data, const DataConfig *config, int64_t seed, Error *err)
{
    *data = (Data){ .samples = "images", .unit = "images" };
    bool good = set_open(data, config, seed, err) &&
        dataset_cut(&data->train, config->train_count, "--train-samples", data->name, err) &&
        dataset_cut(&data->test, config->test_count, "--test-samples", data->name, err);
    snprintf(data->fingerprint, sizeof data->fingerprint, "%s, %d + %d %s, checksum %08x",
             data->name, data->train.count, data->test.count, data->samples, data->checksum);
    if (!good)
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
