// picture.c - JPEG through libjpeg-turbo, PNG through libpng.
//
// Both libraries report errors through a function that must not return. Ours stores the message and
// jumps back to jpeg_try or png_try (setjmp).
#include "data/picture.h"
#include "data/files.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>
#include <png.h>

enum {
    MOST_PIXELS = 178956970,    // Pillow's limit: twice Image.MAX_IMAGE_PIXELS
    LONGEST_SIDE = 65535,       // JPEG's
    MOST_SCANS = 100,
};

typedef struct Job {
    const uint8_t *bytes;
    size_t size;
    Rect wanted;
    Pixels *pixels;         // NULL: only the size
    int width, height;      // of the picture
    char problem[JMSG_LENGTH_MAX];
} Job;

static void pixels_fit(Pixels *pixels, Rect at)
{
    size_t bytes = (size_t)at.width * at.height * 3;
    pixels->at = at;
    pixels->rgb = data_memory(pixels->rgb, &pixels->capacity, bytes);
}

static const char *size_problem(uint32_t width, uint32_t height)
{
    if (width == 0 || height == 0)
        return "a picture without pixels";
    if (width > LONGEST_SIDE || height > LONGEST_SIDE)
        return "more than 65,535 pixels wide or high";
    return (uint64_t)width * height > MOST_PIXELS ? "more than 178,956,970 pixels" : NULL;
}

typedef struct Jpeg {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    Job *job;
    jmp_buf stopped;
} Jpeg;

_Noreturn static void jpeg_stop(Jpeg *jpeg, const char *problem)
{
    snprintf(jpeg->job->problem, sizeof jpeg->job->problem, "%s", problem);
    longjmp(jpeg->stopped, 1);
}

_Noreturn static void jpeg_on_error(j_common_ptr info)
{
    Jpeg *jpeg = info->client_data;
    info->err->format_message(info, jpeg->job->problem);
    longjmp(jpeg->stopped, 1);
}

static void jpeg_on_warning(j_common_ptr info, int level) { }

// All scans of a progressive file are decoded before its first row. A file of 100 KB can have
// thousands of scans, and each takes time for all pixels.
static void jpeg_on_progress(j_common_ptr info)
{
    if (((j_decompress_ptr)info)->input_scan_number > MOST_SCANS)
        jpeg_stop(info->client_data, "more than 100 scans");
}

// Called at the end of the buffer, which holds the whole file.
static boolean jpeg_on_end(j_decompress_ptr info)
{
    jpeg_stop(info->client_data, "the file is truncated");
}

static void jpeg_begin(Jpeg *jpeg)
{
    j_decompress_ptr info = &jpeg->info;
    jpeg_create_decompress(info);
    info->client_data = jpeg;
    info->progress = &jpeg->progress;
    jpeg->progress.progress_monitor = jpeg_on_progress;
    jpeg_mem_src(info, jpeg->job->bytes, jpeg->job->size);
    info->src->fill_input_buffer = jpeg_on_end;
    jpeg_read_header(info, TRUE);
    const char *problem = size_problem(info->image_width, info->image_height);
    if (problem)
        jpeg_stop(jpeg, problem);
    jpeg->job->width = (int)info->image_width;
    jpeg->job->height = (int)info->image_height;
}

// Widens `at` by a block of columns on each side: if colours have fewer columns than brightness,
// they are interpolated, also from the next block. libjpeg-turbo then begins at a whole block.
static void jpeg_choose_columns(j_decompress_ptr info, Rect *at)
{
    JDIMENSION block = (JDIMENSION)(info->max_h_samp_factor * DCTSIZE);
    JDIMENSION left = (JDIMENSION)at->x, right = left + (JDIMENSION)at->width + block;
    left = left > block ? left - block : 0;
    right = right < info->output_width ? right : info->output_width;
    JDIMENSION width = right - left;
    if (width < info->output_width)
        jpeg_crop_scanline(info, &left, &width);
    at->x = (int)left;
    at->width = (int)width;
}

