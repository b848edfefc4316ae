// Pictures in folders: ImageFolder's order, refused trees, the resulting data set, its crops.
#include "data/pictures.h"
#include "test.h"

// Runs a shell script in $TMP; its function `jpg FILE...` makes files that begin and end like a JPEG.
static void shell(const char *script)
{
    char text[4096];
    snprintf(text, sizeof text,
             "cd \"$TMP\" || exit 1; set -e\n"
             "jpg() { for f; do mkdir -p \"${f%%/*}\"; printf '\\377\\330\\377%%s\\377\\331' \"$f\" >\"$f\"; done; }\n"
             "%s\n", script);
    if (system(text) != 0) {
        fprintf(stderr, "failed: %s\n", script);
        exit(1);
    }
}

static void expect_files(const Folder *folder, int first, const char *const *wanted, const int *labels,
                         int count)
{
    FileBytes bytes = { 0 };
    Error err;
    for (int i = 0; i < count && first + i < folder->count; i++) {
        EXPECT_EQ_STR(folder->files[first + i].path, wanted[i]);
        EXPECT_EQ_INT(folder->files[first + i].label, labels[i]);
        if (!EXPECT(folder_read(folder, first + i, &bytes, &err), "%s", err.text))
            continue;
        size_t n = strlen(wanted[i]) + 2;
        EXPECT(bytes.size > n && memcmp(bytes.bytes + bytes.size - n, wanted[i], n - 2) == 0,
               "%s: wrong content", wanted[i]);
    }
    free(bytes.bytes);
}

static void expect_tree(const char *path, bool sets)
{
    static const char *const train[] = { "train/a b/2.jpg", "train/a b/z.JPEG", "train/a b/sub/1.png",
                                         "train/a b/sub-1/1.png", "train/a b/sub/x/1.jpg",
                                         "train/a-b/o.dd.jPg", "train/\xC3\xA9\n/1.jpg" };
    static const char *const val[] = { "val/a b/1.jpg", "val/a-b/1.jpg", "val/\xC3\xA9\n/1.jpg" };
    static const int train_labels[] = { 0, 0, 0, 0, 0, 1, 2 }, val_labels[] = { 0, 1, 2 };
    Folder folder;
    Error err;
    if (!EXPECT(folder_open(&folder, path, &err), "%s: %s", path, err.text))
        return;
    EXPECT_EQ_INT(folder.classes, 3);
    EXPECT_EQ_STR(folder.class_names[0], "a b");
    EXPECT_EQ_STR(folder.class_names[2], "\xC3\xA9\n");
    EXPECT(folder.sets == sets && folder.train_count == 7 && folder.count == (sets ? 10 : 7),
           "%s: %d of %d files", path, folder.train_count, folder.count);
    if (sets) {
        expect_files(&folder, 0, train, train_labels, 7);
        expect_files(&folder, 7, val, val_labels, 3);
    } else {
        EXPECT_EQ_STR(folder.files[0].path, "a b/2.jpg");
    }
    folder_close(&folder);
}

TEST(order_is_imagefolders)
{
    shell("mkdir tree; cd tree; e=$(printf '\\303\\251\\nx'); e=${e%x}\n"
          "jpg 'train/a b/z.JPEG' 'train/a b/2.jpg' 'train/a b/sub/1.png' 'train/a b/sub/x/1.jpg'\n"
          "jpg 'train/a b/sub-1/1.png' train/a-b/o.dd.jPg \"train/$e/1.jpg\" 'val/a b/1.jpg'\n"
          "jpg val/a-b/1.jpg \"val/$e/1.jpg\" train/beside.jpg test/other/1.jpg\n"
          "jpg train/.hidden/1.txt train/a-b/._1.jpg 'train/a b/.DS_Store' train/a-b/1.txt train/a-b/jpg\n"
          "mv train/a-b ../elsewhere; ln -s ../../elsewhere train/a-b");
    expect_tree(test_path("tree"), true);
    expect_tree(test_path("tree/"), true);
    expect_tree(test_path("tree/train"), false);
}

static void refused(const char *script, const char *path, const char *reason)
{
    Folder folder;
    Error err = { .text = "" };
    shell("rm -rf bad*; jpg bad/train/a/1.jpg bad/train/b/1.jpg bad/val/a/1.jpg bad/val/b/1.jpg");
    shell(script);
    bool good = folder_open(&folder, test_path(path), &err) && folder_check(&folder, 0, folder.count, &err);
    if (EXPECT(!good, "%s: accepted", script))
        EXPECT(strstr(err.text, reason) != NULL, "%s: \"%s\", not \"%s\"", script, err.text, reason);
    folder_close(&folder);
}

