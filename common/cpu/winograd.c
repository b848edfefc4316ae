// winograd.c - 3x3 convolutions with fewer multiplications (Winograd; Lavin and Gray 2015).
//
// Two neighbouring outputs of a row of three weights share inputs: y0 = x0 w0 + x1 w1 + x2 w2 and
// y1 = x1 w0 + x2 w1 + x3 w2 take 6 multiplications, or 4:
//
//   m0 = (x0 - x2) w0                           y0 = m0 + m1 + m2
//   m1 = (x1 + x2) (w0 + w1 + w2) / 2           y1 = m1 - m2 - m3
//   m2 = (x2 - x1) (w0 - w1 + w2) / 2
//   m3 = (x1 - x3) w2
//
// In two dimensions it is 16 instead of 36 for a tile of 2x2 outputs. The sums of weights are made
// once; those of inputs serve all output channels, so what is left is a matrix product for each of
// the 16 points: tiles x input channels x output channels. On an image of 2x2 pixels x0 and x3 are
// padding, and 3 multiplications do, 9 instead of 16 in two dimensions:
//
//   m0 = (x1 + x2) w1    m1 = x2 (w2 - w1)    m2 = x1 (w0 - w1)      y0 = m0 + m1    y1 = m0 + m2
//
// All numbers of a sum are of the same size, so rounding is about that of the plain convolution.
//
// A thread takes some tiles from beginning to end, so that what it computes on the way stays in its
// caches. What a tile's numbers come to does not depend on which others it is computed with.
#include "check.h"
#include "cpu/short_types.h"
#include "cpu/winograd.h"

#include <omp.h>
#include <stdlib.h>

#ifdef __AVX512F__
enum { LANES = 16, MOST_ROWS = 14 };    // 14 x 2 sums, two vectors of weights, in 32 registers
#else
enum { LANES = 8, MOST_ROWS = 6 };      // in 16
#endif
enum { PANEL = 2 * LANES,               // output channels that are computed together
       MOST_TILES = 4 * MOST_ROWS,      // of a thread at a time
       MOST_POINTS = 4 };               // in one dimension

// They do stand on cache lines, which is as fast as if the compiler knew it; but AddressSanitizer's
// stacks are aligned to less.
typedef float Lanes
    __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));
typedef int32_t Bits __attribute__((vector_size(LANES * sizeof(float))));

struct Winograd {
    Ops *ops;
    ConvSpec spec;
    Shape y;
    bool relu;
    int points;                 // in one dimension: 4, or 3 for an image of 2x2 pixels
    int tile_rows, tile_cols;   // of an image
    int tiles, chunks;          // of the batch; chunk c is tiles [tiles * c / chunks, ...)
    int threads;
    size_t point_inputs, point_outputs;     // Lanes from a point's numbers to the next one's
};

bool winograd_fits(const Ops *ops, const ConvSpec *s, Shape y)
{
    return s->x.type == TYPE_F32 && s->kernel_h == 3 && s->kernel_w == 3 && s->stride == 1 &&
           s->pad == 1 && y.h >= 2 && y.w >= 2 && ops->vector == LANES && s->x.block == LANES &&
           y.block == LANES && y.c % PANEL == 0;
}

static int round_up(int value, int to) { return (value + to - 1) / to * to; }

// Whole rounds of all threads: none waits for another's last chunk.
Winograd *winograd_new(Ops *ops, const ConvSpec *spec, Shape y, bool relu)
{
    Winograd *w = xcalloc(1, sizeof *w);
    w->ops = ops;
    w->spec = *spec;
    w->y = y;
    w->relu = relu;
    w->points = y.h == 2 && y.w == 2 ? 3 : 4;
    w->tile_rows = (y.h + 1) / 2;
    w->tile_cols = (y.w + 1) / 2;
    w->tiles = y.n * w->tile_rows * w->tile_cols;
    w->threads = device_threads(ops->device);
    w->chunks = round_up((w->tiles + MOST_TILES - 1) / MOST_TILES, w->threads);
    // one more, so that the points do not fall on the same lines of the cache
    w->point_inputs = (size_t)(spec->x.c / LANES) * MOST_TILES + 1;
    w->point_outputs = 2 * MOST_TILES + 1;
    size_t each = (size_t)w->points * w->points * (w->point_inputs + w->point_outputs) * LANES;
    ops_need_scratch(ops, w->threads * each);
    return w;
}

