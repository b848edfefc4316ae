// test_types.c - operations in 16-bit types: the conversions, number by number; every operation
// against the same one in f32, given the same (rounded) numbers; a training step of whole networks.
//
// ctest: PROCESSORS 2 TIMEOUT 120
//
// A result may be off by its own rounding, which is half a last bit: roundoffs[] of its size; and
// by one more where sums in another order round to the other neighbour. Where the processor has
// instructions for bf16 the test runs once more without them, emulating.
#include "check.h"
#include "cpu/ops_internal.h"
#include "cpu/short_cpu.h"
#include "model.h"
#include "rng.h"
#include "test.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static Device *device;
static Ops *ops;

static const char *const type_names[] = { "f32", "bf16", "f16" };
static const double roundoffs[] = { 0x1p-24, 0x1p-8, 0x1p-11 };

// ==== Conversions ================================================================================

typedef struct Format {
    Type type;
    int exponent_bits, mantissa_bits;
} Format;

static const Format formats[] = { { TYPE_BF16, 8, 7 }, { TYPE_F16, 5, 10 } };

// What these 16 bits mean, by the definition.
static double value_of(const Format *f, int bits)
{
    int mantissa = bits & ((1 << f->mantissa_bits) - 1), all = (1 << f->exponent_bits) - 1;
    int exponent = bits >> f->mantissa_bits & all, bias = all / 2;
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == all)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - f->mantissa_bits);
    return sign * ldexp(mantissa + (1 << f->mantissa_bits), exponent - bias - f->mantissa_bits);
}

static int infinity_of(const Format *f)
{
    return ((1 << f->exponent_bits) - 1) << f->mantissa_bits;
}

// The nearest, by looking for it; halfway the even one. Infinity takes the place of the number that
// would come next.
static int nearest(const Format *f, float value)
{
    int sign = signbit(value) ? 0x8000 : 0, low = 0, high = infinity_of(f);
    double size = fabs((double)value), last = value_of(f, high - 1),
           step = last - value_of(f, high - 2);
    if (size >= last + step / 2)
        return sign | high;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(value_of(f, middle) <= size ? &low : &high) = middle;
    }
    double below = size - value_of(f, low);
    double above = (high == infinity_of(f) ? last + step : value_of(f, high)) - size;
    bool up = above < below || (above == below && low % 2 == 1);
    return sign | (up ? high : low);
}

static bool same_number(const Format *f, int bits, float value)
{
    double wanted = value_of(f, bits);
    if (wanted != wanted)
        return value != value;
    return value == wanted && !signbit(value) == !signbit(wanted);
}

// All 65536 there and back, through the loops and one at a time.
TEST(all_numbers_there_and_back)
{
    static uint16_t all[65536], back[65536];
    static float wide[65536], again[65536];
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int k = 0; k < 2; k++) {
        const Format *f = &formats[k];
        int wrong = 0, changed = 0;
        ops_widen(f->type, 65536, all, wide);
        ops_narrow(f->type, 65536, wide, back);
        ops_round(f->type, 65536, wide, again);
        for (int i = 0; i < 65536; i++) {
            wrong +=
                !same_number(f, i, wide[i]) || !same_number(f, i, load(f->type, all, (size_t)i));
            wrong += !same_number(f, i, again[i]);
            changed +=
                wide[i] == wide[i] ? back[i] != i : value_of(f, back[i]) == value_of(f, back[i]);
            changed += (back[i] ^ i) >> 15; // a NaN's sign stays, too
        }
        EXPECT(wrong == 0, "%s: %d numbers mean something else", type_names[f->type], wrong);
        EXPECT(changed == 0, "%s: %d numbers do not come back", type_names[f->type], changed);
    }
}

static int wrong_roundings(const Format *f, const float *values, int count)
{
    uint16_t *loop = xmalloc((size_t)count * sizeof *loop), one[2] = { 0 }; // an f32's room
    int wrong = 0;
    ops_narrow(f->type, (size_t)count, values, loop);
    for (int i = 0; i < count; i++) {
        int wanted = nearest(f, values[i]);
        store(f->type, one, 0, values[i]);
        if (values[i] != values[i])
            wrong += value_of(f, loop[i]) == value_of(f, loop[i]) || one[0] != loop[i];
        else
            wrong += loop[i] != wanted || one[0] != wanted;
    }
    free(loop);
    return wrong;
}

