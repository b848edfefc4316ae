// picture.h - JPEG and PNG files in memory, decoded to the bytes that Pillow's
// Image.open(file).convert("RGB") gives.
//
// The content decides the format, not the name. A JPEG may be grey, progressive, CMYK or YCCK. A
// PNG may have a palette or 1 to 16 bits, or be interlaced. As in Pillow, alpha is dropped, CMYK is
// read as Adobe writes it (inverted), and EXIF rotation, colour profiles and warnings are ignored.
//
// Limits of the memory and time that a file can take:
//   pixels   178,956,970, as in Pillow, and 65,535 each way (JPEG: libjpeg-turbo's 65,500); checked
//            in the header, before memory for them is allocated
//   scans    100 in a JPEG (encoders write about 10 if it is progressive)
//   memory   3 bytes for each decoded pixel (PNG: each pixel), and up to 6 for each pixel of a
//            JPEG with several scans while it is decoded (CMYK: 8)
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

// Does a file with these first and last bytes begin and end as a JPEG or a PNG file does?
bool picture_looks_whole(const uint8_t first[8], const uint8_t last[8]);

bool picture_size(const char *name, const uint8_t *bytes, size_t size, int *width, int *height,
                  Error *err);

// Decodes at least the part `wanted`, and sets pixels->at to what is decoded. Decoding part of a
// JPEG is faster than decoding all of it, and gives the same pixels.
bool picture_decode(const char *name, const uint8_t *bytes, size_t size, Rect wanted,
                    Pixels *pixels, Error *err);