void winograd_free(Winograd *w) { free(w); }

// --- weights: [panel][point][input channel][PANEL] -----------------------------------------------

size_t winograd_bytes(const Winograd *w)
{
    return (size_t)w->points * w->points * w->spec.x.c * w->y.c * sizeof(float);
}

static double weight_sum(int points, int point, double w0, double w1, double w2)
{
    if (points == 3)
        return point == 0 ? w1 : point == 1 ? w2 - w1 : w0 - w1;
    return point == 0 ? w0 : point == 3 ? w2 : (w0 + (point == 1 ? w1 : -w1) + w2) / 2;
}

static void import_kernel(const Winograd *w, const float *taps, float *to, size_t stride)
{
    for (int row = 0; row < w->points; row++)
        for (int col = 0; col < w->points; col++, to += stride) {
            double sums[3];
            for (int i = 0; i < 3; i++)
                sums[i] = weight_sum(w->points, row, taps[i], taps[3 + i], taps[6 + i]);
            *to = (float)weight_sum(w->points, col, sums[0], sums[1], sums[2]);
        }
}

void winograd_import(const Winograd *w, const float *oihw, float *weights)
{
    int inputs = w->spec.x.c, outputs = w->y.c;
    size_t point = (size_t)inputs * PANEL, panel = (size_t)w->points * w->points * point;
#pragma omp parallel for schedule(static)
    for (int o = 0; o < outputs; o++)
        for (int i = 0; i < inputs; i++)
            import_kernel(w, oihw + ((size_t)o * inputs + i) * 9,
                          weights + o / PANEL * panel + (size_t)i * PANEL + o % PANEL, point);
}

// --- inputs: [point][channel / LANES][tile][LANES] -----------------------------------------------

// Where tile t begins in plane `block` of `blocks`, each as large as the image.
typedef struct Place {
    size_t plane;
    int row, col;
} Place;

static Place place_of(const Winograd *w, int t, int block, int blocks)
{
    int each = w->tile_rows * w->tile_cols, i = t % each;
    return (Place){ (size_t)(t / each * blocks + block) * w->y.h * w->y.w,
                    i / w->tile_cols * 2, i % w->tile_cols * 2 };
}

static void fetch_tile(const Lanes *pixel, int width)
{
    __builtin_prefetch(pixel);
    __builtin_prefetch(pixel + 1);
    __builtin_prefetch(pixel + width);
    __builtin_prefetch(pixel + width + 1);
}

// The four inputs of a dimension -> those sums that are multiplied.
SPECIALIZED void input_sums(int points, Lanes x0, Lanes x1, Lanes x2, Lanes x3, Lanes *to)
{
    if (points == 3) {
        to[0] = x1 + x2;
        to[1] = x2;
        to[2] = x1;
    } else {
        to[0] = x0 - x2;
        to[1] = x1 + x2;
        to[2] = x2 - x1;
        to[3] = x1 - x3;
    }
}

// One tile of a plane x of h * w pixels, whose first output is at (row, col).
SPECIALIZED void transform_tile(int points, const Lanes *x, int h, int w, int row, int col,
                                Lanes *to, size_t stride)
{
    Lanes rows[4][MOST_POINTS], sums[MOST_POINTS];
    const Lanes zero = { 0 };
    for (int r = 0; r < 4; r++) {
        const Lanes *from = x + (row + r - 1) * w + col - 1;
        bool inside = row + r >= 1 && row + r <= h;
        input_sums(points, inside && col > 0 ? from[0] : zero, inside ? from[1] : zero,
                   inside && col + 1 < w ? from[2] : zero, inside && col + 2 < w ? from[3] : zero,
                   rows[r]);
    }
    for (int p = 0; p < points; p++) {
        input_sums(points, rows[0][p], rows[1][p], rows[2][p], rows[3][p], sums);
        for (int q = 0; q < points; q++)
            to[(q * points + p) * stride] = sums[q];
    }
}

