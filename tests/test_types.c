// test_types.c - 16-bit numbers on the CPU: the conversion of every number.
#include "ops/numbers.h"
#include "test_device.h"

#include <math.h>

typedef struct Format {
    Type type;
    int exponent_bits, mantissa_bits;
} Format;

static const Format formats[] = { { TYPE_BF16, 8, 7 }, { TYPE_F16, 5, 10 } };

static int infinity_of(const Format *f) { return ((1 << f->exponent_bits) - 1) << f->mantissa_bits; }

// Unless `strict`, infinity counts as the number that would come after the largest.
static double value_of(const Format *f, int bits, bool strict)
{
    int mantissa = bits & ((1 << f->mantissa_bits) - 1), exponent = (bits & 0x7fff) >> f->mantissa_bits;
    int all = (1 << f->exponent_bits) - 1, unit = exponent - all / 2 - f->mantissa_bits;
    double sign = bits & 0x8000 ? -1 : 1;
    if (strict && exponent == all)
        return mantissa ? NAN : sign * INFINITY;
    return sign * (exponent == 0 ? ldexp(mantissa, unit + 1) : ldexp(mantissa + (1 << f->mantissa_bits), unit));
}

static bool same(double value, double wanted)
{
    return (value == wanted && !signbit(value) == !signbit(wanted)) || (isnan(value) && isnan(wanted));
}

TEST(all_numbers_to_f32_and_back)
{
    static uint16_t all[65536], back[65536];
    static float wide[65536];
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (const Format *f = formats; f < formats + 2; f++) {
        int wrong = 0;
        values_widen(device_stream(device), f->type, 65536, all, wide);
        values_narrow(device_stream(device), f->type, 65536, wide, 1, back);
        for (int i = 0; i < 65536; i++) {
            double value = value_of(f, i, true);
            wrong += !same(wide[i], value) || !same(load_one(f->type, all, (size_t)i), value)
                     || !same(rounded(f->type, wide[i]), value);
            wrong += isnan(value) ? !isnan(value_of(f, back[i], true)) : back[i] != i;
            wrong += (back[i] ^ i) >> 15;       // the sign of a NaN must also stay
        }
        EXPECT(wrong == 0, "%s: %d mistakes", type_names[f->type], wrong);
    }
}

// Halfway between two numbers, the even one is the nearest.
TEST(between_numbers)
{
    enum { MOST = 6 << 15 };
    static float values[MOST];
    static uint16_t wanted[MOST], loop[MOST], one[2];
    for (const Format *f = formats; f < formats + 2; f++) {
        int n = 0, wrong = 0;
        for (int i = 0; i < infinity_of(f); i++)
            for (int sign = 0; sign <= 0x8000; sign += 0x8000) {
                float m = (float)((value_of(f, i, false) + value_of(f, i + 1, false)) / (sign ? -2 : 2));
                const float three[] = { m, nextafterf(m, 2 * m), nextafterf(m, 0) };
                const int nearest[] = { i + i % 2, i + 1, i };
                for (int k = 0; k < 3; k++) {
                    values[n] = three[k];
                    wanted[n++] = (uint16_t)(sign | nearest[k]);
                }
            }
        values_narrow(device_stream(device), f->type, (size_t)n, values, 1, loop);
        for (int i = 0; i < n; i++) {
            store_one(f->type, one, 0, values[i]);
            wrong += (loop[i] != wanted[i]) + (one[0] != wanted[i]);
        }
        EXPECT(wrong == 0, "%s: %d of %d rounded wrong", type_names[f->type], wrong, n);
    }
}

TEST_MAIN_ON_DEVICE(1, 0)