// Halfway between each two neighbours, and one f32 to either side of it.
TEST(between_numbers)
{
    for (int k = 0; k < 2; k++) {
        const Format *f = &formats[k];
        int count = 0, most = infinity_of(f);
        float *values = xmalloc((size_t)most * 6 * sizeof *values);
        for (int i = 0; i < most; i++) {
            double next =
                i + 1 < most ? value_of(f, i + 1) : 2 * value_of(f, i) - value_of(f, i - 1);
            float middle = (float)((value_of(f, i) + next) / 2);
            float three[] = { middle, nextafterf(middle, INFINITY), nextafterf(middle, 0) };
            for (int j = 0; j < 3; j++) {
                values[count++] = three[j];
                values[count++] = -three[j];
            }
        }
        int wrong = wrong_roundings(f, values, count);
        EXPECT(wrong == 0, "%s: %d of %d are rounded wrong", type_names[f->type], wrong, count);
        free(values);
    }
}

TEST(any_numbers)
{
    enum { COUNT = 200000 };
    float *values = xmalloc(COUNT * sizeof *values);
    for (int i = 0; i < COUNT; i++)
        values[i] = float_of(philox(9, 0, (uint64_t)i).v[0]);
    const float special[] = { 0,
                              -0.0f,
                              INFINITY,
                              -INFINITY,
                              NAN,
                              -NAN,
                              65504,
                              65519.996f,
                              65520,
                              65536,
                              3.3895314e38f,
                              3.4e38f,
                              1e-45f,
                              0x1p-24f,
                              0x1p-25f,
                              0x1.8p-25f,
                              0x1p-14f,
                              float_of(0x7f800001),
                              float_of(0xff800001),
                              float_of(0x7fffffff) };
    memcpy(values, special, sizeof special);
    for (int k = 0; k < 2; k++) {
        int wrong = wrong_roundings(&formats[k], values, COUNT);
        EXPECT(wrong == 0, "%s: %d are rounded wrong", type_names[formats[k].type], wrong);
    }
    free(values);
}

// ==== Arrays =====================================================================================

// Random numbers that the type holds, in memory of that type, and the same in f32.
typedef struct Pair {
    Type type;
    size_t count;
    float *wide;
    void *half;
} Pair;

static Pair pair_empty(Type type, size_t count)
{
    return (Pair){ type, count, device_alloc(device, count * sizeof(float)),
                   device_alloc(device, count * sizeof(float)) };
}

static Pair pair_random(Type type, size_t count, int key)
{
    Pair p = pair_empty(type, count);
    for (size_t i = 0; i < count; i++)
        p.wide[i] = rounded(type, 2 * uniform_of(philox(7, (uint64_t)key, i).v[0]) - 1);
    ops_narrow(type, count, p.wide, p.half);
    return p;
}

static void pair_free(Pair *p)
{
    device_free(device, p->wide);
    device_free(device, p->half);
}

// half must be what the f32 result is, rounded: off by at most `roundings` times roundoffs[] of the
// number, and `of_largest` of the largest number.
static void compare(const char *what, const Pair *p, double roundings, double of_largest)
{
    double largest = 0, worst = 0, roundoff = roundoffs[p->type] * roundings;
    size_t place = 0;
    for (size_t i = 0; i < p->count; i++)
        largest = fmax(largest, fabs(p->wide[i]));
    for (size_t i = 0; i < p->count; i++) {
        double off = fabs(load(p->type, p->half, i) - p->wide[i]);
        double allowed = roundoff * fabs(p->wide[i]) + of_largest * largest;
        double excess = off > 0 ? off / fmax(allowed, 1e-30) : off;
        if (!(excess <= worst)) {
            worst = excess;
            place = i;
        }
    }
    EXPECT(worst <= 1, "%s, %s: number %zu is %g, wanted %g: %.2g times as far off as it may be",
           what, type_names[p->type], place, load(p->type, p->half, place), p->wide[place], worst);
}

// ==== Operations =================================================================================