// Image after image, plane after plane, as they stand in memory; the next plane is fetched ahead.
SPECIALIZED void transform(const Winograd *w, int points, const Lanes *x, int begin, int end,
                           Lanes *inputs)
{
    int h = w->y.h, width = w->y.w, blocks = w->spec.x.c / LANES;
    int each = w->tile_rows * w->tile_cols;
    for (int t = begin, next; t < end; t = next) {
        next = (t / each + 1) * each < end ? (t / each + 1) * each : end;
        for (int b = 0; b < blocks; b++)
            for (int i = t; i < next; i++) {
                Place p = place_of(w, i, b, blocks);
                fetch_tile(x + p.plane + (p.row + h) * width + p.col, width);
                transform_tile(points, x + p.plane, h, width, p.row, p.col,
                               inputs + (size_t)b * MOST_TILES + i - begin, w->point_inputs);
            }
    }
}

// --- products ------------------------------------------------------------------------------------

// So many rows of a panel. The sums stay in registers, where `rows` is a constant.
SPECIALIZED void multiply_rows(int rows, int blocks, const Lanes *inputs, const Lanes *weights,
                               Lanes *outputs)
{
    Lanes sums[MOST_ROWS][2] = { 0 };
    for (int b = 0; b < blocks; b++, inputs += MOST_TILES) {
        const float *x = (const float *)inputs;
        for (int i = 0; i < LANES; i++, x++, weights += 2) {
            Lanes w0 = weights[0], w1 = weights[1];
#pragma GCC unroll 14
            for (int r = 0; r < rows; r++) {
                sums[r][0] += x[r * LANES] * w0;
                sums[r][1] += x[r * LANES] * w1;
            }
        }
    }
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++) {
        outputs[2 * r] = sums[r][0];
        outputs[2 * r + 1] = sums[r][1];
    }
}

typedef void MultiplyRows(int blocks, const Lanes *inputs, const Lanes *weights, Lanes *outputs);
#define ROWS(rows)                                                                               \
    static void multiply_##rows(int blocks, const Lanes *inputs, const Lanes *weights,           \
                                Lanes *outputs)                                                  \
    {                                                                                            \
        multiply_rows(rows, blocks, inputs, weights, outputs);                                   \
    }
ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6)
#ifdef __AVX512F__
ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14)
#endif
#undef ROWS

static MultiplyRows *const multiply_some[MOST_ROWS] = {
    multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6,
#ifdef __AVX512F__
    multiply_7, multiply_8, multiply_9, multiply_10, multiply_11, multiply_12, multiply_13,
    multiply_14,
#endif
};

static void multiply(int tiles, int blocks, const Lanes *inputs, const Lanes *weights,
                     Lanes *outputs)
{
    int groups = (tiles + MOST_ROWS - 1) / MOST_ROWS;
    for (int g = 0; g < groups; g++) {
        int begin = tiles * g / groups, end = tiles * (g + 1) / groups;
        multiply_some[end - begin - 1](blocks, inputs + begin, weights, outputs + 2 * begin);
    }
}

// --- outputs: [point][tile][PANEL] ---------------------------------------------------------------

// The products of a dimension -> two outputs.
SPECIALIZED void output_sums(int points, const Lanes *m, Lanes *y0, Lanes *y1)
{
    *y0 = m[0] + m[1];
    *y1 = m[0] + m[2];
    if (points == 4) {
        *y0 += m[2];
        *y1 = m[1] - m[2] - m[3];
    }
}

SPECIALIZED void finish_pixel(Lanes sum, bool add, bool relu, Lanes *y)
{
    if (add)
        sum += *y;
    if (relu)
        sum = (Lanes)((Bits)sum & ~(sum < 0));  // NaN stays NaN
    *y = sum;
}

