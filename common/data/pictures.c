// pictures.c - a data set of picture files.
#include "data/pictures.h"
#include "data/formats.h"
#include "rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// In a folder with a single level, about a fifth of each class's files are for evaluation, at least
// one unless the class has only one. The choice depends only on the list of files.
static void choose_files(const Folder *folder, bool *for_test)
{
    int *left = xcalloc(folder->classes, sizeof *left);
    int32_t *order = xmalloc(folder->count * sizeof *order);
    for (int i = 0; i < folder->count; i++)
        left[folder->files[i].label]++;
    for (int k = 0; k < folder->classes; k++) {
        int wanted = (int)fmax(1, rint(0.2 * left[k])), most = left[k] - 1;
        left[k] = wanted < most ? wanted : most;
    }
    torch_randperm(0, folder->count, order);
    for (int i = 0; i < folder->count; i++)
        for_test[order[i]] = left[folder->files[order[i]].label]-- > 0;
    free(order);
    free(left);
}

static void share_files(Data *data, const Folder *folder)
{
    bool *for_test = xcalloc(folder->count, sizeof *for_test);
    if (!folder->sets)
        choose_files(folder, for_test);
    for (int i = 0; i < folder->count; i++) {
        Dataset *set = for_test[i] || i >= folder->train_count ? &data->test : &data->train;
        set->labels[set->count] = folder->files[i].label;
        set->pictures->files[set->count++] = i;
    }
    free(for_test);
}

void pictures_cut(Dataset *set, int count)
{
    for (int64_t i = 0; i < count; i++) {
        set->pictures->files[i] = set->pictures->files[i * set->count / count];
        set->labels[i] = set->labels[i * set->count / count];
    }
    set->count = count;
}

static void dataset_set(Dataset *set, const Folder *folder, int size)
{
    const size_t room = (size_t)folder->count + 1;
    *set = (Dataset){ .channels = 3, .height = size, .width = size, .classes = folder->classes,
                      .per_row = 1, .labels = xmalloc(room * sizeof *set->labels),
                      .pictures = xcalloc(1, sizeof *set->pictures) };
    set->pictures->folder = folder;
    set->pictures->files = xmalloc(room * sizeof *set->pictures->files);
    set->pictures->resize = (int)lrint(size * 256 / 224.0);
}

// Adds all paths, but the contents of at most 64 files: to read all of ImageNet (140 GB) would take
// too long.
static void checksum_add(Data *data, const Folder *folder)
{
    enum { FILES = 64 };
    FileBytes bytes = { 0 };
    Error ignored;          // a file that is too large is reported when it is needed
    for (int i = 0; i < folder->count; i++)
        data_checksum(data, folder->files[i].path, strlen(folder->files[i].path) + 1);
    for (int64_t i = 0; i < FILES; i++)
        if (folder_read(folder, (int)(i * folder->train_count / FILES), &bytes, &ignored))
            data_checksum(data, bytes.bytes, bytes.size);
    free(bytes.bytes);
}

static void plain_text(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || strchr(",\"\\\x7f", *text))
            *text = '_';
}

bool pictures_open(Data *data, const DataConfig *config, Error *err)
{
    int size = config->image_size ? config->image_size : 224;
    Folder *folder = xcalloc(1, sizeof *folder);
    if (!folder_open(folder, config->data, err)) {
        free(folder);
        return false;
    }
    data->folder = folder;
    data->class_names = (const char *const *)folder->class_names;
    for (int i = 0; i < folder->classes; i++)
        plain_text(folder->class_names[i]);
    dataset_set(&data->train, folder, size);
    dataset_set(&data->test, folder, size);
    share_files(data, folder);
    checksum_add(data, folder);
    return true;
}

void pictures_close(Data *data)
{
    if (!data->folder)
        return;
    free(data->train.pictures->files);
    free(data->train.pictures);
    free(data->test.pictures->files);
    free(data->test.pictures);
    folder_close(data->folder);
    free(data->folder);
}

bool picture_make(const Dataset *set, int id, const Augment *augment, int64_t epoch,
                  PictureTools *tools, uint8_t *out, Error *err)
{
    const struct Pictures *p = set->pictures;
    char name[4096];
    int width, height, side = set->width;
    folder_name(p->folder, p->files[id], name, sizeof name);
    if (!folder_read(p->folder, p->files[id], &tools->file, err) ||
        !picture_size(name, tools->file.bytes, tools->file.size, &width, &height, err))
        return false;
    View view = augment->crop ? view_random(width, height, side, augment->seed, epoch, id)
                              : view_center(width, height, p->resize, side);
    view.flip = view.flip && augment->flip;
    if (!picture_decode(name, tools->file.bytes, tools->file.size, view_needs(&view),
                        &tools->pixels, err))
        return false;
    picture_resize(&tools->pixels, &view, &tools->resizer, out);
    return true;
}

static int part_begin(int part, int parts, int count)
{
    return (int)((int64_t)count * part / parts);
}

bool pictures_check(const Dataset *set, int part, int parts, Error *err)
{
    const struct Pictures *p = set->pictures;
    static const Augment center = { .crop = false };
    if (!p)
        return true;
    const int end = part_begin(part + 1, parts, set->count), files = p->folder->count;
    uint8_t *out = xmalloc((size_t)set->height * set->width * 3);
    PictureTools tools = { 0 };
    bool good = folder_check(p->folder, part_begin(part, parts, files),
                             part_begin(part + 1, parts, files), err);
    for (int i = part_begin(part, parts, set->count); i < end && good; i++) {
        FileEnds ends;
        good = folder_read_ends(p->folder, p->files[i], &ends, err) &&
               (picture_looks_whole(ends.first, ends.last) ||
                picture_make(set, i, &center, 0, &tools, out, err));
    }
    picture_tools_free(&tools);
    free(out);
    return good;
}

void picture_tools_free(PictureTools *tools)
{
    free(tools->file.bytes);
    free(tools->pixels.rgb);
    free(tools->resizer.memory);
}

void picture_file(const Dataset *set, int id, char *out, size_t size)
{
    const struct Pictures *p = set->pictures;
    snprintf(out, size, "%s", p->folder->files[p->files[id]].path);
    plain_text(out);
}
