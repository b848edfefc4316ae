// pictures.c - a data set of picture files, which are decoded when a batch needs them.
#include "data/pictures.h"
#include "data/files.h"
#include "rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// --- which files ---------------------------------------------------------------------------------

static struct Pictures *pictures_new(const Folder *folder, const FileList *list, int room)
{
    struct Pictures *p = xcalloc(1, sizeof *p);
    p->folder = folder;
    p->list = list;
    p->files = xmalloc(((size_t)room + 1) * sizeof *p->files);
    return p;
}

static void all_files(Dataset *set, const Folder *folder, const FileList *list)
{
    set->pictures = pictures_new(folder, list, list->count);
    set->count = list->count;
    for (int i = 0; i < list->count; i++)
        set->pictures->files[i] = i;
}

// A folder with a single level: of each class, `fraction` of the files are for evaluation, at least
// one, but not all. The choice depends only on the number of files, so it is equal in every run.
static void split_files(Data *data, const Folder *folder, double fraction)
{
    const FileList *list = &folder->train;
    const size_t count = (size_t)list->count;
    int *left = xcalloc((size_t)folder->classes, sizeof *left);
    int32_t *order = xmalloc(count * sizeof *order);
    bool *apart = xcalloc(count, sizeof *apart);
    for (size_t i = 0; i < count; i++)
        left[list->labels[i]]++;
    for (int k = 0; k < folder->classes; k++) {
        int wanted = (int)fmax(1, rint(fraction * left[k])), most = left[k] - 1;
        left[k] = wanted < most ? wanted : most;
    }
    torch_randperm(0, list->count, order);
    for (size_t i = 0; i < count; i++)
        apart[order[i]] = left[list->labels[order[i]]]-- > 0;

    data->train.pictures = pictures_new(folder, list, list->count);
    data->test.pictures = pictures_new(folder, list, list->count);
    for (int i = 0; i < list->count; i++) {
        Dataset *set = apart[i] ? &data->test : &data->train;
        set->pictures->files[set->count++] = i;
    }
    free(apart);
    free(order);
    free(left);
}

void pictures_cut(Dataset *set, int count)
{
    for (int64_t i = 0; i < count; i++) {
        set->pictures->files[i] = set->pictures->files[i * set->count / count];
        set->labels[i] = set->labels[i * set->count / count];
    }
    set->count = count;
}

// --- opening -------------------------------------------------------------------------------------

static void dataset_set(Dataset *set, const Folder *folder, const DataConfig *config, int size)
{
    set->channels = 3;
    set->height = set->width = size;
    set->classes = folder->classes;
    set->pictures->resize = config->resize ? config->resize : (int)lrint(size * 256 / 224.0);
    set->labels = xmalloc(((size_t)set->count + 1) * sizeof *set->labels);
    for (int i = 0; i < set->count; i++)
        set->labels[i] = set->pictures->list->labels[set->pictures->files[i]];
}

static void checksum_names(Data *data, const FileList *list)
{
    for (int i = 0; i < list->count; i++) {
        const char *name = folder_file(list, i);
        data_checksum(data, name, strlen(name) + 1);
        data_checksum(data, &list->labels[i], sizeof list->labels[i]);
    }
}

// All names, and the contents of some files: reading 140 GB would take an hour.
static void checksum_add(Data *data, const Folder *folder)
{
    enum { FILES = 64 };
    FileBytes bytes = { 0 };
    Error ignored;          // a file that cannot be read is reported when it is needed
    for (int k = 0; k < folder->classes; k++)
        data_checksum(data, folder->class_names[k], strlen(folder->class_names[k]) + 1);
    checksum_names(data, &folder->train);
    checksum_names(data, &folder->val);
    for (int64_t i = 0; i < FILES; i++)
        if (folder_read(folder, &folder->train, (int)(i * folder->train.count / FILES), &bytes,
                        &ignored))
            data_checksum(data, bytes.bytes, bytes.size);
    free(bytes.bytes);
}

static void plain_text(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || strchr(",\"\\\x7f", *text))
            *text = '_';
}

static char **plain_names(const Folder *folder)
{
    char **names = xcalloc((size_t)folder->classes, sizeof *names);
    for (int i = 0; i < folder->classes; i++) {
        names[i] = xstrdup(folder->class_names[i]);
        plain_text(names[i]);
    }
    return names;
}

bool pictures_open(Data *data, const DataConfig *config, Error *err)
{
    int size = config->image_size ? config->image_size : 224;
    if (config->resize && config->resize < size)
        return error_set(err, "0 means 8/7 of the image size",
                         "--resize %d: smaller than the images, %dx%d", config->resize, size, size);
    Folder *folder = xcalloc(1, sizeof *folder);
    if (!folder_open(folder, config->data, err)) {
        free(folder);
        return false;
    }
    data->folder = folder;
    data->own_names = plain_names(folder);
    data->class_names = (const char *const *)data->own_names;
    if (folder->val.count > 0) {
        all_files(&data->train, folder, &folder->train);
        all_files(&data->test, folder, &folder->val);
    } else {
        split_files(data, folder, config->val_split);
    }
    dataset_set(&data->train, folder, config, size);
    dataset_set(&data->test, folder, config, size);
    data->train.pictures->skip = strcmp(config->bad_images, "skip") == 0;
    checksum_add(data, folder);
    return true;
}

static void dataset_close(Dataset *set)
{
    if (set->pictures)
        free(set->pictures->files);
    free(set->pictures);
}

void pictures_close(Data *data)
{
    if (!data->folder)
        return;
    dataset_close(&data->train);
    dataset_close(&data->test);
    for (int i = 0; i < data->folder->classes; i++)
        free(data->own_names[i]);
    free(data->own_names);
    folder_close(data->folder);
    free(data->folder);
}

// --- one image -----------------------------------------------------------------------------------

bool picture_make(const Dataset *set, int id, const Augment *augment, int64_t epoch,
                  PictureTools *tools, uint8_t *out, Error *err)
{
    const struct Pictures *p = set->pictures;
    char name[4096];
    int width, height, side = set->width;
    folder_name(p->folder, p->list, p->files[id], name, sizeof name);
    if (!folder_read(p->folder, p->list, p->files[id], &tools->file, err) ||
        !picture_size(name, tools->file.bytes, tools->file.size, &width, &height, err))
        return false;
    View view = augment->crop ? view_random(width, height, side, augment->seed, epoch, id)
                              : view_center(width, height, p->resize, side);
    view.flip = view.flip && augment->flip;
    return picture_decode(name, tools->file.bytes, tools->file.size, view_needs(&view),
                          &tools->pixels, err) &&
           picture_resize(&tools->pixels, &view, &tools->resizer, out, err);
}

void picture_tools_free(PictureTools *tools)
{
    free(tools->file.bytes);
    pixels_free(&tools->pixels);
    resizer_free(&tools->resizer);
}

void picture_file(const Dataset *set, int id, char *out, size_t size)
{
    snprintf(out, size, "%s", folder_file(set->pictures->list, set->pictures->files[id]));
    plain_text(out);
}
