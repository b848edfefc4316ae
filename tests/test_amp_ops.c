// The operations for mixed precision: the loss scale, the gradients' norm and clipping, SGD. Norms and updates are
// compared with plain loops in double or long double. (AdamW: test_step.c. Conversion to 16 bits: test_types.c.)
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
        { 0, 3, 1, 65536, 0, 1 },
        { 0, 3, 1, 32768, 0, 2 },
        { 0, 3, 0, 32768, 1, 2 },
        { LOSS_SCALE_LEAST * 2, 1, 1, LOSS_SCALE_LEAST, 0, 1 },
        { 0, 1, 1, LOSS_SCALE_LEAST, 0, 2 },
        { 0x1p126f, 1, 0, 0x1p127f, 0, 0 },
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
            worst = isnan(got[i]) ? INFINITY : fmax(worst, fabs(got[i] - wanted) / fmax(fabs(wanted), FLT_MIN));
    }
    bool exact = exp2(rint(log2(factor / loss_scale))) == factor / loss_scale;
    EXPECT(worst <= (exact ? 0 : 3e-7), "scale %g, factor %g: off by %g", loss_scale, factor,
           worst);
    EXPECT_EQ_INT(read_scalars(scalars).skip, bad);
    EXPECT_EQ_INT(((Stats *)to_host(stats, sizeof *stats))->bad_gradients, bad);
    EXPECT(read_scalars(scalars).scale.value == loss_scale, "the scale itself changed");
    check_ends();
}

TEST(gradients_are_scaled_and_checked)
{
    check_scale(65536, 0.25f, 3e38, false);
    check_scale(1000, 1 / 3.0f, 5, false);
    check_scale(1024, 0.5f, -INFINITY, true);
    check_scale(65536, 1, NAN, true);
    check_scale(0.5f, 1, 3e38, true);       // overflows in the division
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

TEST(norms)
{
    static const size_t counts[] = { 1, 31, 33, 8192, 4097, 12289, 1048577 };
    static const float sizes[] = { 1, 3e38f, 1e-41f };
    for (int k = 0; k < 7; k++)
        for (int j = 0; j < 3; j++) {
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
    check_clip(1, 0, false, false);
    check_clip(1, 0.1, true, false);
    check_clip(1, 2, true, false);
    check_clip(1e-8f, 0.5, false, false);
    check_clip(1e20f, 1e-20, true, false);
    check_clip(1, 0.1, false, true);
}

TEST_MAIN_ON_DEVICE(device_share(1, 0, false), 0)
