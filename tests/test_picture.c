// Decoding pictures: the same pixels as Pillow, also for parts of a picture; bad files are refused.
// tools/reference/pictures.py made the files and checksums.
#include "data/picture.h"
#include "test.h"

#include <jpeglib.h>
#include <zlib.h>

static uint8_t *file_read(const char *name, size_t *size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/fuzz/corpus/picture/%s", DDP_SOURCE_DIR, name);
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        FAIL("", "%s cannot be read", path);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = xmalloc(*size);
    if (fread(bytes, 1, *size, file) != *size)
        FAIL("", "%s cannot be read", path);
    fclose(file);
    return bytes;
}

static bool decode(const char *name, const uint8_t *bytes, size_t size, Pixels *pixels, Error *err)
{
    Rect all = { 0, 0, 0, 0 };
    return picture_size(name, bytes, size, &all.width, &all.height, err) &&
           picture_decode(name, bytes, size, all, pixels, err);
}

static void expect_parts(const char *name, const uint8_t *bytes, size_t size, const Pixels *whole)
{
    int width = whole->at.width, height = whole->at.height, wrong = 0;
    Pixels part = { 0 };
    Error err = { .text = "" };
    for (int x = 0; x < width; x += 5)
        for (int y = 0; y < height; y += 7)
            for (int w = 1; x + w <= width; w += 12)
                for (int h = 1; y + h <= height; h += 17) {
                    bool good = picture_decode(name, bytes, size, (Rect){ x, y, w, h }, &part, &err);
                    const Rect *at = &part.at;
                    for (int i = 0; good && i < h; i++)
                        good = memcmp(part.rgb + ((y + i - at->y) * at->width + x - at->x) * 3,
                                      whole->rgb + ((y + i) * width + x) * 3, (size_t)w * 3) == 0;
                    wrong += !good;
                }
    EXPECT(wrong == 0, "%s: %d parts differ %s", name, wrong, err.text);
    free(part.rgb);
}

TEST(pixels_are_pillows)
{
    char name[64];
    int width, height, pictures = 0;
    unsigned crc;
    size_t size, needed;
    FILE *list = fopen(DDP_SOURCE_DIR "/tests/reference/pictures.txt", "r");
    CHECK(list, "", "no tests/reference/pictures.txt");
    while (fscanf(list, "picture %63s %d %d %x %zu\n", name, &width, &height, &crc, &needed) == 5) {
        uint8_t *bytes = file_read(name, &size);
        Pixels pixels = { 0 }, cut = { 0 };
        Error err;
        pictures++;
        if (EXPECT(decode(name, bytes, size, &pixels, &err), "%s", err.text)) {
            EXPECT_EQ_INT(pixels.at.width, width);
            EXPECT_EQ_INT(pixels.at.height, height);
            unsigned ours = (unsigned)crc32(0, pixels.rgb, (unsigned)(width * height * 3));
            EXPECT(ours == crc, "%s: the pixels differ from Pillow's", name);
            expect_parts(name, bytes, size, &pixels);
        }
        if (strncmp(name, "png_", 4) == 0)
            needed = size - 12; // libpng also needs the checksum after the pixels
        for (size_t n = 0; n <= size; n++) {
            uint8_t *exact = memcpy(xmalloc(n), bytes, n); // so that ASan sees a read past the end
            bool good = decode(name, exact, n, &cut, &err);
            EXPECT(good == (n >= needed), "%s: %zu of %zu bytes, %zu needed: %s", name, n, size,
                   needed, good ? "accepted" : err.text);
            free(exact);
        }
        free(pixels.rgb);
        free(cut.rgb);
        free(bytes);
    }
    fclose(list);
    EXPECT_EQ_INT(pictures, 25);
}

// A JPEG of 83x61 pixels of noise. Its luma has h * v times as many samples as each chroma.
static uint8_t *jpeg_make(int h, int v, bool progressive, size_t *size)
{
    struct jpeg_compress_struct info;
    struct jpeg_error_mgr errors;
    uint8_t *bytes = NULL, row[83 * 3];
    unsigned long count = 0;
    uint32_t x = 1;
    info.err = jpeg_std_error(&errors);
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &bytes, &count);
    info.image_width = 83;
    info.image_height = 61;
    info.input_components = 3;
    info.in_color_space = JCS_RGB;
    jpeg_set_defaults(&info);
    info.comp_info[0].h_samp_factor = h;
    info.comp_info[0].v_samp_factor = v;
    if (progressive)
        jpeg_simple_progression(&info);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
        for (size_t i = 0; i < sizeof row; i++)
            row[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
        jpeg_write_scanlines(&info, (JSAMPROW[]){ row }, 1);
    }
    jpeg_finish_compress(&info);
    jpeg_destroy_compress(&info);
    *size = count;
    return bytes;
}

