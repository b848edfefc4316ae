// pictures.c - lists, decodes and resizes pictures.
#include "data/pictures.h"
#include "progress.h"
#include "rng.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// --- the files -----------------------------------------------------------------------------------

static int is_folder(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && entry->d_type != DT_REG;
}

static int is_picture_or_folder(const struct dirent *entry)
{
    const char *end = strrchr(entry->d_name, '.');
    bool picture = end && (strcasecmp(end, ".jpg") == 0 || strcasecmp(end, ".jpeg") == 0 ||
                           strcasecmp(end, ".png") == 0);
    return entry->d_name[0] != '.' && (picture || entry->d_type == DT_DIR);
}

// Sets *names, sorted. Returns how many there are; on an error, or if there are none, 0.
static int list(const char *path, int (*wanted)(const struct dirent *), struct dirent ***names,
                Error *err)
{
    PROGRESS_DOING("listing", path);
    int count = scandir(path, names, wanted, alphasort);
    if (count <= 0)
        error_set(err, "", "%s: %s", path,
                  count < 0 ? strerror(errno) : "no usable file or folder in it");
    if (count == 0)
        free(*names);
    return count > 0 ? count : 0;
}

// Adds the pictures in the folder `path`; `all` gets their paths below DIR.
static bool class_add(Dataset *set, FILE *all, const char *path, int label, Error *err)
{
    struct Pictures *p = set->pictures;
    struct dirent **files;
    bool flat = true;
    int count = list(path, is_picture_or_folder, &files, err), end = set->count + count;
    if (count == 0)
        return false;
    set->labels = reallocarray(set->labels, end, sizeof *set->labels);
    p->at = reallocarray(p->at, end, sizeof *p->at);
    CHECK(set->labels && p->at, "", "out of memory: no room for the names of %d files", end);
    for (int i = 0; i < count; i++, set->count++) {
        set->labels[set->count] = label;
        p->at[set->count] = ftell(all);
        fprintf(all, "%s/%s%c", path + strlen(p->dir) + 1, files[i]->d_name, '\0');
        if (files[i]->d_type == DT_DIR)
            flat = error_set(err, "put all pictures of a class directly into its folder",
                             "%s/%s: a folder in a class", path, files[i]->d_name);
        free(files[i]);
    }
    free(files);
    return flat;
}

// Lists the classes and files of a part of the folder: "train" or "val".
static bool set_add(Data *data, Dataset *set, const char *dir, const char *part, int size,
                    Error *err)
{
    struct Pictures *p = xcalloc(1, sizeof *p);
    struct dirent **folders;
    char path[2 * PATH_MAX];
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", dir, part);
    *set = (Dataset){ .channels = 3, .height = size, .width = size, .per_row = 1, .pictures = p };
    set->classes = list(path, is_folder, &folders, err);
    p->dir = xstrdup(dir);
    p->class_names = xcalloc(set->classes + 1, sizeof *p->class_names);
    FILE *all = open_memstream(&p->names, &bytes);
    CHECK(all, "", "out of memory: no room for the names of the pictures");
    bool good = set->classes > 0;
    for (int i = 0; i < set->classes; i++) {
        p->class_names[i] = xstrdup(folders[i]->d_name);
        snprintf(path, sizeof path, "%s/%s/%s", dir, part, folders[i]->d_name);
        good = good && class_add(set, all, path, i, err);
        free(folders[i]);
    }
    if (set->classes > 0)
        free(folders);
    fclose(all);
    data_checksum(data, p->names, bytes);
    return good;
}

static bool classes_match(char **train, char **val, const char *dir, Error *err)
{
    for (int i = 0; train[i] || val[i]; i++)
        if (!train[i] || !val[i] || strcmp(train[i], val[i]) != 0)
            return error_set(err, "val needs the same class folders as train",
                             "%s: class %d is %s in train, but %s in val", dir, i,
                             train[i] ? train[i] : "missing", val[i] ? val[i] : "missing");
    return true;
}

static void plain_text(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || strchr(",\"\\\x7f", *text))
            *text = '_';
}

