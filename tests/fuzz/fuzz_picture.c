// fuzz_picture.c - libFuzzer target for pictures: each must be refused, or become an image, whole and cropped. No
// allocation may be much larger than the largest picture that is allowed.
#include "data/pictures.h"
#include "fuzz.h"

#include <string.h>

enum { SIDE = 24 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char path[64];
    uint8_t out[3 * SIDE * SIDE];
    size_t at = 0, ones = 0;
    int fd = file_make(bytes, size, path);
    struct Pictures pictures = { .dir = "", .names = path + 1, .at = &at };
    Dataset set = { .count = 1, .channels = 3, .height = SIDE, .width = SIDE, .pictures = &pictures };
    PictureRoom room = { 0 };
    Error err = { .text = "" };
    most_memory = size + (9 << 20) + 8 * (size_t)MOST_PIXELS; // libpng's limit for a chunk is 8 MB
    for (int crop = 0; crop < 2; crop++) {
        Augment augment = { .crop = crop, .flip = crop, .seed = size };
        if (picture_make(&set, 0, &augment, size > 0 ? bytes[size / 2] : 0, &room, out, &err))
            for (size_t i = 0; i < sizeof out; i++) // reads each byte, for a sanitizer
                ones += out[i] == 1;
        else
            require(strncmp(err.text, path, strlen(path)) == 0);
    }
    require(ones <= 2 * sizeof out);
    picture_room_free(&room);
    most_memory = SIZE_MAX;
    close(fd);
    return 0;
}