// Like Pillow, reads the values of every CMYK JPEG as 255 - ink.
static void cmyk_to_rgb(const uint8_t *cmyk, uint8_t *rgb, int width)
{
    for (int x = 0; x < width; x++, cmyk += 4, rgb += 3) {
        int k = cmyk[3];
        for (int c = 0; c < 3; c++) {
            int product = (255 - cmyk[c]) * k + 128;
            rgb[c] = (uint8_t)(k - (((product >> 8) + product) >> 8));
        }
    }
}

static void jpeg_read_rows(Jpeg *jpeg)
{
    j_decompress_ptr info = &jpeg->info;
    const Pixels *pixels = jpeg->job->pixels;
    const Rect *at = &pixels->at;
    size_t row_bytes = (size_t)at->width * info->output_components;
    JSAMPROW spare = info->mem->alloc_large((j_common_ptr)info, JPOOL_IMAGE, row_bytes);
    for (int y = 0; y < at->height; y++) {
        JSAMPROW rgb = pixels->rgb + (size_t)y * at->width * 3;
        JSAMPROW row = info->output_components == 4 ? spare : rgb;
        jpeg_read_scanlines(info, &row, 1);
        if (row == spare)
            cmyk_to_rgb(row, rgb, at->width);
    }
    // Most complete files end with the marker EOI. In any other file a row may be missing, and then
    // Pillow fails. So we read the rows after the wanted part, too.
    const uint8_t *end = jpeg->job->bytes + jpeg->job->size;
    if (end[-2] != 0xFF || end[-1] != JPEG_EOI)
        while (info->output_scanline < info->output_height)
            jpeg_read_scanlines(info, &spare, 1);
}

static void jpeg_decode(Jpeg *jpeg)
{
    j_decompress_ptr info = &jpeg->info;
    Rect at = jpeg->job->wanted;
    info->out_color_space = info->num_components == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(info);
    jpeg_choose_columns(info, &at);
    pixels_fit(jpeg->job->pixels, at);
    if (at.y > 0)   // a later skip can give wrong rows: libjpeg-turbo's issue 915
        jpeg_skip_scanlines(info, (JDIMENSION)at.y);
    jpeg_read_rows(jpeg);
}

// False after an error: jpeg_on_error or jpeg_stop jumped back to here.
static bool jpeg_try(Jpeg *jpeg)
{
    if (setjmp(jpeg->stopped))
        return false;
    jpeg_begin(jpeg);
    if (jpeg->job->pixels)
        jpeg_decode(jpeg);
    return true;
}

static bool jpeg_run(Job *job)
{
    Jpeg jpeg = { .job = job };
    jpeg.info.err = jpeg_std_error(&jpeg.errors);
    jpeg.info.client_data = &jpeg;
    jpeg.errors.error_exit = jpeg_on_error;
    jpeg.errors.emit_message = jpeg_on_warning;
    bool good = jpeg_try(&jpeg);
    jpeg_destroy_decompress(&jpeg.info);
    return good;
}

typedef struct Png {
    png_structp png;
    png_infop info;
    Job *job;
    size_t used;            // bytes that libpng has read
} Png;

_Noreturn static void png_on_error(png_structp png, const char *problem)
{
    Job *job = png_get_error_ptr(png);
    snprintf(job->problem, sizeof job->problem, "%s", problem);
    png_longjmp(png, 1);
}

static void png_on_warning(png_structp png, const char *text) { }

static void png_read_bytes(png_structp png, png_bytep to, size_t bytes)
{
    Png *reader = png_get_io_ptr(png);
    if (bytes > reader->job->size - reader->used)
        png_error(png, "the file is truncated");
    memcpy(to, reader->job->bytes + reader->used, bytes);
    reader->used += bytes;
}

static void png_begin(Png *reader)
{
    png_set_read_fn(reader->png, reader, png_read_bytes);
    png_set_keep_unknown_chunks(reader->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1); // profiles, texts
    png_set_user_limits(reader->png, INT32_MAX, INT32_MAX); // size_problem has a better message
    png_read_info(reader->png, reader->info);
    uint32_t width = png_get_image_width(reader->png, reader->info);
    uint32_t height = png_get_image_height(reader->png, reader->info);
    const char *problem = size_problem(width, height);
    if (problem)
        png_error(reader->png, problem);
    reader->job->width = (int)width;
    reader->job->height = (int)height;
}

