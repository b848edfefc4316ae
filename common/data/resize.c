// resize.c - computes what Pillow 11 and 12 do, in the same order, to get the same bytes.
//
// Pillow resizes along rows, rounds to 8 bits, then resizes along columns. An output pixel is a
// weighted mean of the source pixels near its centre. The weights fall to 0 at a distance of one
// source pixel, or if the picture shrinks, one output pixel:
//
//   source   | 0 | 1 | 2 | 3 | 4 | 5 | 6 |       shrinking by 2: output 1 has its centre at 3.0,
//   weight         .12 .38 .38 .12               and weights for the sources 1 to 4
//
// Weights are computed in double and rounded to 22 fractional bits: with 8 bits for the pixel and 2
// spare bits that makes 32. CMake compiles this file without fused multiply-adds, which would round
// the weights differently.
#include "data/resize.h"
#include "data/files.h"
#include "rng.h"

#include <math.h>
#include <string.h>

enum { WEIGHT_BITS = 22, HALF = 1 << (WEIGHT_BITS - 1) };

static double uniform(uint32_t bits, double low, double high)
{
    return low + (high - low) * bits * 0x1p-32;
}

static int below(uint32_t bits, int count)
{
    return (int)(((uint64_t)bits * (uint64_t)count) >> 32);
}

// The centre, with the nearest allowed ratio: used if ten tries fail, as for a very long picture.
static Rect middle_of(int width, int height, double ratio)
{
    Rect r = { 0, 0, width, height };
    if ((double)width / height < 1 / ratio)
        r.height = (int)lrint(width * ratio);
    else if ((double)width / height > ratio)
        r.width = (int)lrint(height * ratio);
    r.x = (width - r.width) / 2;
    r.y = (height - r.height) / 2;
    return r;
}

View view_random(int width, int height, int side, uint64_t seed, int64_t epoch, int32_t id)
{
    const double ratio = 4.0 / 3.0, area = (double)width * height;
    uint64_t counter = (uint32_t)id;
    View view = { .from = middle_of(width, height, ratio), .width = side, .height = side,
                  .keep = { 0, 0, side, side }, .flip = jitter_of(seed, epoch, id, 0).flip };
    for (uint64_t try = 1; try <= 10; try++) {
        Philox r = philox(seed, (uint64_t)epoch, counter | try << 32);
        double a = area * uniform(r.v[0], 0.08, 1);
        double q = exp(uniform(r.v[1], -log(ratio), log(ratio)));
        int w = (int)lrint(sqrt(a * q)), h = (int)lrint(sqrt(a / q));
        if (w > 0 && w <= width && h > 0 && h <= height) {
            view.from = (Rect){ below(r.v[2], width - w + 1), below(r.v[3], height - h + 1), w, h };
            break;
        }
    }
    return view;
}

View view_center(int width, int height, int shorter, int side)
{
    View view = { .from = { 0, 0, width, height }, .width = shorter, .height = shorter };
    if (width < height)
        view.height = (int)((int64_t)shorter * height / width);
    else
        view.width = (int)((int64_t)shorter * width / height);
    view.keep = (Rect){ (int)lrint((view.width - side) / 2.0),  // a half rounds to even
                        (int)lrint((view.height - side) / 2.0), side, side };
    return view;
}

// One direction: `in` source pixels become `out` pixels. Only `count` of the new pixels are needed,
// from `begin` on.
typedef struct Axis {
    int in, out, begin, count;
    int stride;             // of the rows of `table`
    int32_t *table;         // (count, stride): [first source pixel, number of weights, weights...]
} Axis;

static double axis_reach(const Axis *axis) // of weights, in source pixels
{
    double scale = (double)axis->in / axis->out;
    return scale > 1 ? scale : 1;
}

// The centre of output pixel i, which depends on the source pixels *first to *end - 1.
static double axis_centre(const Axis *axis, int i, int *first, int *end)
{
    double reach = axis_reach(axis), centre = (i + 0.5) * ((double)axis->in / axis->out);
    int low = (int)(centre - reach + 0.5), high = (int)(centre + reach + 0.5);
    *first = low > 0 ? low : 0;
    *end = high < axis->in ? high : axis->in;
    return centre;
}

static Axis axis_make(int in, int out, int begin, int count)
{
    Axis axis = { .in = in, .out = out, .begin = begin, .count = count };
    axis.stride = 2 + 2 * (int)ceil(axis_reach(&axis)) + 1;
    return axis;
}

static Axis axis_across(const View *v)
{
    return axis_make(v->from.width, v->width, v->keep.x, v->keep.width);
}

static Axis axis_down(const View *v)
{
    return axis_make(v->from.height, v->height, v->keep.y, v->keep.height);
}

