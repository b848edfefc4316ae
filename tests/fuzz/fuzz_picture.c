// fuzz_picture.c - libFuzzer target for pictures. The reader must refuse a picture, or decode all
// pixels that a random crop and the centre crop need. No allocation may be much larger than the limits of
// picture.h allow. Of a picture with more than 2^20 pixels, only the size is read.
#include "data/resize.h"
#include "fuzz.h"

#include <string.h>

static void view_try(const uint8_t *bytes, size_t size, const View *view)
{
    Pixels pixels = { 0 };
    Resizer resizer = { 0 };
    Error err = { .text = "" };
    const Rect needs = view_needs(view), *at = &pixels.at;
    size_t count = 3 * (size_t)(view->keep.width * view->keep.height), ones = 0;
    uint8_t *out = malloc(count);
    if (picture_decode("input", bytes, size, needs, &pixels, &err)) {
        require(at->x <= needs.x && at->x + at->width >= needs.x + needs.width);
        require(at->y <= needs.y && at->y + at->height >= needs.y + needs.height);
        picture_resize(&pixels, view, &resizer, out);
        for (size_t i = 0; i < count; i++) // reads each byte, for a sanitizer
            ones += out[i] == 1;
        require(ones <= count);
    } else {
        require(strncmp(err.text, "input: ", 7) == 0);
    }
    free(out);
    free(pixels.rgb);
    free(resizer.memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    int width, height;
    Error err = { .text = "" };
    most_memory = size + (9 << 20); // libpng's limit for a chunk is 8 MB
    if (!picture_size("input", bytes, size, &width, &height, &err)) {
        require(strncmp(err.text, "input: ", 7) == 0);
    } else if ((int64_t)width * height <= 1 << 20) { // larger ones take too long here
        most_memory += ((size_t)width + 32) * ((size_t)height + 32) * 8;
        View random = view_random(width, height, 24, size, bytes[size - 1], bytes[size / 2]);
        View middle = view_center(width, height, 32, 24);
        view_try(bytes, size, &random);
        view_try(bytes, size, &middle);
    }
    most_memory = SIZE_MAX;
    return 0;
}