// Makes RGB of 16-bit grey, which is big-endian and at the beginning of each row. As in Pillow,
// values above 255 become 255.
static void png_spread_grey16(const Pixels *pixels)
{
    for (int y = 0; y < pixels->at.height; y++) {
        uint8_t *row = pixels->rgb + (size_t)y * pixels->at.width * 3;
        for (int x = pixels->at.width - 1; x >= 0; x--)
            memset(row + 3 * x, row[2 * x] ? 255 : row[2 * x + 1], 3);
    }
}

static void png_decode(Png *reader)
{
    png_structp png = reader->png;
    Pixels *pixels = reader->job->pixels;
    bool grey16 = png_get_color_type(png, reader->info) == PNG_COLOR_TYPE_GRAY &&
                  png_get_bit_depth(png, reader->info) == 16;
    if (!grey16) {
        png_set_expand(png);
        png_set_strip_16(png);
        png_set_strip_alpha(png);
        png_set_gray_to_rgb(png);
    }
    int passes = png_set_interlace_handling(png);
    png_read_update_info(png, reader->info);
    pixels_fit(pixels, (Rect){ 0, 0, reader->job->width, reader->job->height });
    for (int pass = 0; pass < passes; pass++)
        for (int y = 0; y < pixels->at.height; y++)
            png_read_row(png, pixels->rgb + (size_t)y * pixels->at.width * 3, NULL);
    if (grey16)
        png_spread_grey16(pixels);
}

static bool png_try(Png *reader)
{
    if (setjmp(png_jmpbuf(reader->png)))
        return false;
    png_begin(reader);
    if (reader->job->pixels)
        png_decode(reader);
    return true;
}

static bool png_run(Job *job)
{
    Png reader = { .job = job };
    reader.png =
        png_create_read_struct(PNG_LIBPNG_VER_STRING, job, png_on_error, png_on_warning);
    reader.info = reader.png ? png_create_info_struct(reader.png) : NULL;
    bool good = reader.info && png_try(&reader);
    png_destroy_read_struct(&reader.png, &reader.info, NULL);
    return good;
}

static bool is_jpeg(const uint8_t *bytes, size_t size)
{
    return size >= 3 && memcmp(bytes, "\xFF\xD8\xFF", 3) == 0;
}

static bool is_png(const uint8_t *bytes, size_t size)
{
    return size >= 8 && memcmp(bytes, "\x89PNG\r\n\x1A\n", 8) == 0;
}

bool picture_looks_whole(const uint8_t first[8], const uint8_t last[8])
{
    static const uint8_t png_end[8] = { 'I', 'E', 'N', 'D', 0xAE, 0x42, 0x60, 0x82 };
    if (is_png(first, 8))
        return memcmp(last, png_end, sizeof png_end) == 0;
    return is_jpeg(first, 8) && last[6] == 0xFF && last[7] == JPEG_EOI;
}

static bool job_run(const char *name, Job *job, Error *err)
{
    static const char hint[] = "replace or remove the file";
    bool jpeg = is_jpeg(job->bytes, job->size);
    if (!jpeg && !is_png(job->bytes, job->size))
        return error_set(err, hint, "%s: %s", name,
                         job->size ? "neither a JPEG nor a PNG file" : "the file is empty");
    return (jpeg ? jpeg_run(job) : png_run(job)) ||
           error_set(err, hint, "%s: %s: %s", name, jpeg ? "JPEG" : "PNG",
                     job->problem[0] ? job->problem : "out of memory");
}

bool picture_size(const char *name, const uint8_t *bytes, size_t size, int *width, int *height,
                  Error *err)
{
    Job job = { .bytes = bytes, .size = size };
    if (!job_run(name, &job, err))
        return false;
    *width = job.width;
    *height = job.height;
    return true;
}

bool picture_decode(const char *name, const uint8_t *bytes, size_t size, Rect wanted,
                    Pixels *pixels, Error *err)
{
    Job job = { .bytes = bytes, .size = size, .wanted = wanted, .pixels = pixels };
    return job_run(name, &job, err);
}
