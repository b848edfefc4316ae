// The operations for mixed precision: the loss scale, the gradients' norm and clipping, the updates, conversion to 16
// bits and back. Norms and updates are compared with plain loops in double or long double.
//
// ctest: PROCESSORS 2 BACKENDS cpu cuda fake SANITIZERS asan tsan
#include "arrays.h"
#include "check.h"

#include <float.h>

static float random_of(int key, size_t i)
{
    return 2 * uniform_of(philox(11, (uint64_t)key, i).v[0]) - 1;
}

static float *random_floats(size_t count, int key, float size)
{
    float *values = host_memory(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = size * random_of(key, i);
    return values;
}

static Scalars read_scalars(const Scalars *there)
{
    return *(Scalars *)to_host(there, sizeof *there);
}

static Stats read_stats(const Stats *there) { return *(Stats *)to_host(there, sizeof *there); }

static Scalars *new_scalars(Scalars values) { return to_device(&values, sizeof values); }

// ==== The loss scale =============================================================================

static Scalars step(Scalars *scalars, bool overflow, int interval)
{
    float value = overflow ? INFINITY : 1, *grad = to_device(&value, sizeof value);
    Stats *stats = memory(sizeof *stats);
    scalars_set(ops, scalars, (StepSettings){ .lr = 0.1f });
    gradients_check(ops, 1, grad, scalars, stats);
    loss_scale_adapt(ops, scalars, interval);
    return read_scalars(scalars);
}

TEST(the_loss_scale_adapts)
{
    static const struct {
        float start;        // scale before the step; 0: the previous step's
        int interval;
        bool overflow;
        float scale;
        int clean, skipped;
    } steps[] = {
        { 65536, 3, 0, 65536, 1, 0 },
        { 0, 3, 0, 65536, 2, 0 },
        { 0, 3, 0, 131072, 0, 0 },
        { 0, 3, 0, 131072, 1, 0 },
        { 0, 3, 0, 131072, 2, 0 },
        { 0, 3, 1, 65536, 0, 1 },
        { 0, 3, 0, 65536, 1, 1 },
        { 0, 3, 1, 32768, 0, 2 },
        { 0, 3, 1, 16384, 0, 3 },
        { 0, 3, 0, 16384, 1, 3 },
        { LOSS_SCALE_LEAST * 4, 1, 1, LOSS_SCALE_LEAST * 2, 0, 1 },
        { 0, 1, 1, LOSS_SCALE_LEAST, 0, 2 },
        { 0, 1, 1, LOSS_SCALE_LEAST, 0, 3 },
        { 0x1p125f, 1, 0, 0x1p126f, 0, 0 },
        { 0, 1, 0, 0x1p127f, 0, 0 },
        { 0, 1, 0, 0x1p127f, 0, 0 },
    };
    Scalars *scalars = NULL;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (steps[i].start > 0)
            scalars = new_scalars((Scalars){ .scale.value = steps[i].start });
        Scalars s = step(scalars, steps[i].overflow, steps[i].interval);
        EXPECT(s.scale.value == steps[i].scale && s.scale.clean == steps[i].clean &&
                   s.scale.skipped == steps[i].skipped && s.skip == steps[i].overflow,
               "step %zu: scale %g, clean %d, skipped %d, skip %d", i, s.scale.value,
               s.scale.clean, s.scale.skipped, s.skip);
    }
    check_ends();
}

// ==== Scaling the gradients ======================================================================

enum { SCALED = 1031 };

