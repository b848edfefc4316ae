// picture.h - JPEG and PNG files in memory, decoded to the bytes that Pillow's
// Image.open(file).convert("RGB") gives.
//
// The content decides, not the name. Grey, progressive, CMYK and YCCK JPEG; palettes, 1 to 16 bits
// and interlaced PNG convert as in Pillow: alpha is dropped, CMYK is read as Adobe writes it
// (inverted), EXIF rotation, colour profiles and warnings are ignored. A truncated file is an
// error.
//
// Limits of the memory and time that a file can take:
//   pixels   179 million, as in Pillow, and 65,535 each way; checked in the header, before memory
//            is allocated
//   scans    100 in a progressive JPEG (encoders write about 10)
//   memory   3 bytes for each decoded pixel (PNG: each pixel), and 6 for each pixel of a
//            progressive JPEG while it is decoded (CMYK: 8)
//
// All calls are thread-safe. Errors name the file.
#pragma once
#include "check.h"
#include <stddef.h>
#include <stdint.h>

typedef struct Rect {
    int x, y, width, height;
} Rect;

// Begin with { 0 }; picture_decode grows the memory and reuses it, and the caller frees rgb.
typedef struct Pixels {
    Rect at;                // which part
    uint8_t *rgb;           // (at.height, at.width, 3)
    size_t capacity;
} Pixels;

// Do these first and last bytes of a file belong to a picture that is not truncated?
bool picture_looks_whole(const uint8_t first[8], const uint8_t last[8]);

bool picture_size(const char *name, const uint8_t *bytes, size_t size, int *width, int *height,
                  Error *err);

// Decodes at least the part `wanted`, and sets pixels->at to what is decoded. Decoding part of a
// JPEG is faster than decoding all of it, and gives the same pixels.
bool picture_decode(const char *name, const uint8_t *bytes, size_t size, Rect wanted,
                    Pixels *pixels, Error *err);
