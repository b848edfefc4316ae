// test_short_types.c - operations in 16-bit types: each against the same one in f32, given the same
// (rounded) numbers; and training steps of whole networks. test_types.c has the conversions.
//
// ctest: PROCESSORS 2 TIMEOUT 120 BACKENDS cpu cuda fake
//
// A result may be off by its own rounding, which is half a last bit: roundoffs[] of its size; and
// by one more where sums in another order round to the other neighbour. Where cuDNN rounds once
// more, that is allowed for under CUDA alone (`allowed`).
//
// Where the processor has instructions for bf16 the test runs once more without them, emulating.
#include "check.h"
#include "cpu/short_types.h"
#include "model.h"
#include "rng.h"
#include "test.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static Device *device;
static Ops *ops;
static bool cuda;

static const char *const type_names[] = { "f32", "bf16", "f16" };
static const double roundoffs[] = { 0x1p-24, 0x1p-8, 0x1p-11 };

// ==== Arrays =====================================================================================

static void *to_device(const void *host, size_t bytes)
{
    void *memory = device_alloc(device, bytes);
    copy_to_device(device_stream(device), memory, host, bytes);
    stream_sync(device_stream(device));
    return memory;
}

static void *to_host(const void *memory, size_t bytes)
{
    void *host = xmalloc(bytes);
    copy_to_host(device_stream(device), host, memory, bytes);
    stream_sync(device_stream(device));
    return host;
}

// Numbers in device memory: of the type, and in f32 what an operation makes of the same in f32.
typedef struct Pair {
    Type type;
    size_t count;
    void *wide, *half;
} Pair;

static Pair pair_empty(Type type, size_t count)
{
    return (Pair){ type, count, device_alloc(device, count * sizeof(float)),
                   device_alloc(device, count * type_size(type)) };
}

// Random numbers between -1 and 1 that the type holds, in host memory.
static float *random_numbers(Type type, size_t count, int key)
{
    float *values = xmalloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = rounded(type, 2 * uniform_of(philox(7, (uint64_t)key, i).v[0]) - 1);
    return values;
}

static Pair pair_random(Type type, size_t count, int key)
{
    float *wide = random_numbers(type, count, key);
    void *half = xmalloc(count * type_size(type));
    for (size_t i = 0; i < count; i++)
        store(type, half, i, wide[i]);
    Pair p = { type, count, to_device(wide, count * sizeof *wide),
               to_device(half, count * type_size(type)) };
    free(wide);
    free(half);
    return p;
}

// Both in f32; half a little off what the type holds: whoever reads it in the type has to round it.
static Pair pair_unrounded(Type type, size_t count, int key)
{
    float *values = random_numbers(type, count, key);
    Pair p = { TYPE_F32, count, to_device(values, count * sizeof *values), NULL };
    for (size_t i = 0; i < count; i++)
        values[i] *= 1 + 0x1p-14f;
    p.half = to_device(values, count * sizeof *values);
    free(values);
    return p;
}

static void set_wide(Pair *p, float *values)
{
    copy_to_device(device_stream(device), p->wide, values, p->count * sizeof *values);
    stream_sync(device_stream(device));
    free(values);
}

// Puts into wide what half holds.
static void pair_widen(Pair *p)
{
    float *wide = xmalloc(p->count * sizeof *wide);
    void *half = to_host(p->half, p->count * type_size(p->type));
    for (size_t i = 0; i < p->count; i++)
        wide[i] = load(p->type, half, i);
    set_wide(p, wide);
    free(half);
}

// Leaves in wide what the type holds of it.
static void pair_round(Pair *p)
{
    float *wide = to_host(p->wide, p->count * sizeof *wide);
    for (size_t i = 0; i < p->count; i++)
        wide[i] = rounded(p->type, wide[i]);
    set_wide(p, wide);
}

static void pair_free(Pair *p)
{
    device_free(device, p->wide);
    device_free(device, p->half);
}