// Scales gradients in two pieces, the second first, like buckets. odd: the value of one gradient;
// bad: the result for this gradient is not finite.
static void check_scale(float loss_scale, float factor, double odd, bool bad)
{
    Stream *stream = device_stream(device);
    float *grads = random_floats(SCALED, 7, loss_scale);
    grads[517] = (float)odd;
    float *there = to_device(grads, SCALED * sizeof *grads);
    Scalars *scalars = new_scalars((Scalars){ .scale.value = loss_scale });
    Stats *stats = memory(sizeof *stats);
    values_scale(stream, there + 512, SCALED - 512, factor);
    values_scale(stream, there, 512, factor);
    gradients_unscale(ops, SCALED, there, scalars);
    gradients_check(ops, SCALED, there, scalars, stats);
    float *got = to_host(there, SCALED * sizeof *got);
    double worst = 0;
    for (int i = 0; i < SCALED; i++) {
        double wanted = grads[i] * (double)factor / loss_scale;
        if (i != 517 || !bad)
            worst = fmax(worst, fabs(got[i] - wanted) / fmax(fabs(wanted), FLT_MIN));
    }
    bool exact = exp2(rint(log2(factor / loss_scale))) == factor / loss_scale;
    EXPECT(worst <= (exact ? 0 : 3e-7), "scale %g, factor %g: off by %g", loss_scale, factor,
           worst);
    EXPECT_EQ_INT(read_scalars(scalars).skip, bad);
    EXPECT_EQ_INT(read_stats(stats).bad_gradients, bad);
    EXPECT(read_scalars(scalars).scale.value == loss_scale, "the scale itself changed");
    check_ends();
}

TEST(gradients_are_scaled_and_checked)
{
    check_scale(65536, 1, 3, false);
    check_scale(65536, 0.25f, 65504, false);
    check_scale(1000, 1 / 3.0f, 5, false);
    check_scale(65536, 1, 3e38, false);
    check_scale(65536, 1, INFINITY, true);
    check_scale(1024, 0.5f, -INFINITY, true);
    check_scale(65536, 1, NAN, true);
    check_scale(0.5f, 1, 3e38, true);       // overflows in the division
    check_scale(0.5f, 0.25f, 3e38, false);
    check_scale(LOSS_SCALE_LEAST, 1, -1e32, true);
}

// ==== The norm, and clipping =====================================================================

static double norm_of(const float *grads, size_t count)
{
    Scalars *scalars = new_scalars((Scalars){ .scale.value = 1, .norm = -1 });
    gradients_norm(ops, count, to_device(grads, count * sizeof *grads), scalars);
    Scalars s = read_scalars(scalars);
    EXPECT(s.skip == 0 && s.scale.value == 1, "gradients_norm changed other scalars");
    return s.norm;
}

static const size_t counts[] = { 1,    7,    31,   32,   33,   255,   256,    8191,
                                 8192, 8193, 4095, 4096, 4097, 12289, 1000000, 1048577 };
enum { COUNTS = sizeof counts / sizeof *counts };

TEST(norms)
{
    static const float sizes[] = { 1, 1e30f, 3e38f, 1e-30f, 1e-41f };
    for (int k = 0; k < COUNTS; k++)
        for (int j = 0; j < 5; j++) {
            float *grads = random_floats(counts[k], k, sizes[j]);
            long double sum = 0;
            for (size_t i = 0; i < counts[k]; i++)
                sum += (long double)grads[i] * grads[i];
            double wanted = (double)sqrtl(sum), got = norm_of(grads, counts[k]);
            EXPECT(fabs(got - wanted) <= 1e-13 * wanted, "%zu of size %g: %.17g, wanted %.17g",
                   counts[k], sizes[j], got, wanted);
            check_ends();
        }
}

// Ranks must clip alike.
TEST(norms_do_not_depend_on_threads)
{
    const char *limit = getenv("OMP_NUM_THREADS");
    int most = limit ? atoi(limit) : 5, other = 0;
    double first[COUNTS];
    for (int threads = 1; threads <= most; threads++) {
        Device *one = device_open(0, threads);
        for (int k = 0; k < COUNTS; k++) {
            float *grads = random_floats(counts[k], 20 + k, 1);
            double norm = norm_of(grads, counts[k]);
            if (threads == 1)
                first[k] = norm;
            other += memcmp(&norm, &first[k], sizeof norm) != 0;
            check_ends();
        }
        device_close(one);
    }
    device_use(device);
    EXPECT(other == 0, "%d norms depend on the number of threads", other);
}

