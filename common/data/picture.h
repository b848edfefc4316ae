// picture.h - JPEG and PNG files in memory, decoded to the bytes that Pillow's
// Image.open(file).convert("RGB") gives.
//
// The content decides, not the name. Grey, progressive, CMYK and YCCK JPEG, palettes, 1 to 16 bits
// and interlaced PNG convert as in Pillow: alpha is dropped, CMYK is read as Adobe writes it
// (inverted), EXIF rotation and colour profiles are ignored. What a decoder only warns about is
// accepted; a truncated file is an error.
//
// Limits, so that no file can take more memory or time than this:
//   pixels   179 million, as Pillow's, and 65,535 each way; known from the header, before anything
//            is allocated
//   scans    100 of a progressive JPEG (encoders write about 10)
//   memory   3 bytes for each pixel that is decoded (of a PNG, of all), and 6 for each pixel of a
//            progressive JPEG while it is being decoded (CMYK: 8)
//
// All calls may run in any number of threads. Errors name the file.
#pragma once
#include "check.h"
#include <stddef.h>
#include <stdint.h>

typedef struct Rect {
    int x, y, width, height;
} Rect;

// A part of a picture. Begin with { 0 }; picture_decode lets the memory grow and uses it again.
typedef struct Pixels {
    Rect at;                // which part
    uint8_t *rgb;           // (at.height, at.width, 3)
    size_t capacity;
} Pixels;
void pixels_free(Pixels *pixels);

// Do these first bytes of a file (12 are enough) begin a JPEG or a PNG?
bool picture_recognised(const uint8_t *bytes, size_t size);

// The width and height that the header says. `name` is for the error.
bool picture_size(const char *name, const uint8_t *bytes, size_t size, int *width, int *height,
                  Error *err);

// Decodes at least the part `wanted`, which lies within the picture: pixels->at says what there is.
// Less work than all of it for a JPEG; the pixels of `wanted` are the same.
bool picture_decode(const char *name, const uint8_t *bytes, size_t size, Rect wanted,
                    Pixels *pixels, Error *err);