// half must be what the f32 result is, rounded: off by at most `of_itself` times the number, and
// `of_largest` times the largest number.
static void compare(const char *what, const Pair *p, double of_itself, double of_largest)
{
    double largest = 0, worst = 0;
    size_t place = 0;
    float *wide = to_host(p->wide, p->count * sizeof *wide);
    void *half = to_host(p->half, p->count * type_size(p->type));
    for (size_t i = 0; i < p->count; i++)
        largest = fmax(largest, fabs(wide[i]));
    for (size_t i = 0; i < p->count; i++) {
        double off = fabs(load(p->type, half, i) - wide[i]);
        double allowed = of_itself * fabs(wide[i]) + of_largest * largest;
        double excess = off > 0 ? off / fmax(allowed, 1e-30) : off;
        if (!(excess <= worst)) {
            worst = excess;
            place = i;
        }
    }
    EXPECT(worst <= 1, "%s, %s: number %zu is %g, wanted %g: %.2g times as far off as it may be",
           what, type_names[p->type], place, load(p->type, half, place), wide[place], worst);
    free(wide);
    free(half);
}

// ==== Operations =================================================================================

// The same weights for every convolution, in the order of this one.
static float *master(const Conv *conv, size_t count, Type type)
{
    float *oihw = random_numbers(type, count, 20);
    float *arena = xcalloc(conv_weight_count(conv), sizeof *arena);
    conv_weights_import(conv, arena, oihw);
    float *memory = to_device(arena, conv_weight_count(conv) * sizeof *arena);
    free(oihw);
    free(arena);
    return memory;
}

// Gradients that lie in a convolution's own order, in OIHW.
static void *export_gradients(const Conv *conv, const float *grads)
{
    size_t bytes = conv_weight_count(conv) * sizeof *grads;
    float *arena = to_host(grads, bytes), *oihw = xmalloc(bytes);
    conv_weights_export(conv, oihw, arena);
    void *memory = to_device(oihw, bytes);
    free(arena);
    free(oihw);
    return memory;
}

// How far a convolution's results may be off: of themselves, and of the largest.
typedef struct Allowed {
    double y, y_largest, dw;
} Allowed;

// cuDNN writes y in y's type, so a bias is added to what is rounded already; and where it has no
// good way to write dw in f32, dw has been of the short type. Products, of which y is one pixel,
// are not cuDNN's.
static Allowed allowed(const ConvSpec *spec, Shape y)
{
    double u = roundoffs[y.type];
    bool its_rounding = cuda && y.h * y.w > 1;
    return (Allowed){ 2 * u, 1e-5 + (its_rounding && spec->bias ? u : 0), its_rounding ? u : 0 };
}

static void check_conv(const char *name, ConvSpec spec, Type type, int tail)
{
    ConvSpec short_spec = spec;
    short_spec.x.type = type;
    Conv *wide = conv_new(ops, &spec, NULL), *full = conv_new(ops, &short_spec, NULL), *half = full;
    if (tail) { // the weights are a larger batch's
        spec.x.n = short_spec.x.n = tail;
        conv_free(wide);
        wide = conv_new(ops, &spec, NULL);
        half = conv_new(ops, &short_spec, full);
    }
    size_t weights = (size_t)spec.out_channels * spec.x.c * spec.kernel_h * spec.kernel_w;
    Shape y = conv_output(half);
    Allowed off = allowed(&spec, y);
    EXPECT(y.block == conv_output(wide).block, "%s: another order", name);
    EXPECT_EQ_INT(y.type, spec.f32_out ? TYPE_F32 : type);
    Pair x = pair_random(type, shape_count(spec.x), 1), out = pair_empty(y.type, shape_count(y));
    Pair dx = pair_empty(type, shape_count(spec.x));
    Pair dy = spec.f32_out ? pair_unrounded(type, shape_count(y), 2)
                           : pair_random(type, shape_count(y), 2);
    Pair db = pair_empty(TYPE_F32, (size_t)spec.out_channels);
    Pair bias = pair_random(TYPE_F32, (size_t)spec.out_channels, 3);
    float *w = master(wide, weights, type), *arena = master(half, weights, type);
    float *grads = device_alloc(device, conv_weight_count(half) * sizeof *grads);
    float *wide_grads = device_alloc(device, conv_weight_count(wide) * sizeof *grads);
    size_t own = conv_copy_bytes(half), count = conv_weight_count(half);
    void *copy = device_alloc(device, own > 0 ? own : count * type_size(type));

    if (own > 0)
        conv_weights_cast(half, arena, copy);
    else
        values_narrow(ops, device_stream(device), type, count, arena, 1, copy);
    conv_forward(wide, x.wide, w, bias.wide, out.wide);
    conv_forward(half, x.half, copy, bias.wide, out.half);
    compare(name, &out, off.y, off.y_largest);
    conv_backward_weights(wide, x.wide, dy.wide, wide_grads, db.wide);
    conv_backward_weights(half, x.half, dy.half, grads, db.half);
    Pair dw = { TYPE_F32, weights, export_gradients(wide, wide_grads),
                export_gradients(half, grads) };
    compare(name, &dw, off.dw, 1e-5);
    compare(name, &db, 0, spec.f32_out ? 0x1p-13 : 1e-5);
    if (spec.needs_dx) {
        conv_backward_data(wide, dy.wide, w, dx.wide);
        conv_backward_data(half, dy.half, copy, dx.half);
        compare(name, &dx, 2 * roundoffs[type], 1e-5);
    }
    Pair *pairs[] = { &x, &out, &dx, &dy, &dw, &db, &bias };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
    void *all[] = { w, arena, grads, wide_grads, copy };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        device_free(device, all[i]);
    if (half != full)
        conv_free(half);
    conv_free(full);
    conv_free(wide);
}

