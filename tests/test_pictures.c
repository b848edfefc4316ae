// Pictures: listing a folder; decoding, cropping and resizing, compared with Pillow's pixels and torchvision's boxes.
// tools/reference/pictures.py made tests/reference/pictures.txt, and its files in tests/fuzz/corpus/picture.
#include "data/pictures.h"
#include "test.h"

#include <jpeglib.h>
#include <math.h>
#include <png.h>

#define CORPUS DDP_SOURCE_DIR "/tests/fuzz/corpus/picture"

static const Augment center = { .seed = 0 }, jittered = { .crop = true, .flip = true, .seed = 5 };

// --- one picture -----------------------------------------------------------------------------------

static bool make(const char *dir, const char *name, int side, const Augment *augment, int64_t epoch,
                 PictureRoom *room, uint8_t *out, Error *err)
{
    size_t at = 0;
    struct Pictures pictures = { .dir = (char *)dir, .names = (char *)name, .at = &at };
    Dataset set = { .count = 1, .channels = 3, .height = side, .width = side, .pictures = &pictures };
    *err = (Error){ 0 };
    return picture_make(&set, 0, augment, epoch, room, out, err);
}

static size_t corpus_read(const char *name, uint8_t **bytes)
{
    FileBytes file = { 0 };
    Error err;
    char path[512];
    snprintf(path, sizeof path, "%s/%s", CORPUS, name);
    if (!data_file_load(path, 1 << 20, &file, &err))
        FAIL_ERROR(&err);
    *bytes = file.bytes;
    return file.size;
}

// The largest and the average difference of an image's planes from pixels.
static void expect_near(const char *what, const uint8_t *planes, const uint8_t *pixels, int count)
{
    int most = 0, sum = 0;
    for (int i = 0; i < 3 * count; i++) {
        int off = abs(planes[i % 3 * count + i / 3] - pixels[i]);
        most = off > most ? off : most;
        sum += off;
    }
    EXPECT(most <= 16 && sum <= 2 * 3 * count, "%s: at most %d levels off, on average %.2f", what, most,
           sum / (3.0 * count));
}

