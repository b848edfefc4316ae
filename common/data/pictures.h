// pictures.h - a data set of picture files: its images are made when they are wanted.
#pragma once
#include "data.h"
#include "data/folder.h"
#include "data/resize.h"

// The files of one Dataset.
struct Pictures {
    const Folder *folder;
    const FileList *list;
    int32_t *files;         // (count): which of the list sample i is
    int resize;             // of the shorter side, for evaluation
    bool skip;              // what cannot be decoded is left out; else it ends the run
};

// Lists the files and fills in all of data but what depends on the seed.
bool pictures_open(Data *data, const DataConfig *config, Error *err);
void pictures_close(Data *data);
// Leaves `count` samples of the set, evenly spread: its order is by classes.
void pictures_cut(Dataset *set, int count);

// What a thread that makes images needs. Begin with { 0 }.
typedef struct PictureTools {
    FileBytes file;
    Pixels pixels;
    Resizer resizer;
} PictureTools;
void picture_tools_free(PictureTools *tools);

// Image `id` of the set as bytes, out (3, height, width): a random part of it, perhaps mirrored,
// where augment has crop and flip, else the middle. The same for equal seed, epoch and id.
bool picture_make(const Dataset *set, int id, const Augment *augment, int64_t epoch,
                  PictureTools *tools, uint8_t *out, Error *err);
// The file's path in the tree, for tables: without commas, quotes and control characters.
void picture_file(const Dataset *set, int id, char *out, size_t size);