// One tile of a plane y of h * w pixels.
SPECIALIZED void finish_tile(int points, const Lanes *from, size_t stride, Lanes bias, bool add,
                             bool relu, Lanes *y, int h, int w, int row, int col)
{
    Lanes columns[2][MOST_POINTS], m[MOST_POINTS];
    for (int p = 0; p < points; p++) {
        for (int q = 0; q < points; q++)
            m[q] = from[(q * points + p) * stride];
        output_sums(points, m, &columns[0][p], &columns[1][p]);
    }
    y += row * w + col;
    for (int r = 0; r < 2 && row + r < h; r++, y += w) {
        Lanes y0, y1;
        output_sums(points, columns[r], &y0, &y1);
        finish_pixel(y0 + bias, add, relu, &y[0]);
        if (col + 1 < w)
            finish_pixel(y1 + bias, add, relu, &y[1]);
    }
}

SPECIALIZED void finish(const Winograd *w, int points, const Lanes *outputs, const Lanes *bias,
                        bool add, bool relu, int panel, int begin, int end, Lanes *y)
{
    for (int b = 2 * panel; b < 2 * panel + 2; b++)
        for (int t = begin; t < end; t++) {
            Place p = place_of(w, t, b, w->y.c / LANES);
            finish_tile(points, outputs + 2 * (t - begin) + b % 2, w->point_outputs, bias[b], add,
                        relu, y + p.plane, w->y.h, w->y.w, p.row, p.col);
        }
}

// While others are multiplied.
static void fetch_outputs(const Winograd *w, int panel, int begin, int end, const Lanes *y)
{
    for (int b = 2 * panel; b < 2 * panel + 2; b++)
        for (int t = begin; t < end; t++) {
            Place p = place_of(w, t, b, w->y.c / LANES);
            fetch_tile(y + p.plane + p.row * w->y.w + p.col, w->y.w);
        }
}

// --- all of it -----------------------------------------------------------------------------------

SPECIALIZED void compute(const Winograd *w, int points, const Lanes *x, const Lanes *weights,
                         const Lanes *bias, bool add, Lanes *y, int begin, int end, Lanes *scratch)
{
    const int all = points * points, tiles = end - begin;
    Lanes *inputs = scratch, *outputs = scratch + all * w->point_inputs;
    transform(w, points, x, begin, end, inputs);
    for (int panel = 0; panel < w->y.c / PANEL; panel++) {
        for (int p = 0; p < all; p++, weights += 2 * w->spec.x.c) {
            fetch_outputs(w, panel, begin + tiles * p / all, begin + tiles * (p + 1) / all, y);
            multiply(tiles, w->spec.x.c / LANES, inputs + p * w->point_inputs, weights,
                     outputs + p * w->point_outputs);
        }
        if (w->relu)
            finish(w, points, outputs, bias, add, true, panel, begin, end, y);
        else
            finish(w, points, outputs, bias, add, false, panel, begin, end, y);
    }
}

void winograd_forward(const Winograd *w, const float *x, const float *weights, const float *bias,
                      const float *residual, float *y)
{
    size_t each = (size_t)w->points * w->points * (w->point_inputs + w->point_outputs);
    const Lanes *from = (const Lanes *)x, *all = (const Lanes *)weights, *b = (const Lanes *)bias;
    CHECK(!residual || residual == y, "", "a residual must be where the sum is to be");
#pragma omp parallel for schedule(static) num_threads(w->threads)
    for (int c = 0; c < w->chunks; c++) {
        int begin = (int)((int64_t)w->tiles * c / w->chunks);
        int end = (int)((int64_t)w->tiles * (c + 1) / w->chunks);
        Lanes *scratch = (Lanes *)w->ops->scratch + omp_get_thread_num() * each;
        if (w->points == 3)
            compute(w, 3, from, all, b, residual != NULL, (Lanes *)y, begin, end, scratch);
        else
            compute(w, 4, from, all, b, residual != NULL, (Lanes *)y, begin, end, scratch);
    }
}