static int ascending(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

// Area, ratio and place of random boxes must have about these deciles: a decile must lie between the draws that are
// 1.5 % of all draws before and after its place in their order.
static void expect_deciles(int width, int height, const double *deciles)
{
    enum { DRAWS = 20000, NEAR = DRAWS * 15 / 1000 };
    static double values[3][DRAWS];
    for (int i = 0; i < DRAWS; i++) {
        View view = view_random(width, height, 224, 5, i / 1000, i % 1000);
        int w = view.x.high - view.x.low, h = view.y.high - view.y.low, free_rows = height - h;
        values[0][i] = (double)w * h / ((double)width * height);
        values[1][i] = (double)w / h;
        values[2][i] = (double)view.y.low / (free_rows ? free_rows : 1);
    }
    for (int v = 0; v < 3; v++) {
        qsort(values[v], DRAWS, sizeof values[v][0], ascending);
        for (int d = 1; d < 10; d++) {
            const double *at = &values[v][d * DRAWS / 10], decile = deciles[9 * v + d - 1];
            EXPECT(at[-NEAR] <= decile + 1e-4 && at[NEAR] >= decile - 1e-4,
                   "%dx%d: %s: %.4f to %.4f, torchvision's decile %d is %.4f", width, height,
                   (const char *[]){ "area", "ratio", "place" }[v], at[-NEAR], at[NEAR], d, decile);
        }
    }
}

TEST(pixels_and_boxes_are_those_of_pillow_and_torchvision)
{
    enum { SIDE = 12, BYTES = 3 * SIDE * SIDE };
    char word[64], name[64], digits[3];
    int pictures = 0, boxes = 0, width, height;
    PictureRoom room = { 0 };
    FILE *list = fopen(DDP_SOURCE_DIR "/tests/reference/pictures.txt", "r");
    CHECK(list, "", "no tests/reference/pictures.txt");
    while (fscanf(list, "%63s", word) == 1) {
        uint8_t pixels[BYTES], out[BYTES];
        double deciles[27];
        Error err;
        if (strcmp(word, "picture") == 0) {
            CHECK(fscanf(list, "%63s ", name) == 1, "", "picture %d", pictures);
            for (int i = 0; i < BYTES && fscanf(list, "%2[0-9a-f]", digits) == 1; i++)
                pixels[i] = (uint8_t)strtol(digits, NULL, 16);
            if (EXPECT(make(CORPUS, name, SIDE, &center, 0, &room, out, &err), "%s", err.text))
                expect_near(name, out, pixels, SIDE * SIDE);
            pictures++;
        } else {
            CHECK(fscanf(list, "%d %d", &width, &height) == 2, "", "boxes %d", boxes);
            for (int i = 0; i < 27; i++)
                CHECK(fscanf(list, "%lf", &deciles[i]) == 1, "", "boxes %d", boxes);
            expect_deciles(width, height, deciles);
            boxes++;
        }
    }
    fclose(list);
    picture_room_free(&room);
    EXPECT_EQ_INT(pictures, 14);
    EXPECT_EQ_INT(boxes, 4);
}

// A pixel's red and green are its coordinates, so an image's pixels show where in the picture they come from. Blue is
// 255 everywhere, and must stay so.
TEST(crops_and_flips)
{
    enum { W = 220, H = 150, SIDE = 40 };
    static uint8_t rgb[H][W][3], out[3][SIDE][SIDE], last[3][SIDE][SIDE], file[200000];
    png_image image = { .version = PNG_IMAGE_VERSION, .width = W, .height = H, .format = PNG_FORMAT_RGB };
    png_alloc_size_t size = sizeof file;
    PictureRoom room = { 0 };
    Error err;
    int wrong = 0, flips = 0, moved = 0;
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
            rgb[y][x][0] = (uint8_t)x, rgb[y][x][1] = (uint8_t)y, rgb[y][x][2] = 255;
    CHECK(png_image_write_to_memory(&image, file, &size, 0, rgb, 0, NULL), "", "%s", image.message);
    test_file("coordinates.png", file, size);
    for (int i = 0; i < 100; i++) {         // the epoch and the seed change in turn
        Augment augment = jittered;
        augment.seed += i / 2;
        if (!make(test_path(""), "coordinates.png", SIDE, &augment, (i + 1) / 2 % 2, &room, &out[0][0][0], &err))
            FAIL_ERROR(&err);
        const Span *across = &room.view.x, *down = &room.view.y;
        flips += room.view.flip;
        for (int y = 1; y < SIDE - 1; y++)          // at the edge, pixels outside the box are missing
            for (int x = 1; x < SIDE - 1; x++) {
                double column = across->from + (x + 0.5) * across->step - 0.5;
                double row = down->from + (y + 0.5) * down->step - 0.5;
                wrong += fabs(out[0][y][room.view.flip ? SIDE - 1 - x : x] - column) > 1 + across->step / 4;
                wrong += fabs(out[1][y][x] - row) > 1 + down->step / 4 || out[2][y][x] != 255;
            }
        moved += memcmp(out, last, sizeof out) != 0;
        memcpy(last, out, sizeof out);
    }
    EXPECT(wrong == 0 && flips > 30 && flips < 70 && moved > 95, "%d wrong, %d flips, %d moved", wrong, flips, moved);
    test_file("half.png", file, size / 2);          // half a JPEG: test_folder_run.sh
    EXPECT(!make(test_path(""), "half.png", SIDE, &center, 0, &room, &out[0][0][0], &err), "it is accepted");
    EXPECT_HAS(err.text, "half.png: ");
    picture_room_free(&room);
}

// Only the part that a view needs is decoded: the image must be the same as from the whole picture.
// torchvision's Resize(256) makes this 455 x 256 pixels, and CenterCrop(224) begins at round(231 / 2.0) = 116.
TEST(a_wide_picture_is_cropped_in_its_centre)
{
    View view = view_center(1280, 720, 224);
    EXPECT_NEAR(view.x.from / view.x.step, 116, 1e-9);
    EXPECT_NEAR(view.y.from / view.y.step, 16, 1e-9);
}

TEST(parts_match_the_whole_for_every_chroma_sampling)
{
    enum { W = 45, H = 37, SIDE = 10 };
    static const char *const names[] = { "420", "422", "baseline", "progressive", "restarts", "rgb" };
    static uint8_t rgb[H][W * 3];
    uint8_t out[3 * SIDE * SIDE], wanted[3 * SIDE * SIDE];
    PictureRoom room = { 0 };
    Error err = { 0 };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct jpeg_decompress_struct from;
        struct jpeg_error_mgr errors;
        uint8_t *bytes;
        int wrong = 0;
        from.err = jpeg_std_error(&errors);
        jpeg_create_decompress(&from);
        size_t size = corpus_read(names[i], &bytes);
        jpeg_mem_src(&from, bytes, size);
        jpeg_read_header(&from, TRUE);
        jpeg_start_decompress(&from);
        for (int y = 0; y < H; y++)
            jpeg_read_scanlines(&from, (JSAMPROW[]){ rgb[y] }, 1);
        jpeg_destroy_decompress(&from);
        free(bytes);
        for (int epoch = 0; epoch < 200; epoch++) {
            wrong += !make(CORPUS, names[i], SIDE, &jittered, epoch, &room, out, &err);
            View view = room.view;
            picture_resize(rgb[0], &(Rect){ 0, 0, W, H }, &view, SIDE, &room, wanted);
            wrong += memcmp(out, wanted, sizeof out) != 0;
        }
        EXPECT(wrong == 0, "%s: %d wrong %s", names[i], wrong, err.text);
    }
    picture_room_free(&room);
}