static void sgd_plain(size_t count, size_t grad_count, const float *grads, double clip,
                      bool nesterov, double *p, double *v)
{
    double squares = 0;
    for (size_t i = 0; i < grad_count; i++)
        squares += (double)grads[i] * grads[i];
    double shrink = clip > 0 ? fmin(1, clip / (sqrt(squares) + 1e-6)) : 1;
    for (size_t i = 0; i < count; i++) {
        double g = shrink * (i < grad_count ? grads[i] : 0) + 0.01 * p[i];
        v[i] = 0.9 * v[i] + g;
        p[i] -= 0.05 * (nesterov ? g + 0.9 * v[i] : v[i]);
    }
}

// Gradients of up to `size`, clipped to `clip` times their norm (0: not clipped). Without `nesterov`, the last
// parameters have no gradient.
static void check_clip(float size, double clip, bool nesterov, bool skip)
{
    enum { COUNT = 5003 };
    const size_t with = nesterov ? COUNT : 4001;
    double *p = random_numbers(TYPE_F32, COUNT, 41), *v = zeros(COUNT);
    float *grads = random_floats(COUNT, 42, size), *old = random_floats(COUNT, 43, size);
    for (int i = 0; i < COUNT; i++)
        v[i] = old[i];
    float *params = activation(row(COUNT), p), *velocity = activation(row(COUNT), v);
    float *there = to_device(grads, with * sizeof *grads);
    double norm = norm_of(grads, with), tolerance = skip ? 0 : 5e-7;
    float limit = (float)(clip * norm);
    Scalars *scalars = new_scalars((Scalars){
        .set = { .lr = 0.05f, .momentum = 0.9f, .weight_decay = 0.01f, .nesterov = nesterov,
                 .clip_norm = limit },
        .scale.value = 1, .skip = skip });
    gradients_norm(ops, with, there, scalars);
    EXPECT(read_scalars(scalars).norm == norm, "the norm differs the second time");
    sgd_update(ops, COUNT, with, params, there, velocity, scalars);
    if (!skip)
        sgd_plain(COUNT, with, grads, limit, nesterov, p, v);
    expect_near("parameters", row(COUNT), params, p, 0, tolerance);
    expect_near("velocity", row(COUNT), velocity, v, 0, tolerance);
    check_ends();
}

// For tiny norms, the 1e-6 that torch adds to the norm matters.
TEST(clipping)
{
    for (int nesterov = 0; nesterov < 2; nesterov++) {
        check_clip(1, 0, nesterov, false);
        check_clip(1, 0.1, nesterov, false);
        check_clip(1, 1, nesterov, false);
        check_clip(1, 2, nesterov, false);
        check_clip(1e-8f, 1, nesterov, false);
        check_clip(1e-8f, 0.5, nesterov, false);
        check_clip(1e20f, 1e-20, nesterov, false);
        check_clip(1, 0.1, nesterov, true);
    }
}

// ==== AdamW ======================================================================================

static void adamw_plain(size_t count, size_t grad_count, const float *grads, double shrink, int64_t t,
                        const uint8_t *decays, double *p, double *m, double *v)
{
    for (size_t i = 0; i < count; i++) {
        double g = shrink * (i < grad_count ? grads[i] : 0);
        p[i] *= decays[i / PARAM_ALIGN] ? 1 - 0.05 * 0.1 : 1;
        m[i] = 0.9 * m[i] + (1 - 0.9) * g;
        v[i] = 0.999 * v[i] + (1 - 0.999) * g * g;
        p[i] -= 0.05 / (1 - pow(0.9, (double)t)) * m[i] / (sqrt(v[i] / (1 - pow(0.999, (double)t))) + 1e-8);
    }
}