TEST(parts_match_for_every_chroma_sampling)
{
    for (int i = 0; i < 4 * 4 * 2; i++) {
        int h = 1 + i % 4, v = 1 + i / 4 % 4;
        size_t size;
        char name[32];
        Pixels pixels = { 0 };
        Error err;
        if (h * v + 2 > 10)
            continue; // JPEG allows 10 blocks per MCU
        snprintf(name, sizeof name, "%dx%d%s", h, v, i / 16 ? " progressive" : "");
        uint8_t *bytes = jpeg_make(h, v, i / 16, &size);
        if (EXPECT(decode(name, bytes, size, &pixels, &err), "%s", err.text))
            expect_parts(name, bytes, size, &pixels);
        free(pixels.rgb);
        free(bytes);
    }
}

static void refused(const char *name, const uint8_t *bytes, size_t size, const char *reason)
{
    Pixels pixels = { 0 };
    Error err = { .text = "" };
    EXPECT(!decode(name, bytes, size, &pixels, &err), "%s: accepted", name);
    EXPECT(strncmp(err.text, name, strlen(name)) == 0, "\"%s\" does not name %s", err.text, name);
    EXPECT(strstr(err.text, reason) != NULL, "\"%s\", not \"%s\"", err.text, reason);
    free(pixels.rgb);
}

static void jpeg_set_size(uint8_t *bytes, int marker, int width, int height)
{
    uint8_t *at = bytes + 2;
    while (at[1] != marker)
        at += 2 + at[2] * 256 + at[3];
    at[5] = (uint8_t)(height >> 8);
    at[6] = (uint8_t)height;
    at[7] = (uint8_t)(width >> 8);
    at[8] = (uint8_t)width;
}

static void png_set_size(uint8_t *bytes, uint32_t width, uint32_t height)
{
    for (int i = 0; i < 4; i++) {
        bytes[16 + i] = (uint8_t)(width >> (24 - 8 * i));
        bytes[20 + i] = (uint8_t)(height >> (24 - 8 * i));
    }
    uint32_t crc = (uint32_t)crc32(0, bytes + 12, 17);
    for (int i = 0; i < 4; i++)
        bytes[29 + i] = (uint8_t)(crc >> (24 - 8 * i));
}

TEST(bad_files_are_refused)
{
    size_t size;
    refused("empty", NULL, 0, "the file is empty");
    refused("text", (const uint8_t *)"a text, not a picture", 21, "neither a JPEG nor a PNG");
    refused("gif", (const uint8_t *)"GIF89a............", 18, "neither a JPEG nor a PNG");

    uint8_t *bytes = file_read("420", &size);
    jpeg_set_size(bytes, 0xC0, 50000, 50000);
    refused("huge.jpg", bytes, size, "more than 178,956,970 pixels");
    jpeg_set_size(bytes, 0xC0, 0, 50000);
    refused("none.jpg", bytes, size, "");
    free(bytes);

    bytes = file_read("png_rgb", &size);
    png_set_size(bytes, 50000, 50000);
    refused("huge.png", bytes, size, "more than 178,956,970 pixels");
    png_set_size(bytes, 1000000, 1);
    refused("long.png", bytes, size, "more than 65,535 pixels wide or high");
    png_set_size(bytes, 0xFFFFFFFF, 1);
    refused("negative.png", bytes, size, "");
    bytes[16] ^= 1;
    refused("crc.png", bytes, size, "CRC");
    free(bytes);
}

// A progressive JPEG whose last scan is repeated 5,000 times.
TEST(many_scans_are_refused)
{
    size_t size, last = 0;
    uint8_t *bytes = file_read("progressive", &size);
    for (size_t i = 0; i + 1 < size; i++)
        if (bytes[i] == 0xFF && bytes[i + 1] == 0xDA)
            last = i;
    size_t scan = size - 2 - last, all = last + 5000 * scan + 2;
    uint8_t *many = xmalloc(all);
    memcpy(many, bytes, last);
    for (int i = 0; i < 5000; i++)
        memcpy(many + last + (size_t)i * scan, bytes + last, scan);
    memcpy(many + all - 2, "\xFF\xD9", 2);
    refused("scans.jpg", many, all, "more than 100 scans");
    free(many);
    free(bytes);
}

TEST_MAIN