// --- folders ---------------------------------------------------------------------------------------

// Runs a shell script in $TMP; its function `jpg FILE...` makes files.
static void shell(const char *script)
{
    char text[4096];
    snprintf(text, sizeof text,
             "cd \"$TMP\" || exit 1; set -e\n"
             "jpg() { for f; do mkdir -p \"${f%%/*}\"; echo \"$f\" >\"$f\"; done; }\n"
             "%s\n", script);
    CHECK(system(text) == 0, "", "failed: %s", script);
}

static bool opened(Data *data, const char *path, int train_count, Error *err)
{
    DataConfig config = data_defaults();
    config.data = path;
    config.image_size = 32;
    config.train_count = train_count;
    *err = (Error){ 0 };
    return data_open(data, &config, 5, err);
}

TEST(a_folder_is_a_data_set)
{
    static const char *const wanted[] = { "train/a_ b/1.jpg", "train/a_ b/2.jpg", "train/a_ b/z.JPEG",
                                          "train/a-b/1.png", "train/a-b/o.dd.jPg", "train/c/1.jpg" };
    static const int labels[] = { 0, 0, 0, 1, 1, 2 };
    char name[256], print[128];
    Data data;
    Error err;
    shell("jpg 'tree/train/a, b/z.JPEG' 'tree/train/a, b/2.jpg' 'tree/train/a, b/1.jpg' tree/train/a-b/1.png\n"
          "jpg tree/train/a-b/o.dd.jPg tree/train/c/1.jpg 'tree/val/a, b/1.jpg' tree/val/a-b/1.jpg tree/val/c/1.jpg\n"
          "jpg tree/train/beside.jpg tree/train/.hidden/1.jpg tree/train/c/._1.jpg tree/train/c/1.txt\n"
          "mv tree/train/a-b elsewhere; ln -s ../../elsewhere tree/train/a-b");
    if (!EXPECT(opened(&data, test_path("tree"), 0, &err), "%s", err.text))
        return;
    EXPECT(data.train.count == 6 && data.test.count == 3, "%d + %d", data.train.count, data.test.count);
    EXPECT(data.train.classes == 3 && data.train.width == 32 && data.test.height == 32, "%d", data.train.classes);
    for (int i = 0; i < 6; i++) {
        picture_file(&data.train, i, name, sizeof name);
        EXPECT_EQ_STR(name, wanted[i]);
        EXPECT_EQ_INT(data.train.labels[i], labels[i]);
    }
    EXPECT_EQ_STR(data_class_name(&data, 0), "a_ b");
    EXPECT(data.augment.crop && data.augment.flip && !data.plain.crop, "augment");
    EXPECT_NEAR(data.plain.mean[0], 0.485, 1e-6);
    snprintf(print, sizeof print, "%s", data.fingerprint);
    data_close(&data);

    if (!EXPECT(opened(&data, test_path("tree"), 3, &err), "%s", err.text)) // one of each class, not the first three
        return;
    EXPECT(data.train.labels[0] == 0 && data.train.labels[1] == 0 && data.train.labels[2] == 1, "the first three");
    data_close(&data);
    shell("mv tree/val/c/1.jpg tree/val/c/2.jpg");
    if (EXPECT(opened(&data, test_path("tree"), 0, &err), "%s", err.text))
        EXPECT(strcmp(data.fingerprint, print) != 0, "a renamed file: still %s", print);
    data_close(&data);
    shell("mv tree/val/c tree/val/d");
    EXPECT(!opened(&data, test_path("tree"), 0, &err), "other classes in val");
    EXPECT_HAS(err.text, "class 2 is c in train, but d in val");
    shell("mv tree/val/d tree/val/c; rm tree/train/c/*");
    EXPECT(!opened(&data, test_path("tree"), 0, &err), "a class without files");
    EXPECT_HAS(err.text, "train/c: no usable file or folder in it");
}

TEST_MAIN