static void axis_range(const Axis *axis, int *first, int *count)
{
    int unused, end;
    axis_centre(axis, axis->begin, first, &unused);
    axis_centre(axis, axis->begin + axis->count - 1, &unused, &end);
    *count = end - *first;
}

Rect view_needs(const View *view)
{
    Rect needs;
    Axis across = axis_across(view), down = axis_down(view);
    axis_range(&across, &needs.x, &needs.width);
    axis_range(&down, &needs.y, &needs.height);
    needs.x += view->from.x;
    needs.y += view->from.y;
    return needs;
}

static double triangle(double distance)
{
    double height = 1.0 - fabs(distance);
    return height > 0 ? height : 0;
}

// Fills the table: a weight is the triangle's height at a source pixel, divided by the sum of these
// heights.
static void axis_fill(const Axis *axis)
{
    const double inverse = 1.0 / axis_reach(axis);
    for (int i = 0; i < axis->count; i++) {
        int32_t *row = axis->table + (size_t)i * (size_t)axis->stride;
        int first, end;
        double centre = axis_centre(axis, axis->begin + i, &first, &end), sum = 0;
        for (int x = first; x < end; x++)
            sum += triangle((x - centre + 0.5) * inverse);
        for (int x = first; x < end; x++) {
            double weight = triangle((x - centre + 0.5) * inverse) / sum;
            row[2 + x - first] = (int32_t)(0.5 + weight * (1 << WEIGHT_BITS));
        }
        row[0] = first;
        row[1] = end - first;
    }
}

// Resizes a row of RGB pixels, which begins at the first pixel needed, to axis->count bytes each of
// red, green and blue, in planes of `size` bytes. flip: from right to left.
static void row_resize(const Axis *axis, const uint8_t *pixels, bool flip, uint8_t *planes,
                       size_t size)
{
    const int32_t *row = axis->table;
    for (int i = 0; i < axis->count; i++, row += axis->stride) {
        const uint8_t *from = pixels + 3 * (row[0] - axis->table[0]);
        int32_t red = HALF, green = HALF, blue = HALF;
        for (int k = 0; k < row[1]; k++, from += 3) {
            red += from[0] * row[2 + k];
            green += from[1] * row[2 + k];
            blue += from[2] * row[2 + k];
        }
        uint8_t *to = planes + (flip ? axis->count - 1 - i : i);
        to[0] = (uint8_t)(red >> WEIGHT_BITS);
        to[size] = (uint8_t)(green >> WEIGHT_BITS);
        to[2 * size] = (uint8_t)(blue >> WEIGHT_BITS);
    }
}

// A plane of rows of `width` bytes becomes out (count, width). sums: memory for a row.
static void plane_resize(const Axis *axis, const uint8_t *rows, int width, int32_t *restrict sums,
                         uint8_t *restrict out)
{
    const int32_t *row = axis->table;
    for (int i = 0; i < axis->count; i++, row += axis->stride, out += width) {
        const uint8_t *from = rows + (size_t)(row[0] - axis->table[0]) * (size_t)width;
        for (int x = 0; x < width; x++)
            sums[x] = HALF;
        for (int k = 0; k < row[1]; k++, from += width)
            for (int x = 0; x < width; x++)
                sums[x] += from[x] * row[2 + k];
        for (int x = 0; x < width; x++)
            out[x] = (uint8_t)(sums[x] >> WEIGHT_BITS);
    }
}

void picture_resize(const Pixels *pixels, const View *view, Resizer *resizer, uint8_t *out)
{
    Axis across = axis_across(view), down = axis_down(view);
    const Rect needs = view_needs(view);
    const size_t width = (size_t)view->keep.width, plane = (size_t)needs.height * width;
    const size_t row_bytes = (size_t)pixels->at.width * 3;
    const size_t weights = (size_t)across.count * (size_t)across.stride;
    const size_t more = (size_t)down.count * (size_t)down.stride;
    resizer->memory = data_memory(resizer->memory, &resizer->capacity,
                                  (weights + more + width) * sizeof(int32_t) + 3 * plane);
    across.table = resizer->memory;
    down.table = across.table + weights;
    int32_t *sums = down.table + more;
    uint8_t *planes = (uint8_t *)(sums + width);
    axis_fill(&across);
    axis_fill(&down);

    const uint8_t *from = pixels->rgb + (size_t)(needs.y - pixels->at.y) * row_bytes +
                          (size_t)(needs.x - pixels->at.x) * 3;
    for (int y = 0; y < needs.height; y++, from += row_bytes)
        row_resize(&across, from, view->flip, planes + (size_t)y * width, plane);
    for (int c = 0; c < 3; c++)
        plane_resize(&down, planes + (size_t)c * plane, view->keep.width, sums,
                     out + (size_t)c * (size_t)view->keep.height * width);
}