bool pictures_open(Data *data, const char *path, const DataConfig *config, Error *err)
{
    const int size = config->image_size ? config->image_size : 224;
#ifdef DDP_PICTURES_MISSING
    return error_set(err, "install the package, then build again", "--data %s: this program cannot "
                     "read pictures: when it was built, there was " DDP_PICTURES_MISSING, path);
#endif
    if (!set_add(data, &data->train, path, "train", size, err) ||
        !set_add(data, &data->test, path, "val", size, err) ||
        !classes_match(data->train.pictures->class_names, data->test.pictures->class_names, path,
                       err))
        return false;
    data->class_names = (const char *const *)data->train.pictures->class_names;
    for (int i = 0; i < data->train.classes; i++)
        plain_text(data->train.pictures->class_names[i]);
    return true;
}

void pictures_close(Dataset *set)
{
    struct Pictures *p = set->pictures;
    for (int i = 0; p && p->class_names[i]; i++)
        free(p->class_names[i]);
    if (p) {
        free(p->class_names);
        free(p->names);
        free(p->at);
        free(p->dir);
    }
    free(p);
}

void pictures_cut(Dataset *set, int count)
{
    for (int64_t i = 0; i < count; i++) {
        set->pictures->at[i] = set->pictures->at[i * set->count / count];
        set->labels[i] = set->labels[i * set->count / count];
    }
}

void picture_file(const Dataset *set, int id, char *out, size_t size)
{
    snprintf(out, size, "%s", set->pictures->names + set->pictures->at[id]);
    plain_text(out);
}

// --- which part of a picture becomes the image ---------------------------------------------------

static double uniform(uint32_t bits, double low, double high)
{
    return low + (high - low) * bits * 0x1p-32;
}

static Span span_of(int first, int count, int side)
{
    return (Span){ first, (double)count / side, first, first + count };
}

View view_random(int width, int height, int side, uint64_t seed, int64_t epoch, int32_t id)
{
    const double ratio = 4.0 / 3, area = (double)width * height;
    int w = (int)fmin(width, rint(height * ratio)), h = (int)fmin(height, rint(width * ratio));
    int x = (width - w) / 2, y = (height - h) / 2;  // the centre, if ten tries fail
    for (uint64_t try = 1; try <= 10; try++) {
        Philox r = philox(seed, (uint64_t)epoch, (uint32_t)id | try << 32);
        double a = area * uniform(r.v[0], 0.08, 1);
        double q = exp(uniform(r.v[1], -log(ratio), log(ratio)));
        int wide = (int)lrint(sqrt(a * q)), high = (int)lrint(sqrt(a / q));
        if (wide < 1 || wide > width || high < 1 || high > height)
            continue;
        w = wide, h = high;
        x = (int)((uint64_t)r.v[2] * (uint64_t)(width - w + 1) >> 32);
        y = (int)((uint64_t)r.v[3] * (uint64_t)(height - h + 1) >> 32);
        break;
    }
    return (View){ span_of(x, w, side), span_of(y, h, side),
                   jitter_of(seed, epoch, id, 0).flip };
}

View view_center(int width, int height, int side)
{
    const int shorter = (int)lrint(side * 256 / 224.0), least = width < height ? width : height;
    const int resized[] = { (int)((int64_t)shorter * width / least),
                            (int)((int64_t)shorter * height / least) };
    View view = { span_of(0, width, resized[0]), span_of(0, height, resized[1]), false };
    Span *spans[] = { &view.x, &view.y };
    for (int i = 0; i < 2; i++)     // lrint: a half rounds to even, as in torchvision
        spans[i]->from = spans[i]->step * lrint((resized[i] - side) / 2.0);
    return view;
}

// --- resizing ------------------------------------------------------------------------------------

// An output pixel is a weighted mean of the source pixels near its centre. The weights fall to 0 at
// a distance of one source pixel, or if the picture shrinks, one output pixel:
//
//   source   | 0 | 1 | 2 | 3 | 4 | 5 | 6 |       shrinking by 2: output 1 has its centre at 3.0,
//   weight         .12 .38 .38 .12               and weights for the sources 1 to 4
//
// Weights are multiples of 1 / ONE that add up to 1, so that sums of pixels fit in 16 bits.
enum { ONE = 256 };

