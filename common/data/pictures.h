// pictures.h - a folder of JPEG and PNG files, as torchvision's ImageFolder expects it:
//
//   DIR/train/CLASS/FILE, DIR/val/CLASS/FILE
//
// Classes are the sorted names of train's folders, from label 0 on; val has the same folders.
// Within a class, files are sorted by name, byte by byte. Only names that end in .jpg, .jpeg or
// .png count, in upper or lower case; hidden files do not. Symbolic links are followed,
// but a link to a folder, in a class, is left out; a folder there is an error.
#pragma once
#include "data/formats.h"

struct Pictures {
    char *dir;
    char **class_names;     // (classes), then NULL
    char *names;            // the files' paths below DIR, each with its '\0': "train/cat/1.jpg"
    size_t *at;             // (count): where each sample's name begins in `names`
};

// Lists the files; fills in the sets, the names of the classes and the checksum.
bool pictures_open(Data *data, const char *path, const DataConfig *config, Error *err);
void pictures_close(Dataset *set);
// Keeps `count` samples of the set, evenly spread, since the set is sorted by class.
void pictures_cut(Dataset *set, int count);

// The part of a picture that becomes an image, along x or y: output pixel i covers the source
// pixels from + i * step to from + (i + 1) * step. Only source pixels from low to high - 1 count.
typedef struct Span {
    double from, step;
    int low, high;
} Span;

typedef struct View {
    Span x, y;
    bool flip;              // mirror the image
} View;

// RandomResizedCrop(side, scale = (0.08, 1), ratio = (3/4, 4/3)) and a flip, of a picture of this
// size. The distribution is torchvision's; the random numbers depend on seed, epoch and id.
View view_random(int width, int height, int side, uint64_t seed, int64_t epoch, int32_t id);

// Like torchvision's Resize(side * 256 / 224) and CenterCrop(side).
View view_center(int width, int height, int side);

typedef struct Rect {
    int x, y, width, height;
} Rect;

// Memory of one thread that makes images. Initialise it with { 0 }.
typedef struct PictureRoom {
    FileBytes file;
    uint8_t *rgb;
    void *tables;
    size_t rgb_room, tables_room;
    View view;              // the view of the last picture
} PictureRoom;
void picture_room_free(PictureRoom *room);

// Resizes bilinearly with antialiasing, as Pillow does. rgb (at->height, at->width, 3): a part of a
// picture, with all that the view needs. out (3, side, side): red, green, blue.
void picture_resize(const uint8_t *rgb, const Rect *at, const View *view, int side,
                    PictureRoom *room, uint8_t *out);

// Makes image `id` of the set, as bytes, in out (3, height, width). With augment->crop the image
// is a random view; else the centre, as by Resize(side * 256 / 224) and CenterCrop(side). The same
// seed, epoch and id give the same bytes.
bool picture_make(const Dataset *set, int id, const Augment *augment, int64_t epoch,
                  PictureRoom *room, uint8_t *out, Error *err);
