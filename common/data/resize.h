// resize.h - crop and resize like torchvision with Pillow: antialiased bilinear, the same
// bytes as Pillow 11 and 12 (Pillow 13 differs by at most one level).
//
//   Picture, w x h                 resized                      out
//   +----------------+
//   |   from         |             width x height               keep, mirrored if flip
//   |  +--------+    |   resize   +--------+         crop       +----+
//   |  |        |    |  ------->  | +----+ |        ------->    |    |
//   |  +--------+    |            | +----+ |                    +----+
//   +----------------+            +--------+
#pragma once
#include "data/picture.h"

typedef struct View {
    Rect from;              // of the picture; resizing reads no pixels outside
    int width, height;      // after resizing
    Rect keep;              // the part of the resized picture to keep
    bool flip;
} View;

// RandomResizedCrop(side, scale = (0.08, 1), ratio = (3/4, 4/3)) and a flip, of a picture of this
// size. The distribution is torchvision's; the random numbers depend on seed, epoch and id.
View view_random(int width, int height, int side, uint64_t seed, int64_t epoch, int32_t id);
// Resize(shorter) and CenterCrop(side), where side <= shorter.
View view_center(int width, int height, int shorter, int side);

// The part of the picture on which the pixels of view->keep depend.
Rect view_needs(const View *view);

// Memory for resizing: one for each thread. Begin with { 0 }; the caller frees it.
typedef struct Resizer {
    void *memory;
    size_t capacity;
} Resizer;

// out (3, keep.height, keep.width): red, green, blue. pixels->at must contain view_needs(view).
void picture_resize(const Pixels *pixels, const View *view, Resizer *resizer, uint8_t *out);