// Ten steps, of which the fourth and the fifth are skipped. Every third group of parameters does not decay, and the
// last ones have no gradient. The optimizer has made `before` updates already.
static void check_adamw(int64_t before, double clip, float size)
{
    enum { COUNT = 313 * PARAM_ALIGN, WITH = 250 * PARAM_ALIGN };
    uint8_t *decays = host_memory(COUNT / PARAM_ALIGN);
    double *p = random_numbers(TYPE_F32, COUNT, 61), *m = zeros(COUNT), *v = zeros(COUNT);
    for (int i = 0; i < COUNT / PARAM_ALIGN; i++)
        decays[i] = i % 3 != 0;
    float *params = activation(row(COUNT), p), *mean = activation(row(COUNT), m);
    float *square = activation(row(COUNT), v);
    const uint8_t *flags = to_device(decays, COUNT / PARAM_ALIGN);
    Scalars *scalars = new_scalars((Scalars){ .scale.value = 1, .scale.skipped = 7 });
    Stats *stats = memory(sizeof *stats);
    int64_t updates = before;
    for (int step = 0; step < 10; step++) {
        float *grads = random_floats(WITH, 62 + step, size);
        bool bad = step == 3 || step == 4;
        double squares = 0;
        for (int i = 0; i < WITH; i++)
            squares += (double)grads[i] * grads[i];
        double limit = clip * sqrt(squares), shrink = fmin(1, limit / (sqrt(squares) + 1e-6));
        grads[100] = bad ? INFINITY : grads[100];
        float *there = to_device(grads, WITH * sizeof *grads);
        scalars_set(ops, scalars, (StepSettings){
            .lr = 0.05f, .weight_decay = 0.1f, .betas = { 0.9, 0.999 }, .clip_norm = (float)limit,
            .step = before + 7 + step + 1 });
        gradients_check(ops, WITH, there, scalars, stats);
        gradients_norm(ops, WITH, there, scalars);
        adamw_update(ops, COUNT, WITH, params, there, mean, square, flags, scalars);
        loss_scale_adapt(ops, scalars, 1000);
        if (!bad)
            adamw_plain(COUNT, WITH, grads, clip > 0 ? shrink : 1, ++updates, decays, p, m, v);
    }
    EXPECT_EQ_INT(read_scalars(scalars).scale.skipped, 7 + 2);
    expect_near("parameters", row(COUNT), params, p, 1e-6, 1e-6);
    expect_near("mean", row(COUNT), mean, m, 0, 1e-6);
    expect_near("square", row(COUNT), square, v, 0, 1e-6);
    check_ends();
}

TEST(adamw)
{
    check_adamw(0, 0, 1);
    check_adamw(0, 0.1, 1);
    check_adamw(0, 0, 1e-7f);       // epsilon matters
    check_adamw(1000, 0.5, 1);
    check_adamw(INT32_MAX - 12, 0, 1);
    check_adamw(INT64_C(1) << 32, 0, 1);
}

// ==== Conversion to 16 bits and back =============================================================

// test_types.c converts every number. Here arrays have odd lengths, and numbers a factor.
static void check_short(Type type, size_t count, float factor)
{
    float *values = random_floats(count, 51, 3);
    uint16_t *narrow = memory(count * sizeof *narrow);
    float *again = memory(count * sizeof *again);
    size_t wrong = 0;
    values_narrow(ops, device_stream(device), type, count, to_device(values, count * sizeof *values),
                  factor, narrow);
    values_widen(ops, device_stream(device), type, count, narrow, again);
    const uint16_t *half = to_host(narrow, count * sizeof *half);
    const float *wide = to_host(again, count * sizeof *wide);
    for (size_t i = 0; i < count; i++) {
        float wanted = rounded(type, values[i] * factor);
        wrong += load_one(type, half, i) != wanted || wide[i] != wanted;
    }
    EXPECT(wrong == 0, "type %d: %zu of %zu numbers times %g are wrong", type, wrong, count, factor);
    check_ends();
}

TEST(narrowing_and_widening)
{
    static const size_t sizes[] = { 1, 2, 7, 31, 1031, 4095, 4097, 100003 };
    for (Type type = TYPE_BF16; type <= TYPE_F16; type++)
        for (int i = 0; i < 8; i++) {
            check_short(type, sizes[i], 1);
            check_short(type, sizes[i], 1 / 3.0f);
        }
}

int main(void)
{
    test_open_device(device_share(1, 0, false), (OpsConfig){ 0 });
    test_all();
    test_close_device();
    return test_done();
}