static double reach_of(const Span *span) { return fmax(1, span->step); }

// The maximum number of source pixels that an output pixel depends on.
static int taps_of(const Span *span)
{
    return (int)fmin(ceil(2 * reach_of(span)), span->high - span->low);
}

// The first source pixel that output pixel i depends on.
static int first_of(const Span *span, int i)
{
    double first = span->from + (i + 0.5) * span->step - reach_of(span) + 0.5;
    return (int)fmin(fmax(first, span->low), span->high - taps_of(span));
}

static void weights_of(const Span *span, int i, uint32_t *weights)
{
    const int first = first_of(span, i), taps = taps_of(span);
    const double reach = reach_of(span), centre = span->from + (i + 0.5) * span->step;
    double sum = 0, part = 0;
    for (int k = 0; k < taps; k++)
        sum += fmax(0, reach - fabs(first + k + 0.5 - centre));
    for (int k = 0, given = 0; k < taps; k++, given += weights[k - 1]) {
        part += fmax(0, reach - fabs(first + k + 0.5 - centre));
        weights[k] = (int)(ONE * part / sum + 0.5) - given;
    }
}

// The part of a picture that the view needs for an image of side x side pixels.
static Rect view_needs(const View *view, int side)
{
    const int x = first_of(&view->x, 0), y = first_of(&view->y, 0);
    return (Rect){ x, y, first_of(&view->x, side - 1) + taps_of(&view->x) - x,
                   first_of(&view->y, side - 1) + taps_of(&view->y) - y };
}

// The weighted mean of `taps` rows of `count` bytes, which are `step` bytes apart.
static void rows_mean(const uint8_t *restrict from, size_t step, const uint32_t *weights, int taps,
                      size_t count, uint16_t *restrict mean)
{
    for (size_t x = 0; x < count; x++)
        mean[x] = ONE / 2;
    for (int k = 0; k < taps; k++, from += step) {
        const uint16_t weight = (uint16_t)weights[k];
        for (size_t x = 0; x < count; x++)
            mean[x] += from[x] * weight;
    }
    for (size_t x = 0; x < count; x++)
        mean[x] /= ONE;
}

// Resizes a row of pixels to a row in each of the planes red, green and blue. table: for each
// output pixel its first source pixel, and the weights. All colours are added up at once, in one
// integer with 16 bits for each colour. The upper 16 bits, from the next pixel, are not used.
static void row_resize(const uint32_t *table, int taps, int side, bool flip, const uint16_t *row,
                       uint8_t *out)
{
    const size_t plane = (size_t)side * side;
    for (int i = 0; i < side; i++, table += 1 + taps) {
        const uint16_t *from = row + 3 * table[0];
        uint64_t sums = (ONE / 2) * 0x0001000100010001u, pixel;
        for (int k = 0; k < taps; k++, from += 3) {
            memcpy(&pixel, from, sizeof pixel);
            sums += pixel * table[1 + k];
        }
        uint8_t *to = out + (flip ? side - 1 - i : i);
        to[0] = (uint8_t)(sums / ONE);
        to[plane] = (uint8_t)(sums / ONE >> 16);
        to[2 * plane] = (uint8_t)(sums / ONE >> 32);
    }
}

// Returns `memory` if it has `bytes` or more; else frees it and returns new memory.
static void *grown(void *memory, size_t *room, size_t bytes)
{
    if (bytes <= *room)
        return memory;
    free(memory);
    *room = bytes;
    return xmalloc(bytes);
}

