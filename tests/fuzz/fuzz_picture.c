// fuzz_picture.c - libFuzzer target for pictures and archives. The reader must refuse a picture, or
// decode all pixels that a random crop and the centre crop need, within the memory limits of
// common/data/picture.h. Input that begins like a tar archive is listed and read.
#include "data/folder.h"
#include "data/resize.h"
#include "fuzz.h"

#include <string.h>
#include <unistd.h>

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
        for (size_t i = 0; i < count; i++) // the sanitizer checks each byte
            ones += out[i] == 1;
        require(ones <= count);
    } else {
        require(strncmp(err.text, "input: ", 7) == 0);
    }
    free(out);
    free(pixels.rgb);
    free(resizer.memory);
}

static void picture_try(const uint8_t *bytes, size_t size)
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
}

static void archive_try(const uint8_t *bytes, size_t size)
{
    char path[] = "/tmp/fuzz_picture-XXXXXX.tar";
    int fd = mkstemps(path, 4);
    Folder folder;
    Error err = { .text = "" };
    require(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    close(fd);
    if (folder_open(&folder, path, &err)) {
        FileBytes content = { 0 };
        for (int i = 0; i < folder.count; i++) {
            require(folder.files[i].label >= 0 && folder.files[i].label < folder.classes);
            require(folder_read(&folder, i, &content, &err) && content.size <= size);
        }
        free(content.bytes);
        folder_close(&folder);
    } else {
        require(strstr(err.text, path) != NULL);
    }
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    bool archive = size >= 512 && memcmp(bytes + 257, "ustar", 5) == 0;
    (archive ? archive_try : picture_try)(bytes, size);
    return 0;
}