static float *master(const Conv *conv, size_t count, Type type)
{
    float *oihw = xmalloc(count * sizeof *oihw);
    float *arena = device_alloc(device, conv_weight_count(conv) * sizeof *arena);
    for (size_t i = 0; i < count; i++)
        oihw[i] = rounded(type, 2 * uniform_of(philox(7, 20, i).v[0]) - 1);
    conv_weights_import(conv, arena, oihw);
    free(oihw);
    return arena;
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
    EXPECT(y.block == conv_output(wide).block, "%s: another order", name);
    EXPECT_EQ_INT(y.type, spec.f32_out ? TYPE_F32 : type);
    Pair x = pair_random(type, shape_count(spec.x), 1), out = pair_empty(y.type, shape_count(y));
    Pair dx = pair_empty(type, shape_count(spec.x));
    Pair dy = pair_random(type, shape_count(y), 2);
    if (spec.f32_out) // a little off what the type holds: it is rounded
        for (size_t i = 0; i < dy.count; i++)
            ((float *)dy.half)[i] = dy.wide[i] * (1 + 0x1p-14f);
    Pair dw = pair_empty(TYPE_F32, weights), db = pair_empty(TYPE_F32, (size_t)spec.out_channels);
    Pair bias = pair_random(TYPE_F32, (size_t)spec.out_channels, 3);
    float *w = master(wide, weights, type), *arena = master(half, weights, type);
    float *grads = device_alloc(device, conv_weight_count(half) * sizeof *grads);
    float *wide_grads = device_alloc(device, conv_weight_count(wide) * sizeof *grads);
    void *copy = device_alloc(device, conv_copy_bytes(half));

    conv_weights_cast(half, arena, copy);
    conv_forward(wide, x.wide, w, bias.wide, out.wide);
    conv_forward(half, x.half, copy, bias.wide, out.half);
    compare(name, &out, 2, 1e-5);
    conv_backward_weights(wide, x.wide, dy.wide, wide_grads, db.wide);
    conv_backward_weights(half, x.half, dy.half, grads, db.half);
    conv_weights_export(wide, dw.wide, wide_grads);
    conv_weights_export(half, dw.half, grads);
    compare(name, &dw, 0, 1e-5);
    compare(name, &db, 0, spec.f32_out ? 0x1p-13 : 1e-5);
    if (spec.needs_dx) {
        conv_backward_data(wide, dy.wide, w, dx.wide);
        conv_backward_data(half, dy.half, copy, dx.half);
        compare(name, &dx, 2, 1e-5);
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

// As values lie between layers: in blocks that the processor likes.
static Shape flowing(int n, int c, int h, int w)
{
    return (Shape){ n, c, h, w, c % ops->vector == 0 ? ops->vector : 1 };
}

static Shape planes(int n, int c, int h, int w) { return (Shape){ n, c, h, w, 1 }; }

static void convolutions(Type type)
{
    check_conv("7x7 stride 2 on images", (ConvSpec){ planes(2, 3, 17, 15), 16, 7, 7, 2, 3 }, type,
               0);
    check_conv("5x5 on one channel", (ConvSpec){ planes(3, 1, 9, 8), 6, 5, 5, 1, 0, true }, type,
               0);
    check_conv("5x5, blocks from one channel",
               (ConvSpec){ planes(3, 1, 9, 8), 16, 5, 5, 1, 2, true }, type, 0);
    check_conv("5x5, odd channels", (ConvSpec){ planes(2, 6, 9, 7), 5, 5, 5, 1, 2, true, true },
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
    check_conv("3x3 on images, a tail", (ConvSpec){ planes(64, 3, 8, 8), 64, 3, 3, 1, 1 }, type, 3);
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
    check_conv("3x3 on 1x1, odd", (ConvSpec){ planes(5, 3, 1, 1), 7, 3, 3, 1, 1, true, true }, type,
               0);
}

static void linear_layers(Type type)
{
    check_conv("linear of 5x5 images", (ConvSpec){ planes(3, 6, 5, 5), 12, 5, 5, 1, 0, true, true },
               type, 0);
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
    float *p[8];
    for (int i = 0; i < 8; i++)
        p[i] = half ? m->all[i].half : m->all[i].wide;
    return (NormTensors){ p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7] };
}

// Forward sees the same numbers, so its statistics are the same; what backward gives is a
// difference of sums, so its tolerance goes by the largest.
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
    compare(name, &y, 1, 1e-6);
    for (int i = 2; i < 6; i++)
        compare("statistics", &memory.all[i], 0, 0);
    ops_widen(type, count, y.half, y.wide); // where y is 0 decides: both look at the same one
    norm_backward(wide, &t[0], x.wide, y.wide, dy1.wide, two_gradients ? dy2.wide : NULL, dx.wide,
                  spec.add ? dresidual.wide : NULL);
    norm_backward(half, &t[1], x.half, y.half, dy1.half, two_gradients ? dy2.half : NULL, dx.half,
                  spec.add ? dresidual.half : NULL);
    compare(name, &dx, 1, two_gradients ? 2 * u : 1e-5);
    compare("dgamma", &memory.all[6], 0, two_gradients ? u : 1e-6);
    compare("dbeta", &memory.all[7], 0, two_gradients ? u : 1e-6);
    if (spec.add)
        compare("dresidual", &dresidual, 1, 0);
    norm_forward(wide, &t[0], x.wide, spec.add ? residual.wide : NULL, y.wide, false);
    norm_forward(half, &t[1], x.half, spec.add ? residual.half : NULL, y.half, false);
    compare("frozen norm", &y, 1, 1e-6);

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
    check_norm("norm, odd channels", (NormSpec){ planes(4, 5, 3, 3), false, true }, type, false);
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
    uint8_t *index = xmalloc(2 * outputs);
    maxpool_forward(ops, &spec, x.wide, y.wide, index);
    maxpool_forward(ops, &short_spec, x.half, y.half, index + outputs);
    compare(name, &y, 0, 0);
    EXPECT(memcmp(index, index + outputs, outputs) == 0, "%s: other places", name);
    maxpool_backward(ops, &spec, index, dy1.wide, two_gradients ? dy2.wide : NULL, dx.wide);
    maxpool_backward(ops, &short_spec, index, dy1.half, two_gradients ? dy2.half : NULL, dx.half);
    compare(name, &dx, 1, 0);
    free(index);
    Pair *pairs[] = { &x, &y, &dx, &dy1, &dy2 };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        pair_free(pairs[i]);
}

static void pooling(Type type)
{
    check_maxpool("maxpool 3x3 stride 2", (PoolSpec){ flowing(2, 16, 8, 8), 3, 2, 1 }, type, false);
    check_maxpool("maxpool 3x3, odd size", (PoolSpec){ flowing(2, 16, 7, 5), 3, 2, 1 }, type, true);
    check_maxpool("maxpool 2x2", (PoolSpec){ planes(2, 6, 6, 4), 2, 2, 0 }, type, false);
    check_maxpool("maxpool 2x2, a row left over", (PoolSpec){ planes(2, 5, 5, 7), 2, 2, 0 }, type,
                  true);

    Shape wide = flowing(3, 32, 4, 3), half = wide;
    half.type = type;
    Pair x = pair_random(type, shape_count(wide), 1), y = pair_empty(type, 3 * 32);
    Pair dy = pair_random(type, 3 * 32, 2), dx = pair_empty(type, shape_count(wide));
    avgpool_forward(ops, wide, x.wide, y.wide);
    avgpool_forward(ops, half, x.half, y.half);
    compare("avgpool", &y, 1, 0);
    avgpool_backward(ops, wide, dy.wide, dx.wide);
    avgpool_backward(ops, half, dy.half, dx.half);
    compare("avgpool backward", &dx, 1, 0);
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

// Images are what they are in f32, rounded.
static void images(Type type)
{
    enum { COUNT = 5, BYTES = 3 * 8 * 7 };
    uint8_t pixels[COUNT * BYTES];
    int32_t labels[COUNT] = { 3, 1, 4, 1, 5 }, ids[3] = { 4, 0, 2 }, got[8];
    for (int i = 0; i < COUNT * BYTES; i++)
        pixels[i] = (uint8_t)philox(1, 2, (uint64_t)i).v[0];
    Augment augment = { true, true, 2, 5, { 0.49f, 0.48f, 0.45f }, { 0.25f, 0.24f, 0.26f } };
    for (int block = 1; block <= 16; block += 15) {
        Shape wide = { 4, block == 1 ? 3 : 16, 10, 10, block }, half = wide;
        half.type = type;
        Pair x = pair_empty(type, shape_count(wide));
        memset(x.half, 0xff, shape_bytes(half));
        images_load(device_stream(device), pixels, labels, 3, 8, 7, ids, 3, 1, &augment, x.wide,
                    wide, got);
        images_load(device_stream(device), pixels, labels, 3, 8, 7, ids, 3, 1, &augment, x.half,
                    half, got + 4);
        ops_round(type, x.count, x.wide, x.wide);
        compare("images", &x, 0, 0);
        EXPECT(memcmp(got, got + 4, 4 * sizeof *got) == 0, "other labels");
        pair_free(&x);
    }
}

// ==== A training step ============================================================================

typedef struct Step {
    Model *model;
    double loss; // mean
} Step;

// Normalised values get two deviations added, up or down: few of them are then so near to ReLU's
// kink that rounding decides whether a gradient passes.
static void spread_betas(Model *model)
{
    for (int i = 1; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i], *before = t - 1;
        bool norm =
            t->kind == MODEL_VECTOR && before->kind == MODEL_VECTOR && before->layer == t->layer;
        for (int64_t c = 0; norm && c < t->count; c++)
            model->params[t->offset + (size_t)c] =
                philox(4, (uint64_t)i, (uint64_t)c).v[0] & 1 ? 2 : -2;
    }
}

static Step take_step(const char *arch, Type type, int size, float loss_scale)
{
    enum { BATCH = 32 };
    Step step = { model_new(device, ops,
                            &(ModelConfig){ arch, 3, size, size, 10, BATCH, .type = type }) };
    Model *m = step.model;
    size_t bytes = (size_t)(3 * size * size);
    uint8_t *pixels = xmalloc(BATCH * bytes);
    int32_t labels[BATCH], ids[BATCH], got[BATCH];
    for (int n = 0; n < BATCH; n++) {
        ids[n] = n;
        labels[n] = n % 10;
        for (size_t i = 0; i < bytes; i++) // a pattern for each class, and noise
            pixels[(size_t)n * bytes + i] =
                (uint8_t)(philox(1, (uint64_t)labels[n], i / 5).v[0] % 128 +
                          philox(2, (uint64_t)n, i).v[0] % 128);
    }
    Augment plain = { .mean = { 0.5f, 0.5f, 0.5f }, .std = { 0.25f, 0.25f, 0.25f } };
    void *x = device_alloc(device, shape_bytes(m->input));
    Scalars scalars = { .loss_scale = loss_scale };
    Stats stats = { 0 };
    images_load(device_stream(device), pixels, labels, 3, size, size, ids, BATCH, 0, &plain, x,
                m->input, got);
    model_init(m, 1);
    spread_betas(m);
    model_cast_weights(m);
    model_forward(m, x, BATCH, true);
    loss_cross_entropy(ops, BATCH, 10, m->logits, got, &scalars, &stats, m->dlogits);
    model_backward(m, NULL, NULL);
    step.loss = stats.loss_sum / BATCH;
    device_free(device, x);
    free(pixels);
    return step;
}

// How the gradients of all parameters, b's, agree with a's: their cosine; and how far they lead in
// that direction, where a's lead 1. Rounding turns them a little, but must not make them shorter.
typedef struct Agreement {
    double cosine, along;
} Agreement;

static Agreement compare_gradients(const Model *a, const Model *b, double loss_scale)
{
    double dot = 0, aa = 0, bb = 0;
    for (int i = 0; i < a->tensor_count; i++) {
        const ModelTensor *t = &a->tensors[i];
        if (t->kind != MODEL_WEIGHT && t->kind != MODEL_VECTOR)
            continue;
        float *x = xmalloc((size_t)t->count * sizeof *x),
              *y = xmalloc((size_t)t->count * sizeof *y);
        model_export(a, t, a->grads, x);
        model_export(b, &b->tensors[i], b->grads, y);
        for (int64_t j = 0; j < t->count; j++) {
            dot += (double)x[j] * y[j];
            aa += (double)x[j] * x[j];
            bb += (double)y[j] * y[j];
        }
        free(x);
        free(y);
    }
    return (Agreement){ dot / sqrt(aa * bb), dot / aa / loss_scale };
}

static void check_step(const char *arch, int size, Type type, float loss_scale)
{
    Step wide = take_step(arch, TYPE_F32, size, 1), half = take_step(arch, type, size, loss_scale);
    Agreement same = compare_gradients(wide.model, half.model, loss_scale);
    double bytes =
        (double)model_activation_bytes(half.model, type) /
        (double)model_activation_bytes(wide.model, TYPE_F32);
    printf("%s, %s: loss %.6f, in f32 %.6f; gradients: cosine %.5f, %.5f along f32's; "
           "%.3f of the bytes\n",
           arch, type_names[type], half.loss, wide.loss, same.cosine, same.along, bytes);
    EXPECT(model_hash(wide.model) == model_hash(half.model), "%s: other masters", arch);
    EXPECT_NEAR(half.loss / wide.loss, 1, 8 * roundoffs[type]);
    EXPECT(same.cosine > 0.99, "%s, %s: the gradients' cosine is %f", arch, type_names[type],
           same.cosine);
    EXPECT_NEAR(same.along, 1, 16 * roundoffs[type]);
    EXPECT(bytes <= 0.55, "%s, %s: %.3f of f32's bytes", arch, type_names[type], bytes);
    model_free(wide.model);
    model_free(half.model);
}

TEST(training_steps)
{
    check_step("lenet", 32, TYPE_BF16, 1);
    check_step("convnet", 28, TYPE_BF16, 1);
    check_step("resnet18", 32, TYPE_BF16, 1);
    check_step("resnet50", 32, TYPE_BF16, 1);
    check_step("lenet", 32, TYPE_F16, 1024);
    check_step("convnet", 28, TYPE_F16, 1024);
    check_step("resnet18", 32, TYPE_F16, 1024);
}

// ==== Bytes of activations =======================================================================

static Model *open_model(const char *arch, int batch, Type type)
{
    int size = strcmp(arch, "convnet") == 0 ? 28 : 32;
    return model_new(device, ops,
                     &(ModelConfig){ arch, 3, size, size, 10, batch, .type = type });
}

// A model of one type knows what it would take in each.
TEST(bytes_in_another_type)
{
    static const char *const archs[] = { "lenet", "convnet", "resnet18", "resnet50" };
    static const int batches[] = { 1, 7, 32 };
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 3; b++) {
            size_t bytes[3][3];
            for (Type own = TYPE_F32; own <= TYPE_F16; own++) {
                Model *model = open_model(archs[a], batches[b], own);
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

// What is told is what is allocated: of all that an f32 model takes, only activations grow with the
// batch. (Where a short type is emulated, scratch memory does, too.)
TEST(bytes_are_those_allocated)
{
    static const char *const archs[] = { "lenet", "convnet", "resnet18", "resnet50" };
    for (int a = 0; a < 4; a++) {
        size_t told[2], peak[2];
        Device *keep = device;
        Ops *keep_ops = ops;
        for (int k = 0; k < 2; k++) {
            device = device_open(0, 2);
            ops = ops_new(device, &(OpsConfig){ 0 });
            Model *model = open_model(archs[a], k ? 64 : 16, TYPE_F32);
            told[k] = model_activation_bytes(model, TYPE_F32);
            peak[k] = device_peak_bytes(device);
            model_free(model);
            ops_free(ops);
            device_close(device);
        }
        device = keep;
        ops = keep_ops;
        EXPECT(told[1] - told[0] == peak[1] - peak[0],
               "%s: 48 rows more are told to take %zu bytes, and take %zu", archs[a],
               told[1] - told[0], peak[1] - peak[0]);
    }
}

// ==== Without the instructions ===================================================================

static void again_without_bf16(char **argv)
{
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv("DNNL_MAX_CPU_ISA", "AVX512_CORE", 1);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    waitpid(child, &status, 0);
    EXPECT(status == 0, "without bf16 instructions: status %d", status);
}

int main(int argc, char **argv)
{
    (void)argc;
    device = device_open(0, 2);
    ops = ops_new(device, &(OpsConfig){ 0 });
    printf("bf16 is %s\n", ops_emulates(device, TYPE_BF16) ? "emulated" : "the processor's");
    EXPECT(ops_best_type(device) == (ops_emulates(device, TYPE_BF16) ? TYPE_F32 : TYPE_BF16),
           "best");
    EXPECT(!ops_emulates(device, TYPE_F32) && ops_emulates(device, TYPE_F16), "f32, f16");
    all_numbers_there_and_back();
    between_numbers();
    any_numbers();
    for (Type type = TYPE_BF16; type <= TYPE_F16; type++) {
        convolutions(type);
        linear_layers(type);
        normalisation(type);
        pooling(type);
        relu(type);
        images(type);
    }
    training_steps();
    bytes_in_another_type();
    bytes_are_those_allocated();
    if (!ops_emulates(device, TYPE_BF16))
        again_without_bf16(argv);
    ops_free(ops);
    device_close(device);
    return test_done();
}
