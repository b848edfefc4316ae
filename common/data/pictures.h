// pictures.h - a data set of picture files.
#pragma once
#include "data.h"
#include "data/folder.h"
#include "data/resize.h"

struct Pictures {
    const Folder *folder;
    int32_t *files;         // (count): the index in the folder of sample i
    int resize;             // the shorter side after resizing, unless a random part is cut
};

// Lists the files; fills in the sets, the names of the classes and the checksum.
bool pictures_open(Data *data, const DataConfig *config, Error *err);
void pictures_close(Data *data);
// Checks part `part` of `parts`, of the folder and of this set. Fails if a file of the folder is
// missing or empty. Decodes those pictures of the set that do not begin and end as a whole picture
// does, and fails if one cannot be decoded. (To decode all would take as long as an evaluation.)
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

// Image `id` of the set as bytes, out (3, height, width). Without augment->crop it is the centre.
// With crop it is a random part, and augment->flip mirrors half of these parts, chosen at random.
// The same seed, epoch and id give the same bytes.
bool picture_make(const Dataset *set, int id, const Augment *augment, int64_t epoch,
                  PictureTools *tools, uint8_t *out, Error *err);
