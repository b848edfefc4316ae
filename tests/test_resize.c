// Crop and resize: Pillow's bytes, torchvision's rules and the distribution of its random boxes.
// tools/reference/pictures.py made tests/reference/resize.txt.
#include "data/resize.h"
#include "test.h"

#include <math.h>
#include <zlib.h>

enum { WIDTH = 97, HEIGHT = 71 };

static uint8_t pattern[HEIGHT * WIDTH * 3];

static void pattern_make(void)
{
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
}

// The least that picture_decode may return: only the pixels of `at`.
static Pixels part_of_pattern(Rect at)
{
    Pixels pixels = { .at = at, .rgb = xmalloc((size_t)(at.width * at.height * 3)) };
    for (int y = 0; y < at.height; y++)
        memcpy(pixels.rgb + y * at.width * 3, pattern + ((at.y + y) * WIDTH + at.x) * 3,
               (size_t)at.width * 3);
    return pixels;
}

static void mirror(uint8_t *row, int width)
{
    for (int i = 0; i < width / 2; i++) {
        uint8_t other = row[width - 1 - i];
        row[width - 1 - i] = row[i];
        row[i] = other;
    }
}

static void expect_resized(View view, unsigned crc, Resizer *resizer)
{
    const Rect *keep = &view.keep;
    int bytes = 3 * keep->width * keep->height;
    uint8_t *out = xmalloc((size_t)bytes);
    Rect needs = view_needs(&view);
    Pixels pixels = part_of_pattern(needs);
    EXPECT(needs.x >= view.from.x && needs.x + needs.width <= view.from.x + view.from.width &&
               needs.y >= view.from.y && needs.y + needs.height <= view.from.y + view.from.height,
           "view_needs gives %d,%d %dx%d", needs.x, needs.y, needs.width, needs.height);
    for (int flip = 0; flip < 2; flip++) {
        view.flip = flip;
        picture_resize(&pixels, &view, resizer, out);
        for (int row = 0; flip && row < 3 * keep->height; row++)
            mirror(out + row * keep->width, keep->width);
        EXPECT(crc32(0, out, (unsigned)bytes) == crc,
               "%dx%d at %d,%d to %dx%d, flip %d: not Pillow's bytes", view.from.width,
               view.from.height, view.from.x, view.from.y, view.width, view.height, flip);
    }
    free(pixels.rgb);
    free(out);
}

static void expect_center(const int *n)
{
    View view = view_center(n[0], n[1], n[2], n[3]);
    bool same = view.width == n[4] && view.height == n[5] && view.keep.x == n[6] &&
                view.keep.y == n[7] && view.from.width == n[0] && view.from.height == n[1];
    EXPECT(same && view.keep.width == n[3] && view.keep.height == n[3],
           "%dx%d to %d, %d: %dx%d at %d,%d, not %dx%d at %d,%d", n[0], n[1], n[2], n[3], view.width,
           view.height, view.keep.x, view.keep.y, n[4], n[5], n[6], n[7]);
}

static int ascending(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

// With 20,000 boxes, the share below a decile has a standard deviation of about 0.003; we allow
// 0.015. Where a ratio is at its limit, many boxes are equal, so count those below the decile
// and those not above it.
static void expect_deciles(int width, int height, const double *deciles)
{
    enum { DRAWS = 20000 };
    static double values[3][DRAWS];
    int flips = 0;
    for (int i = 0; i < DRAWS; i++) {
        View view = view_random(width, height, 224, 5, i / 1000, i % 1000);
        Rect r = view.from;
        flips += view.flip;
        int free_rows = height - r.height;
        values[0][i] = (double)r.width * r.height / ((double)width * height);
        values[1][i] = (double)r.width / r.height;
        values[2][i] = (double)r.y / (free_rows ? free_rows : 1);
        EXPECT(r.x >= 0 && r.y >= 0 && r.x + r.width <= width && r.y + r.height <= height,
               "%dx%d at %d,%d", r.width, r.height, r.x, r.y);
    }
    EXPECT(abs(flips - DRAWS / 2) < 400, "%d of %d are flipped", flips, DRAWS);
    for (int v = 0; v < 3; v++) {
        qsort(values[v], DRAWS, sizeof values[v][0], ascending);
        for (int d = 0; d < 9; d++) {
            double decile = deciles[9 * v + d], less = 0, not_more = 0;
            for (int i = 0; i < DRAWS; i++) {
                less += values[v][i] < decile - 1e-4;
                not_more += values[v][i] <= decile + 1e-4;
            }
            EXPECT(less / DRAWS < (d + 1) / 10.0 + 0.015 && not_more / DRAWS > (d + 1) / 10.0 - 0.015,
                   "%dx%d: %s: shares of %.3f to %.3f below %.4f, torchvision's decile %d", width,
                   height, (const char *[]){ "area", "ratio", "place" }[v], less / DRAWS,
                   not_more / DRAWS, decile, d + 1);
        }
    }
}

static void the_reference(void)
{
    FILE *list = fopen(DDP_SOURCE_DIR "/tests/reference/resize.txt", "r");
    CHECK(list, "", "no tests/reference/resize.txt");
    char kind[16];
    int lines = 0;
    Resizer resizer = { 0 };
    for (; fscanf(list, "%15s", kind) == 1; lines++) {
        int n[10] = { 0 }, count = strcmp(kind, "resize") == 0 ? 10 : strcmp(kind, "center") == 0 ? 8 : 2;
        unsigned crc = 0;
        double deciles[27] = { 0 };
        for (int i = 0; i < count; i++)
            CHECK(fscanf(list, "%d", &n[i]) == 1, "", "line %d", lines);
        for (int i = 0; count == 2 && i < 27; i++)
            CHECK(fscanf(list, "%lf", &deciles[i]) == 1, "", "line %d", lines);
        CHECK(count < 10 || fscanf(list, "%x", &crc) == 1, "", "line %d", lines);
        if (count == 10)
            expect_resized((View){ { n[0], n[1], n[2], n[3] }, n[4], n[5], { n[6], n[7], n[8], n[9] }, 0 },
                           crc, &resizer);
        else if (count == 8)
            expect_center(n);
        else
            expect_deciles(n[0], n[1], deciles);
    }
    free(resizer.memory);
    fclose(list);
    EXPECT_EQ_INT(lines, 150 + 60 + 4);
}

int main(void)
{
    pattern_make();
    the_reference();
    return test_done();
}