TEST(bad_trees_are_refused)
{
    refused("", "nowhere", "nowhere: No such file");
    refused("rm -r bad/val", "bad", "bad: there is train but no val");
    refused("rm -r bad/train", "bad", "bad: there is val but no train");
    refused("rm -r bad/val/b", "bad", "bad/val/b: no such folder");
    refused("rm -r bad/*/b", "bad", "only one class: a");
    refused("jpg bad/val/c/1.jpg", "bad", "bad/val/c: train has no class of this name");
    refused("mkdir bad/train/c", "bad", "bad/train/c has no .jpg, .jpeg or .png file");
    refused("rm -r bad/*", "bad", "bad: this is not a data set");
    refused("mkdir bad0; mv bad bad0/bad1", "bad0", "only one class: bad1");
    refused(": >bad/train/b/2.jpg", "bad", "bad/train/b/2.jpg: the file is empty");
    refused("mv bad/train/b/1.jpg bad/train/b/1.txt", "bad", "train/b has no .jpg, .jpeg or .png file");
    refused("mkfifo bad/val/a/2.jpg", "bad", "val/a/2.jpg: neither a file nor");
    refused("ln -s nothing bad/val/a/2.jpg", "bad", "a link whose target cannot be reached: ");
    refused("ln -s . bad/val/a/loop", "bad", "a link that leads to itself: ");
    refused("ln -s ../../val bad/val/a/up", "bad", "a link that leads to itself: ");
    refused("ln -s . bad/val/a/up; ln -s . bad/val/a/loop", "bad", "a link that leads to itself: ");
    refused("ln -s nothing.jpg bad/train/b/0.jpg; : >bad/train/b/nothing.jpg", "bad", "jpg: the file is empty");
    refused("ln -s self bad/val/a/self", "bad", "a link that leads to itself: ");
    if (geteuid() != 0)
        refused("chmod 0 bad/val/a", "bad", "val/a: Permission denied");
}

enum { CLASSES = 3, FILES = 20 };

// FILES pictures per class in train, half as many in val. `single`: without these two folders.
static DataConfig tree_make(const char *name, bool single)
{
    char script[1024];
    DataConfig config = data_defaults();
    snprintf(script, sizeof script,
             "for class in 'a, b' cat 'z\"'; do for i in $(seq -w %d); do jpg \"%s/%s$class/$i.jpg\"; "
             "[ $i -gt %d ] || jpg \"%s/val/$class/$i.jpg\"; done; done",
             FILES, name, single ? "" : "train/", single ? 0 : FILES / 2, name);
    shell(script);
    config.data = test_path(name);
    config.image_size = 32;
    return config;
}

static bool opened(Data *data, const DataConfig *config)
{
    Error err = { 0 };
    return EXPECT(data_open(data, config, 5, &err), "%s", err.text);
}

TEST(a_tree_is_a_data_set)
{
    Data data;
    DataConfig config = tree_make("whole", false);
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

    config.train_count = 6;     // two of each class, not the first six files
    if (!opened(&data, &config))
        return;
    for (int i = 0; i < 6; i++)
        EXPECT_EQ_INT(data.train.labels[i], i / 2);
    data_cut(&data, 3);
    EXPECT(data.train.labels[2] == 2 && data.test.labels[2] == 2, "a class is missing");
    data_close(&data);
}

TEST(a_single_level_is_split)
{
    Data data, again;
    DataConfig config = tree_make("alone", true);
    if (!opened(&data, &config) || !opened(&again, &config))
        return;
    int seen[CLASSES * FILES] = { 0 }, apart[CLASSES] = { 0 }, differ = 0;
    EXPECT_EQ_INT(data.train.count, CLASSES * FILES * 8 / 10);
    EXPECT_EQ_INT(data.test.count, CLASSES * FILES * 2 / 10);
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
        EXPECT_EQ_INT(apart[k], FILES * 2 / 10);
    EXPECT_EQ_INT(differ, 0);
    data_close(&again);
    data_close(&data);
}

TEST(fingerprints_of_trees)
{
    static const char *const changes[] = {
        "true", "cp -r print print-copy; rm -r print; mv print-copy print",
        "printf x >>'print/train/cat/02.jpg'", "mv print/val/cat/03.jpg print/val/cat/003.jpg",
    };
    char prints[4][128] = { "" };
    DataConfig config = tree_make("print", false);
    for (int i = 0; i < 4; i++) {
        Data data;
        shell(changes[i]);
        if (opened(&data, &config))
            snprintf(prints[i], sizeof prints[i], "%s", data.fingerprint);
        data_close(&data);
    }
    EXPECT_EQ_STR(prints[1], prints[0]);
    EXPECT(strcmp(prints[1], prints[2]) != 0, "a longer file: still %s", prints[1]);
    EXPECT(strcmp(prints[2], prints[3]) != 0, "a renamed file: still %s", prints[2]);
}

// Is the image in this epoch with this seed equal to that in epoch 0 with seed 5?
static bool same_image(const Data *data, const Augment *augment, int64_t epoch, uint64_t seed)
{
    static uint8_t first[3 * 32 * 32], other[3 * 32 * 32];
    PictureTools tools = { 0 };
    Error err;
    Augment seeded = *augment;
    seeded.seed = seed;
    bool good = picture_make(&data->train, 0, augment, 0, &tools, first, &err) &&
                picture_make(&data->train, 0, &seeded, epoch, &tools, other, &err);
    picture_tools_free(&tools);
    return good && memcmp(first, other, sizeof first) == 0;
}

TEST(crops_follow_seed_and_epoch)
{
    Data data;
    DataConfig config = tree_make("crops", true);
    shell("cp '" DDP_SOURCE_DIR "/tests/fuzz/corpus/picture/baseline' 'crops/a, b/01.jpg'");
    config.train_count = 1;
    if (!opened(&data, &config))
        return;
    EXPECT(same_image(&data, &data.augment, 0, 5), "the same epoch and seed, a different crop");
    EXPECT(!same_image(&data, &data.augment, 1, 5), "a different epoch, the same crop");
    EXPECT(!same_image(&data, &data.augment, 0, 6), "a different seed, the same crop");
    EXPECT(same_image(&data, &data.plain, 1, 6), "the center crop changed");
    data_close(&data);
}

TEST_MAIN
