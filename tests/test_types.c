// test_types.c - 16-bit numbers on the CPU: the conversion of every number. Also the memory that f32 activations take.
#include "check.h"
#include "ops/numbers.h"
#include "model.h"
#include "test_device.h"

#include <math.h>

typedef struct Format {
    Type type;
    int exponent_bits, mantissa_bits;
} Format;

static const Format formats[] = { { TYPE_BF16, 8, 7 }, { TYPE_F16, 5, 10 } };

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

// The nearest number; ties go to the even one. Infinity counts as the number that would come after the largest.
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

TEST(all_numbers_to_f32_and_back)
{
    static uint16_t all[65536], back[65536];
    static float wide[65536];
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int k = 0; k < 2; k++) {
        const Format *f = &formats[k];
        int wrong = 0, changed = 0;
        values_widen(ops, device_stream(device), f->type, 65536, all, wide);
        values_narrow(ops, device_stream(device), f->type, 65536, wide, 1, back);
        for (int i = 0; i < 65536; i++) {
            wrong +=
                !same_number(f, i, wide[i]) || !same_number(f, i, load_one(f->type, all, (size_t)i));
            wrong += !same_number(f, i, rounded(f->type, wide[i]));
            changed +=
                wide[i] == wide[i] ? back[i] != i : value_of(f, back[i]) == value_of(f, back[i]);
            changed += (back[i] ^ i) >> 15; // the sign of a NaN must also stay
        }
        EXPECT(wrong == 0, "%s: %d numbers are widened wrong", type_names[f->type], wrong);
        EXPECT(changed == 0, "%s: %d numbers changed on the way", type_names[f->type], changed);
    }
}

static int wrong_roundings(const Format *f, const float *values, int count)
{
    uint16_t *loop = xmalloc((size_t)count * sizeof *loop), one[2] = { 0 }; // room for an f32
    int wrong = 0;
    values_narrow(ops, device_stream(device), f->type, (size_t)count, values, 1, loop);
    for (int i = 0; i < count; i++) {
        int wanted = nearest(f, values[i]);
        store_one(f->type, one, 0, values[i]);
        if (values[i] != values[i])
            wrong += value_of(f, loop[i]) == value_of(f, loop[i]) || one[0] != loop[i];
        else
            wrong += loop[i] != wanted || one[0] != wanted;
    }
    free(loop);
    return wrong;
}

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
        EXPECT(wrong == 0, "%s: %d of %d rounded wrong", type_names[f->type], wrong, count);
        free(values);
    }
}

TEST(special_numbers)
{
    static const float special[] = { 0, -0.0f, INFINITY, -INFINITY, NAN, -NAN, 65504, 65519.996f,
                                     65520, 65536, 3.3895314e38f, 3.4e38f, 1e-45f, 0x1p-24f,
                                     0x1p-25f, 0x1.8p-25f, 0x1p-14f };
    for (int k = 0; k < 2; k++)
        EXPECT_EQ_INT(wrong_roundings(&formats[k], special, sizeof special / sizeof *special), 0);
}

// Here only activations grow with the batch. With an emulated 16-bit type, scratch memory would grow, too.
TEST(activation_bytes_are_those_allocated)
{
    static const char *const archs[] = { "lenet", "convnet", "resnet18", "resnet50" };
    for (int a = 0; a < 4; a++) {
        size_t expected[2], peak[2];
        for (int k = 0; k < 2; k++) {
            Device *own = device_open(0, 1);
            Ops *own_ops = ops_new(own, &(OpsConfig){ 0 });
            int size = strcmp(archs[a], "convnet") == 0 ? 28 : 32;
            ModelConfig config = { archs[a], 3, size, size, 10, k ? 64 : 16 };
            Model *model = model_new(own, own_ops, &config);
            expected[k] = model->activation_bytes;
            peak[k] = device_peak_bytes(own);
            model_free(model);
            ops_free(own_ops);
            device_close(own);
        }
        EXPECT(expected[1] - expected[0] == peak[1] - peak[0],
               "%s: 48 more rows should take %zu bytes, but take %zu", archs[a],
               expected[1] - expected[0], peak[1] - peak[0]);
    }
}

TEST_MAIN_ON_DEVICE(1, 0)