void picture_resize(const uint8_t *rgb, const Rect *at, const View *view, int side,
                    PictureRoom *room, uint8_t *out)
{
    const Rect needs = view_needs(view, side);
    const int across = taps_of(&view->x), down = taps_of(&view->y);
    const size_t entry = 1 + across, values = 3 * (size_t)needs.width;
    uint32_t *table = room->tables = grown(room->tables, &room->tables_room,
        (side * entry + down) * sizeof *table + (values + 1) * sizeof(uint16_t));
    uint32_t *weights = table + side * entry;
    uint16_t *mean = (uint16_t *)(weights + down);
    for (int i = 0; i < side; i++) {
        table[i * entry] = first_of(&view->x, i) - needs.x;
        weights_of(&view->x, i, &table[i * entry + 1]);
    }
    mean[values] = 0;       // row_resize reads one value past the end
    for (int i = 0; i < side; i++, out += side) {
        const size_t y = first_of(&view->y, i) - at->y;
        weights_of(&view->y, i, weights);
        rows_mean(rgb + 3 * (y * at->width + needs.x - at->x), (size_t)3 * at->width, weights, down,
                  values, mean);
        row_resize(table, across, side, view->flip, mean, out);
    }
}

// --- decoding ------------------------------------------------------------------------------------

#ifndef MOST_PIXELS             // the fuzzer sets a smaller limit
#define MOST_PIXELS 178956970   // Pillow's limit
#endif

typedef struct Job {
    PictureRoom *room;
    const Augment *augment;
    int64_t epoch;
    int id, side;
    Rect at;                    // the decoded part: at least what the view needs
    char problem[256];
} Job;

#ifdef DDP_PICTURES_MISSING     // packages that the build did not find: "no libpng (libpng-dev)"
static bool decode(Job *job) { return false; }
#else

#include <setjmp.h>

#include <jpeglib.h>
#include <png.h>

// Chooses the view of a picture of this size. False: the picture is too large.
static bool view_choose(Job *job, int64_t width, int64_t height)
{
    const Augment *augment = job->augment;
    View *view = &job->room->view;
    snprintf(job->problem, sizeof job->problem, "%lld x %lld pixels: at most %d are decoded",
             (long long)width, (long long)height, MOST_PIXELS);
    if (width * height > MOST_PIXELS)
        return false;
    *view = view_center((int)width, (int)height, job->side);
    if (augment->crop)
        *view = view_random((int)width, (int)height, job->side, augment->seed, job->epoch, job->id);
    view->flip = view->flip && augment->flip;
    job->at = view_needs(view, job->side);
    return true;
}

// libjpeg reports an error through a function that must not return: it jumps back to jpeg_run.
typedef struct Jpeg {
    struct jpeg_decompress_struct info;     // the first member: libjpeg passes its address
    struct jpeg_error_mgr errors;
    Job *job;
    jmp_buf stopped;
} Jpeg;

static void jpeg_on_error(j_common_ptr info)
{
    Jpeg *jpeg = (Jpeg *)info;
    char text[JMSG_LENGTH_MAX];
    info->err->format_message(info, text);
    snprintf(jpeg->job->problem, sizeof jpeg->job->problem, "JPEG: %s", text);
    longjmp(jpeg->stopped, 1);
}

static void jpeg_on_warning(j_common_ptr info, int level) { }   // ignored, as by Pillow

// Called if libjpeg needs bytes after the end of the buffer, which holds the whole file.
static boolean jpeg_on_end(j_decompress_ptr info)
{
    Jpeg *jpeg = (Jpeg *)info;
    snprintf(jpeg->job->problem, sizeof jpeg->job->problem, "JPEG: the file is truncated");
    longjmp(jpeg->stopped, 1);
}

// Like Pillow, reads the values of every CMYK JPEG as 255 - ink.
static void cmyk_to_rgb(const uint8_t *cmyk, uint8_t *rgb, int width)
{
    for (int i = 0; i < width; i++, cmyk += 4)
        for (int c = 0; c < 3; c++)
            *rgb++ = (uint8_t)((cmyk[c] * cmyk[3] + 127) / 255);
}

