// pictures.h - a data set of picture files.
#pragma once
#include "data.h"
#include "data/folder.h"
#include "data/resize.h"

struct Pictures {
    const Folder *folder;
    int32_t *files;         // (count): the index in the folder of sample i
    int resize;             // of the shorter side, for evaluation
    bool skip;              // a picture that cannot be decoded; else end the run
};

// Lists the files and fills in all of data except what depends on the seed.
bool pictures_open(Data *data, const DataConfig *config, Error *err);
void pictures_close(Data *data);
// Checks one of `parts` equal parts: fails if a file of the folder is empty, or if a picture of
// this set is truncated or no picture at all, unless such pictures are to be skipped. Decodes only
// files without an end marker: to decode all would take as long as an evaluation.
bool pictures_check(const Dataset *set, int part, int parts, Error *err);
// Keeps `count` samples of the set, evenly spread, since the set is sorted by class.
void pictures_cut(Dataset *set, int count);

// Memory of a thread that makes images. Begin with { 0 }.
typedef struct PictureTools {
    FileBytes file;
    Pixels pixels;
    Resizer resizer;
} PictureTools;
void picture_tools_free(PictureTools *tools);

// Image `id` of the set as bytes, out (3, height, width): a random part, perhaps mirrored, if
// augment has crop and flip, else the centre. The same seed, epoch and id give the same bytes.
bool picture_make(const Dataset *set, int id, const Augment *augment, int64_t epoch,
                  PictureTools *tools, uint8_t *out, Error *err);