// The shape in which a value of c channels flows between layers: what a convolution gives.
static Shape flowing(int n, int c, int h, int w)
{
    ConvSpec spec = { { n, 3, h, w, ops_input_block(ops, 3) }, c, 1, 1, 1, 0 };
    Conv *conv = conv_new(ops, &spec, NULL);
    Shape s = conv_output(conv);
    conv_free(conv);
    return s;
}

// And that in which images arrive.
static Shape arriving(int n, int c, int h, int w)
{
    return (Shape){ n, c, h, w, ops_input_block(ops, c) };
}

static void convolutions(Type type)
{
    check_conv("7x7 stride 2 on images", (ConvSpec){ arriving(2, 3, 17, 15), 16, 7, 7, 2, 3 }, type,
               0);
    check_conv("5x5 on one channel", (ConvSpec){ arriving(3, 1, 9, 8), 6, 5, 5, 1, 0, true }, type,
               0);
    check_conv("5x5, blocks from one channel",
               (ConvSpec){ arriving(3, 1, 9, 8), 16, 5, 5, 1, 2, true }, type, 0);
    check_conv("5x5, odd channels", (ConvSpec){ arriving(2, 6, 9, 7), 5, 5, 5, 1, 2, true, true },
               type, 0);
    check_conv("3x3", (ConvSpec){ flowing(2, 16, 6, 5), 32, 3, 3, 1, 1, false, true }, type, 0);
    check_conv("3x3 with bias", (ConvSpec){ flowing(2, 16, 6, 5), 16, 3, 3, 1, 1, true, true },
               type, 0);
    check_conv("3x3 stride 2", (ConvSpec){ flowing(3, 16, 7, 6), 16, 3, 3, 2, 1, false, true },
               type, 0);
    check_conv("1x1 stride 2", (ConvSpec){ flowing(3, 16, 5, 4), 32, 1, 1, 2, 0, false, true },
               type, 0);
    check_conv("1x1", (ConvSpec){ flowing(3, 32, 3, 3), 16, 1, 1, 1, 0, false, true }, type, 0);
    check_conv("3x3, a tail", (ConvSpec){ flowing(64, 64, 4, 4), 64, 3, 3, 1, 1, false, true },
               type, 3);
    check_conv("3x3 on images, a tail", (ConvSpec){ arriving(64, 3, 8, 8), 64, 3, 3, 1, 1 }, type,
               3);
    check_conv("3x3 on 1x1", (ConvSpec){ flowing(5, 16, 1, 1), 32, 3, 3, 1, 1, false, true }, type,
               0);
    check_conv("3x3 on 2x2", (ConvSpec){ flowing(4, 32, 2, 2), 32, 3, 3, 1, 1, false, true }, type,
               0);
    check_conv("3x3 on 2x2, a tail",
               (ConvSpec){ flowing(64, 32, 2, 2), 32, 3, 3, 1, 1, false, true }, type, 3);
    check_conv("3x3 stride 2 on 2x2",
               (ConvSpec){ flowing(4, 16, 2, 2), 32, 3, 3, 2, 1, false, true }, type, 0);
    check_conv("5x5 on 2x1", (ConvSpec){ flowing(4, 16, 2, 1), 16, 5, 5, 1, 2, true, true }, type,
               0);
    check_conv("3x3 on 1x1, odd", (ConvSpec){ arriving(5, 3, 1, 1), 7, 3, 3, 1, 1, true, true },
               type, 0);
}

