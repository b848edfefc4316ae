// as_folder.c - writes a data set as picture files, which the steps read with `--data DIR`:
//
//   as_folder --data cifar10 --as-folder DIR [--scale 96] [--format jpeg]
//
// DIR gets the folders train/CLASS and val/CLASS.
#include "args.h"
#include "check.h"
#include "data.h"
#include "data/pictures.h"

#include <errno.h>
#include <jpeglib.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct Config {
    DataConfig data;
    const char *folder, *format;
    int scale;
} Config;

static void folder_make(const char *path)
{
    CHECK(mkdir(path, 0777) == 0 || errno == EEXIST, "", "%s: %s", path, strerror(errno));
}

// Sets path to the folder of a class, such as "DIR.part/train/T-shirt_top". Creates the folder if it does not exist.
static void class_folder(char *path, size_t size, const Config *c, const Data *data, const char *part,
                         int label)
{
    const char *name = data_class_name(data, label);
    int used = snprintf(path, size, "%s/%s", c->folder, part);
    folder_make(path);
    if (name)
        snprintf(path + used, size - (size_t)used, "/%s", name);
    else
        snprintf(path + used, size - (size_t)used, "/%03d", label);
    for (char *slash = path + used + 1; (slash = strchr(slash, '/'));)
        *slash = '_';
    folder_make(path);
}

static void jpeg_write(FILE *file, const uint8_t *rgb, int side)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, file);
    jpeg.image_width = jpeg.image_height = (unsigned)side;
    jpeg.input_components = 3;
    jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 95, TRUE);
    jpeg_start_compress(&jpeg, TRUE);
    for (int y = 0; y < side; y++) {
        JSAMPROW row = (JSAMPROW)rgb + (size_t)y * (size_t)side * 3;
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
}

static void picture_write(const char *path, const uint8_t *rgb, int side, bool jpeg)
{
    FILE *file = fopen(path, "wb");
    CHECK(file, "", "%s: %s", path, strerror(errno));
    png_image image = { .version = PNG_IMAGE_VERSION, .width = (unsigned)side,
                        .height = (unsigned)side, .format = PNG_FORMAT_RGB };
    if (jpeg)
        jpeg_write(file, rgb, side);
    else
        CHECK(png_image_write_to_stdio(&image, file, 0, rgb, 0, NULL), "", "%s: %s", path,
              image.message);
    CHECK(fclose(file) == 0, "", "%s: %s", path, strerror(errno));
}

// Converts planes (channels, height, width) to pixels; grey becomes RGB.
static void interleave(const uint8_t *planes, int channels, size_t pixels, uint8_t *rgb)
{
    for (size_t i = 0; i < pixels; i++)
        for (size_t c = 0; c < 3; c++)
            rgb[3 * i + c] = planes[(channels == 3 ? c : 0) * pixels + i];
}

static void set_write(const Config *c, const Data *data, const Dataset *set, const char *part)
{
    const int side = c->scale ? c->scale : set->width;
    const size_t before = (size_t)set->height * (size_t)set->width, after = (size_t)side * (size_t)side;
    const Rect all = { 0, 0, set->width, set->height };
    const View view = { { 0, (double)set->width / side, 0, set->width },
                        { 0, (double)set->height / side, 0, set->height }, false };
    uint8_t *whole = xmalloc(3 * before), *planes = xmalloc(3 * after), *rgb = xmalloc(3 * after);
    PictureRoom room = { 0 };
    for (int i = 0; i < set->count; i++) {
        char path[4096], file[4200];
        class_folder(path, sizeof path, c, data, part, set->labels[i]);
        interleave(set->inputs + (size_t)i * (size_t)set->channels * before, set->channels, before,
                   whole);
        picture_resize(whole, &all, &view, side, &room, planes);
        interleave(planes, 3, after, rgb);
        bool jpeg = strcmp(c->format, "jpeg") == 0;
        snprintf(file, sizeof file, "%s/%05d.%s", path, i, jpeg ? "jpg" : "png");
        picture_write(file, rgb, side, jpeg);
    }
    picture_room_free(&room);
    free(rgb);
    free(planes);
    free(whole);
}

int main(int argc, char **argv)
{
    Data data;
    Error error;
    Args args = { .summary = "Writes a data set as picture files in folders." };
    Config c = { .format = "png" };
    data_options(&args, &c.data);
    args_add(&args, ARGS_ROWS(
        { "as-folder", 0, ARG_STRING, &c.folder, "DIR", "folder to write to" },
        { "scale", 0, ARG_INT, &c.scale, "PIXELS", "width and height (0: unchanged)", 0, 4096 },
        { "format", 0, ARG_CHOICE, &c.format, "png|jpeg", "format of the files" }));
    args_parse(&args, argc, argv);
    if (!c.folder)
        args_reject(&args, "as-folder", "a directory is needed");
    if (!data_open(&data, &c.data, 0, &error))
        FAIL_ERROR(&error);
    CHECK(!data.train.pictures, "", "%s is already a folder of pictures", c.data.data);
    char part[4000];
    const char *folder = c.folder;
    snprintf(part, sizeof part, "%.*s.part", (int)(strlen(folder) - (folder[strlen(folder) - 1] == '/')), folder);
    CHECK(rmdir(folder) == 0 || errno == ENOENT, "name a new folder", "%s: %s", folder, strerror(errno));
    c.folder = part;            // a killed program leaves no incomplete set under the folder's name
    CHECK(mkdir(part, 0777) == 0, errno == EEXIST ? "an earlier call was interrupted: remove this folder" : "",
          "%s: %s", part, strerror(errno));
    set_write(&c, &data, &data.train, "train");
    set_write(&c, &data, &data.test, "val");
    CHECK(rename(part, folder) == 0, "", "%s: rename: %s", folder, strerror(errno));
    printf("%s: %d + %d pictures\n", folder, data.train.count, data.test.count);
    data_close(&data);
    return 0;
}