// Decodes only the rows and columns that the view needs, and one more block of columns on each
// side: colours may have fewer columns than brightness, and are then interpolated across blocks.
static void jpeg_decode(Jpeg *jpeg)
{
    j_decompress_ptr in = &jpeg->info;
    PictureRoom *room = jpeg->job->room;
    Rect *at = &jpeg->job->at;
    jpeg_create_decompress(in);
    jpeg_mem_src(in, room->file.bytes, room->file.size);
    in->src->fill_input_buffer = jpeg_on_end;
    jpeg_read_header(in, TRUE);
    if (!view_choose(jpeg->job, in->image_width, in->image_height))
        longjmp(jpeg->stopped, 1);
    const bool cmyk = in->num_components == 4;
    in->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(in);

    const int block = in->max_h_samp_factor * DCTSIZE, right = at->x + at->width + block;
    JDIMENSION left = at->x > block ? at->x - block : 0;
    JDIMENSION width = (right < (int)in->output_width ? right : (int)in->output_width) - left;
    if (width < in->output_width)
        jpeg_crop_scanline(in, &left, &width);      // widens it to whole blocks
    at->x = left;
    at->width = width;
    const size_t bytes = (size_t)3 * width, all = bytes * at->height;
    room->rgb = grown(room->rgb, &room->rgb_room, all + (cmyk ? 4 * width : 0));
    JSAMPROW rgb = room->rgb, inks = rgb + all;
    if (at->y > 0)    // a later skip can give wrong rows: libjpeg-turbo's issue 915
        jpeg_skip_scanlines(in, at->y);
    for (; rgb < inks; rgb += bytes) {
        jpeg_read_scanlines(in, cmyk ? &inks : &rgb, 1);
        if (cmyk)
            cmyk_to_rgb(inks, rgb, width);
    }
}

static bool jpeg_run(Jpeg *jpeg)
{
    bool good = setjmp(jpeg->stopped) == 0;
    if (good)
        jpeg_decode(jpeg);
    jpeg_destroy_decompress(&jpeg->info);
    return good;
}

// Decodes all pixels, as RGBA: without A, libpng would mix the colours with a background. Alpha is
// then dropped, as by Pillow.
static bool png_decode(Job *job)
{
    png_image image = { .version = PNG_IMAGE_VERSION };
    PictureRoom *room = job->room;
    bool good = png_image_begin_read_from_memory(&image, room->file.bytes, room->file.size) &&
                view_choose(job, image.width, image.height);
    const size_t pixels = good ? (size_t)image.width * image.height : 0;
    room->rgb = grown(room->rgb, &room->rgb_room, 4 * pixels);
    image.format = PNG_FORMAT_RGBA;
    image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
    good = good && png_image_finish_read(&image, NULL, room->rgb, 0, NULL);
    if (PNG_IMAGE_FAILED(image))
        snprintf(job->problem, sizeof job->problem, "PNG: %s", image.message);
    png_image_free(&image);
    for (size_t i = 0; good && i < pixels; i++)
        memmove(room->rgb + 3 * i, room->rgb + 4 * i, 3);
    job->at = (Rect){ 0, 0, image.width, image.height };
    return good;
}

static bool decode(Job *job)
{
    const FileBytes *file = &job->room->file;
    if (file->size > 8 && memcmp(file->bytes, "\x89PNG\r\n\x1A\n", 8) == 0)
        return png_decode(job);
    Jpeg jpeg = { .job = job };
    jpeg.info.err = jpeg_std_error(&jpeg.errors);
    jpeg.errors.error_exit = jpeg_on_error;
    jpeg.errors.emit_message = jpeg_on_warning;
    return jpeg_run(&jpeg);
}

#endif

bool picture_make(const Dataset *set, int id, const Augment *augment, int64_t epoch,
                  PictureRoom *room, uint8_t *out, Error *err)
{
    const struct Pictures *p = set->pictures;
    Job job = { room, augment, epoch, id, set->width };
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", p->dir, p->names + p->at[id]);
    if (!data_file_load(path, 256 << 20, &room->file, err))
        return false;
    if (!decode(&job))
        return error_set(err, "replace or remove the file", "%s: %s", path, job.problem);
    picture_resize(room->rgb, &job.at, &room->view, set->width, room, out);
    return true;
}

void picture_room_free(PictureRoom *room)
{
    free(room->file.bytes);
    free(room->rgb);
    free(room->tables);
}