static void linear_layers(Type type)
{
    check_conv("linear of 5x5 images",
               (ConvSpec){ arriving(3, 6, 5, 5), 12, 5, 5, 1, 0, true, true }, type, 0);
    check_conv("linear of 3x2 blocks",
               (ConvSpec){ flowing(3, 16, 3, 2), 10, 3, 2, 1, 0, true, true }, type, 0);
    check_conv("logits", (ConvSpec){ { 7, 48, 1, 1, 48 }, 10, 1, 1, 1, 0, true, true, true }, type,
               0);
    check_conv("logits, a tail",
               (ConvSpec){ { 64, 48, 1, 1, 48 }, 10, 1, 1, 1, 0, true, true, true }, type, 5);
    check_conv("logits of 3x2 blocks",
               (ConvSpec){ flowing(3, 16, 3, 2), 10, 3, 2, 1, 0, true, true, true }, type, 0);
}

typedef struct NormMemory {
    Pair all[8]; // in the order of NormTensors
} NormMemory;

static NormTensors norm_side(const NormMemory *m, bool half)
{
    void *p[8];
    for (int i = 0; i < 8; i++)
        p[i] = half ? m->all[i].half : m->all[i].wide;
    return (NormTensors){ p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7] };
}

// Forward sees the same numbers, so its statistics are the same (but under CUDA the order of sums
// goes by the type); what backward gives is a difference of sums, so its tolerance goes by the
// largest.
static void check_norm(const char *name, NormSpec spec, Type type, bool two_gradients)
{
    NormSpec short_spec = spec;
    short_spec.x.type = type;
    size_t count = shape_count(spec.x), channels = (size_t)spec.x.c;
    Pair x = pair_random(type, count, 1), residual = pair_random(type, count, 2);
    Pair dy1 = pair_random(type, count, 3), dy2 = pair_random(type, count, 4);
    Pair y = pair_empty(type, count), dx = pair_empty(type, count),
         dresidual = pair_empty(type, count);
    NormMemory memory;
    for (int i = 0; i < 8; i++)
        memory.all[i] =
            i < 2 ? pair_random(TYPE_F32, channels, 5 + i) : pair_empty(TYPE_F32, channels);
    Norm *wide = norm_new(ops, &spec), *half = norm_new(ops, &short_spec);
    NormTensors t[2] = { norm_side(&memory, false), norm_side(&memory, true) };
    double u = roundoffs[type];

    norm_forward(wide, &t[0], x.wide, spec.add ? residual.wide : NULL, y.wide, true);
    norm_forward(half, &t[1], x.half, spec.add ? residual.half : NULL, y.half, true);
    compare(name, &y, u, 1e-6);
    for (int i = 2; i < 6; i++)
        compare("statistics", &memory.all[i], cuda ? 1e-6 : 0, 0);
    pair_widen(&y); // where y is 0 decides: both look at the same one
    norm_backward(wide, &t[0], x.wide, y.wide, dy1.wide, two_gradients ? dy2.wide : NULL, dx.wide,
                  spec.add ? dresidual.wide : NULL);
    norm_backward(half, &t[1], x.half, y.half, dy1.half, two_gradients ? dy2.half : NULL, dx.half,
                  spec.add ? dresidual.half : NULL);
    compare(name, &dx, u, two_gradients ? 2 * u : 1e-5);
    compare("dgamma", &memory.all[6], 0, two_gradients ? u : 1e-6);
    compare("dbeta", &memory.all[7], 0, two_gradients ? u : 1e-6);
    if (spec.add)
        compare("dresidual", &dresidual, u, 0);
    norm_forward(wide, &t[0], x.wide, spec.add ? residual.wide : NULL, y.wide, false);
    norm_forward(half, &t[1], x.half, spec.add ? residual.half : NULL, y.half, false);
    compare("frozen norm", &y, u, 1e-6);

    norm_free(wide);
    norm_free(half);
    Pair *pairs[] = { &x, &residual, &dy1, &dy2, &y, &dx, &dresidual };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
    for (int i = 0; i < 8; i++)
        pair_free(&memory.all[i]);
}

static void normalisation(Type type)
{
    check_norm("norm", (NormSpec){ flowing(3, 16, 5, 3), false, false }, type, false);
    check_norm("norm, relu", (NormSpec){ flowing(2, 32, 3, 3), false, true }, type, false);
    check_norm("norm, add, relu", (NormSpec){ flowing(2, 32, 3, 4), true, true }, type, false);
    check_norm("norm, two gradients", (NormSpec){ flowing(2, 16, 3, 4), true, true }, type, true);
    check_norm("norm of rows", (NormSpec){ flowing(9, 48, 1, 1), false, true }, type, true);
    check_norm("norm, odd channels", (NormSpec){ arriving(4, 5, 3, 3), false, true }, type, false);
}

static void expect_same(const char *what, const void *a, const void *b, size_t bytes)
{
    void *one = to_host(a, bytes), *other = to_host(b, bytes);
    EXPECT(memcmp(one, other, bytes) == 0, "%s: not the same bytes", what);
    free(one);
    free(other);
}

static void check_maxpool(const char *name, PoolSpec spec, Type type, bool two_gradients)
{
    PoolSpec short_spec = spec;
    short_spec.x.type = type;
    Shape out = pool_output(&short_spec);
    EXPECT_EQ_INT(out.type, type);
    size_t count = shape_count(spec.x), outputs = shape_count(out);
    Pair x = pair_random(type, count, 1), y = pair_empty(type, outputs),
         dx = pair_empty(type, count);
    Pair dy1 = pair_random(type, outputs, 2), dy2 = pair_random(type, outputs, 3);
    uint8_t *index = device_alloc(device, outputs), *short_index = device_alloc(device, outputs);
    maxpool_forward(ops, &spec, x.wide, y.wide, index);
    maxpool_forward(ops, &short_spec, x.half, y.half, short_index);
    compare(name, &y, 0, 0);
    expect_same(name, index, short_index, outputs);
    maxpool_backward(ops, &spec, index, dy1.wide, two_gradients ? dy2.wide : NULL, dx.wide);
    maxpool_backward(ops, &short_spec, index, dy1.half, two_gradients ? dy2.half : NULL, dx.half);
    compare(name, &dx, roundoffs[type], 0);
    device_free(device, index);
    device_free(device, short_index);
    Pair *pairs[] = { &x, &y, &dx, &dy1, &dy2 };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

static void pooling(Type type)
{
    check_maxpool("maxpool 3x3 stride 2", (PoolSpec){ flowing(2, 16, 8, 8), 3, 2, 1 }, type, false);
    check_maxpool("maxpool 3x3, odd size", (PoolSpec){ flowing(2, 16, 7, 5), 3, 2, 1 }, type, true);
    check_maxpool("maxpool 2x2", (PoolSpec){ arriving(2, 6, 6, 4), 2, 2, 0 }, type, false);
    check_maxpool("maxpool 2x2, a row left over", (PoolSpec){ arriving(2, 5, 5, 7), 2, 2, 0 }, type,
                  true);

    Shape wide = flowing(3, 32, 4, 3), half = wide;
    half.type = type;
    Pair x = pair_random(type, shape_count(wide), 1), y = pair_empty(type, 3 * 32);
    Pair dy = pair_random(type, 3 * 32, 2), dx = pair_empty(type, shape_count(wide));
    avgpool_forward(ops, wide, x.wide, y.wide);
    avgpool_forward(ops, half, x.half, y.half);
    compare("avgpool", &y, roundoffs[type], 0);
    avgpool_backward(ops, wide, dy.wide, dx.wide);
    avgpool_backward(ops, half, dy.half, dx.half);
    compare("avgpool backward", &dx, roundoffs[type], 0);
    Pair *pairs[] = { &x, &y, &dx, &dy };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

static void relu(Type type)
{
    Shape wide = { 1, 9001, 1, 1, 1 }, half = { 1, 9001, 1, 1, 1, type };
    Pair x = pair_random(type, 9001, 1), y = pair_empty(type, 9001),
         dy = pair_random(type, 9001, 2);
    relu_forward(ops, wide, x.wide, y.wide);
    relu_forward(ops, half, x.half, y.half);
    compare("relu", &y, 0, 0);
    relu_backward(ops, wide, y.wide, dy.wide, dy.wide); // in place
    relu_backward(ops, half, y.half, dy.half, dy.half);
    compare("relu backward", &dy, 0, 0);
    Pair *pairs[] = { &x, &y, &dy };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

// Images are what they are in f32, rounded; rows that are left over are zeros.
static void images(Type type)
{
    enum { COUNT = 5, BYTES = 3 * 8 * 7, ROWS = 4 };
    uint8_t pixels[COUNT * BYTES];
    const int32_t labels[COUNT] = { 3, 1, 4, 1, 5 }, ids[ROWS - 1] = { 4, 0, 2 };
    for (int i = 0; i < COUNT * BYTES; i++)
        pixels[i] = (uint8_t)philox(1, 2, (uint64_t)i).v[0];
    Augment augment = { true, true, 2, 5, { 0.49f, 0.48f, 0.45f }, { 0.25f, 0.24f, 0.26f } };
    Shape wide = arriving(ROWS, 3, 10, 10), half = wide;
    half.type = type;
    Pair x = pair_random(type, shape_count(wide), 1);
    uint8_t *from = to_device(pixels, sizeof pixels);
    int32_t *all = to_device(labels, sizeof labels), *chosen = to_device(ids, sizeof ids);
    int32_t *got = device_alloc(device, ROWS * sizeof *got),
            *short_got = device_alloc(device, ROWS * sizeof *got);
    images_load(device_stream(device), from, all, 3, 8, 7, chosen, ROWS - 1, 1, &augment, x.wide,
                wide, got);
    images_load(device_stream(device), from, all, 3, 8, 7, chosen, ROWS - 1, 1, &augment, x.half,
                half, short_got);
    pair_round(&x);
    compare("images", &x, 0, 0);
    expect_same("labels", got, short_got, ROWS * sizeof *got);
    pair_free(&x);
    void *memory[] = { from, all, chosen, got, short_got };
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_free(device, memory[i]);
}

// ==== Training steps =============================================================================

// The same batch in f32 and in a short type, and what a step needs.
enum { BATCH = 32, CLASSES = 10 };

typedef struct Run {
    Model *model;
    void *images;
    int32_t *labels;
    Scalars *scalars;
    Stats *stats;
} Run;

static Run run_new(const char *arch, Type type, int size, float loss_scale)
{
    Run run = { model_new(device, ops, &(ModelConfig){ arch, 3, size, size, CLASSES, BATCH,
                                                       .type = type }) };
    size_t bytes = (size_t)(3 * size * size);
    uint8_t *pixels = xmalloc(BATCH * bytes);
    int32_t labels[BATCH], ids[BATCH];
    for (int n = 0; n < BATCH; n++) {
        ids[n] = n;
        labels[n] = n % CLASSES;
        for (size_t i = 0; i < bytes; i++) // a pattern for each class, and noise
            pixels[(size_t)n * bytes + i] =
                (uint8_t)(philox(1, (uint64_t)labels[n], i / 5).v[0] % 128 +
                          philox(2, (uint64_t)n, i).v[0] % 128);
    }
    Augment plain = { .mean = { 0.5f, 0.5f, 0.5f }, .std = { 0.25f, 0.25f, 0.25f } };
    uint8_t *from = to_device(pixels, BATCH * bytes);
    int32_t *all = to_device(labels, sizeof labels), *chosen = to_device(ids, sizeof ids);
    run.images = device_alloc(device, shape_bytes(run.model->input));
    run.labels = device_alloc(device, sizeof labels);
    run.scalars = device_alloc(device, sizeof *run.scalars);
    run.stats = device_alloc(device, sizeof *run.stats);
    scalars_set(ops, run.scalars, (Scalars){ .loss_scale = loss_scale });
    images_load(device_stream(device), from, all, 3, size, size, chosen, BATCH, 0, &plain,
                run.images, run.model->input, run.labels);
    stream_sync(device_stream(device));
    void *memory[] = { from, all, chosen };
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_free(device, memory[i]);
    free(pixels);
    return run;
}

static void run_free(Run *run)
{
    void *memory[] = { run->images, run->labels, run->scalars, run->stats };
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        device_free(device, memory[i]);
    model_free(run->model);
}

// Normalised values get two deviations added, up or down: few of them are then so near to ReLU's
// kink that rounding decides whether a gradient passes.
static void spread_betas(Model *model)
{
    size_t bytes = model->param_count * sizeof *model->params;
    float *params = to_host(model->params, bytes);
    for (int i = 1; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i], *before = t - 1;
        bool norm =
            t->kind == MODEL_VECTOR && before->kind == MODEL_VECTOR && before->layer == t->layer;
        for (int64_t c = 0; norm && c < t->count; c++)
            params[t->offset + (size_t)c] = philox(4, (uint64_t)i, (uint64_t)c).v[0] & 1 ? 2 : -2;
    }
    copy_to_device(device_stream(device), model->params, params, bytes);
    stream_sync(device_stream(device));
    free(params);
}

// From the initialisation of this seed to its gradients.
static void take_step(Run *run, int seed)
{
    Model *m = run->model;
    model_init(m, seed);
    spread_betas(m);
    model_cast_weights(m);
    model_forward(m, run->images, BATCH, true);
    loss_cross_entropy(ops, BATCH, CLASSES, m->logits, run->labels, run->scalars, run->stats,
                       m->dlogits);
    model_backward(m, NULL, NULL);
}

// How the gradients of all parameters, b's, agree with a's, over several steps: their cosine; and
// how far they lead in that direction, where a's lead 1. Rounding turns them a little, but must not
// make them shorter.
typedef struct Agreement {
    double dot, aa, bb;
} Agreement;

static void add_gradients(Agreement *sums, const Model *a, const Model *b, double loss_scale)
{
    float *of_a = to_host(a->grads, a->param_count * sizeof(float)),
          *of_b = to_host(b->grads, b->param_count * sizeof(float));
    for (int i = 0; i < a->tensor_count; i++) {
        const ModelTensor *t = &a->tensors[i];
        if (t->kind != MODEL_WEIGHT && t->kind != MODEL_VECTOR)
            continue;
        float *x = xmalloc((size_t)t->count * sizeof *x),
              *y = xmalloc((size_t)t->count * sizeof *y);
        model_export(a, t, of_a, x);
        model_export(b, &b->tensors[i], of_b, y);
        for (int64_t j = 0; j < t->count; j++) {
            double unscaled = y[j] / loss_scale;
            sums->dot += x[j] * unscaled;
            sums->aa += (double)x[j] * x[j];
            sums->bb += unscaled * unscaled;
        }
        free(x);
        free(y);
    }
    free(of_a);
    free(of_b);
}

static double mean_loss(const Run *run)
{
    Stats *stats = to_host(run->stats, sizeof *stats);
    double loss = stats->loss_sum / (double)stats->count;
    free(stats);
    return loss;
}

// `inits`: steps, each from another initialisation, whose gradients are taken together.
static void check_steps(const char *arch, int size, Type type, float loss_scale, int inits)
{
    Run wide = run_new(arch, TYPE_F32, size, 1), half = run_new(arch, type, size, loss_scale);
    Agreement sums = { 0 };
    for (int seed = 1; seed <= inits; seed++) {
        take_step(&wide, seed);
        take_step(&half, seed);
        add_gradients(&sums, wide.model, half.model, loss_scale);
    }
    double cosine = sums.dot / sqrt(sums.aa * sums.bb), along = sums.dot / sums.aa;
    double loss = mean_loss(&half), wide_loss = mean_loss(&wide);
    double bytes =
        (double)model_activation_bytes(half.model, type) /
        (double)model_activation_bytes(wide.model, TYPE_F32);
    printf("%s, %s: loss %.6f, in f32 %.6f; gradients: cosine %.5f, %.5f along f32's; "
           "%.3f of the bytes\n",
           arch, type_names[type], loss, wide_loss, cosine, along, bytes);
    EXPECT(model_hash(wide.model) == model_hash(half.model), "%s: other masters", arch);
    EXPECT_NEAR(loss / wide_loss, 1, 8 * roundoffs[type]);
    EXPECT(cosine > 0.99, "%s, %s: the gradients' cosine is %f", arch, type_names[type], cosine);
    EXPECT_NEAR(along, 1, 8 * roundoffs[type]);
    EXPECT(bytes <= 0.55, "%s, %s: %.3f of f32's bytes", arch, type_names[type], bytes);
    run_free(&wide);
    run_free(&half);
}

// LeNet has no betas to spread: rounding decides for some values whether ReLU lets a gradient pass,
// and which of a window is largest. That makes gradients up to 12 roundoffs too long or too short
// (3 are usual), whatever the loss scale and who computes; where eight initialisations are taken
// together hardly 3 are left.
static void training_steps(Type type)
{
    float loss_scale = type == TYPE_F16 ? 1024 : 1;
    check_steps("lenet", 32, type, loss_scale, 8);
    check_steps("convnet", 28, type, loss_scale, 1);
    check_steps("resnet18", 32, type, loss_scale, 1);
    if (type == TYPE_BF16)
        check_steps("resnet50", 32, type, loss_scale, 1);
}

// ==== Bytes of activations =======================================================================

// A model of one type knows what it would take in each.
TEST(bytes_in_another_type)
{
    static const char *const archs[] = { "lenet", "convnet", "resnet18", "resnet50" };
    static const int batches[] = { 1, 7, 32 };
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 3; b++) {
            int size = strcmp(archs[a], "convnet") == 0 ? 28 : 32;
            size_t bytes[3][3];
            for (Type own = TYPE_F32; own <= TYPE_F16; own++) {
                ModelConfig config = { archs[a], 3, size, size, 10, batches[b], .type = own };
                Model *model = model_new(device, ops, &config);
                for (Type type = TYPE_F32; type <= TYPE_F16; type++)
                    bytes[own][type] = model_activation_bytes(model, type);
                model_free(model);
            }
            for (Type own = TYPE_F32; own <= TYPE_F16; own++)
                for (Type type = TYPE_F32; type <= TYPE_F16; type++)
                    EXPECT(bytes[own][type] == bytes[type][type],
                           "%s, batch %d, of %s: %zu bytes in %s, which takes %zu", archs[a],
                           batches[b], type_names[own], bytes[own][type], type_names[type],
                           bytes[type][type]);
            EXPECT(bytes[0][TYPE_BF16] < bytes[0][TYPE_F32], "%s: bf16 is no smaller", archs[a]);
        }
}

// ==== Which types, and without the instructions ==================================================

// A GPU has instructions for all types; a processor for bf16 at most, which is then its best.
static void check_device(void)
{
    bool emulates = ops_emulates(device, TYPE_BF16);
    Type best = cuda ? TYPE_F16 : emulates ? TYPE_F32 : TYPE_BF16;
    printf("bf16 is %s\n", emulates ? "emulated" : "the device's");
    EXPECT_EQ_INT(ops_best_type(device), best);
    EXPECT(!ops_emulates(device, TYPE_F32), "f32");
    EXPECT_EQ_INT(ops_emulates(device, TYPE_F16), !cuda);
    EXPECT(!cuda || !emulates, "bf16");
}

// f16 is emulated in any case.
static void again_without_bf16(void)
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv("DNNL_MAX_CPU_ISA", "AVX512_CORE", 1);
        execl("/proc/self/exe", "test_short_types", "bf16", (char *)NULL);
        _exit(127);
    }
    waitpid(child, &status, 0);
    EXPECT(status == 0, "without bf16 instructions: status %d", status);
}

int main(int argc, char **argv)
{
    Type last = argc > 1 && strcmp(argv[1], "bf16") == 0 ? TYPE_BF16 : TYPE_F16;
    cuda = strcmp(device_backend, "cuda") == 0;
    if (cuda && device_count() == 0)
        TEST_SKIP("no GPU");
    device = device_open(0, 2);
    ops = ops_new(device, &(OpsConfig){ 0 });
    check_device();
    for (Type type = TYPE_BF16; type <= last; type++) {
        convolutions(type);
        linear_layers(type);
        normalisation(type);
        pooling(type);
        relu(type);
        images(type);
        training_steps(type);
    }
    bytes_in_another_type();
    if (!cuda && !ops_emulates(device, TYPE_BF16))
        again_without_bf16();
    ops_free(ops);
    device_close(device);
    return test_done();
}
