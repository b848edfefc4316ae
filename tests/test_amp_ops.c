// The operations for mixed precision: the loss in several calls, the loss scale, the gradients' norm and clipping, the
// updates, conversion to 16 bits and back. Norms and updates are compared with plain loops in double or long double.
//
// ctest: PROCESSORS 2 BACKENDS cpu cuda fake SANITIZERS asan tsan
#include "arrays.h"
#include "check.h"

#include <float.h>
#include <stddef.h>

static Stream *beside;

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

// ==== A loss in several calls ====================================================================

enum { ROWS = 37, PART = 16, CLASSES = 11 };

// A batch, and its loss computed in one call, which test_ops.c tests.
typedef struct Batch {
    int rows, counted;
    float *logits, *dlogits;
    int32_t *labels;
    Stats stats;
    float *wanted;                  // dlogits for a loss scale of 1
} Batch;

static Batch batch_new(int rows, int unlabelled, int key)
{
    Batch b = { .rows = rows };
    size_t bytes = (size_t)(rows * CLASSES) * sizeof(float);
    int32_t labels[ROWS];
    for (int i = 0; i < rows; i++) {
        labels[i] = i < unlabelled || i % 9 == 4 ? -1 : (i * 5 + key) % CLASSES;
        b.counted += labels[i] >= 0;
    }
    b.logits = to_device(random_floats((size_t)(rows * CLASSES), key, 3), bytes);
    b.labels = to_device(labels, (size_t)rows * sizeof *labels);
    b.dlogits = memory(bytes);
    Stats *stats = memory(sizeof *stats);
    Scalars *scalars = new_scalars((Scalars){ .scale.value = 1 });
    loss_cross_entropy(ops, rows, CLASSES, b.logits, b.labels, scalars, stats, b.dlogits);
    b.stats = read_stats(stats);
    b.wanted = to_host(b.dlogits, bytes);
    EXPECT_EQ_INT(read_scalars(scalars).rows_done, 0);
    EXPECT_EQ_INT(b.stats.batch_count, b.counted);
    fill_zero(device_stream(device), b.dlogits, bytes);
    return b;
}

static void part_loss(const Batch *b, int from, Scalars *scalars, Stats *stats, bool training)
{
    int left = b->rows - from, rows = left < PART ? left : PART;
    loss_cross_entropy(ops, rows, CLASSES, b->logits + from * CLASSES, b->labels + from, scalars,
                       stats, training ? b->dlogits + from * CLASSES : NULL);
}

static void loss_in_parts(const Batch *b, Scalars *scalars, Stats *stats)
{
    for (int from = 0; from < b->rows; from += PART)
        part_loss(b, from, scalars, stats, true);
}

// Wanted: b's gradients times `scale` (0: any gradients), and b's statistics. The totals also include `before` (NULL:
// no batch).
static void expect_batch(const char *what, const Batch *b, const Batch *before, double scale,
                         const Stats *there)
{
    size_t count = (size_t)(b->rows * CLASSES);
    const float *got = to_host(b->dlogits, count * sizeof *got);
    const Stats s = read_stats(there), none = { 0 }, *old = before ? &before->stats : &none;
    double worst = 0;
    for (size_t i = 0; i < count && scale > 0; i++)
        worst = fmax(worst, fabs(got[i] / scale - b->wanted[i]) * b->counted);
    EXPECT(worst <= 1e-6, "%s: gradients are off by up to %g", what, worst);
    EXPECT_NEAR(s.batch_loss_sum, b->stats.batch_loss_sum, 1e-5 * b->stats.batch_loss_sum);
    EXPECT_NEAR(s.loss_sum, b->stats.loss_sum + old->loss_sum, 1e-5 * s.loss_sum);
    EXPECT(s.batch_count == b->counted && s.batch_correct1 == b->stats.batch_correct1 &&
               s.count == b->counted + old->count &&
               s.correct1 == b->stats.correct1 + old->correct1 &&
               s.correct5 == b->stats.correct5 + old->correct5 && s.not_finite == 0,
           "%s: %lld rows of %lld, %lld of %lld right", what, (long long)s.batch_count,
           (long long)s.count, (long long)s.batch_correct1, (long long)s.correct1);
}

// A batch in parts of 16, 16 and 5 rows, then one of 16 and 5. If the second batch's first part has no labels, the
// first batch must not be counted again.
TEST(a_loss_in_parts)
{
    for (int unlabelled = 0; unlabelled <= PART; unlabelled += PART) {
        Batch first = batch_new(ROWS, 0, 1), tail = batch_new(21, unlabelled, 2);
        Scalars *scalars = new_scalars((Scalars){ .scale.value = 8, .set.rows_of_batch = first.counted });
        Stats *stats = memory(sizeof *stats);
        loss_in_parts(&first, scalars, stats);
        expect_batch("in parts", &first, NULL, 8, stats);
        EXPECT_EQ_INT(read_scalars(scalars).rows_done, first.counted);
        scalars_set(ops, scalars, (StepSettings){ .rows_of_batch = tail.counted });
        loss_in_parts(&tail, scalars, stats);
        expect_batch("the tail", &tail, &first, 8, stats);
        check_ends();
    }
}

TEST(evaluation_leaves_the_window_alone)
{
    Batch b = batch_new(ROWS, 0, 5), test = batch_new(PART, 0, 6);
    Scalars *scalars = new_scalars((Scalars){ .scale.value = 4, .set.rows_of_batch = b.counted });
    Stats *stats = memory(sizeof *stats);
    for (int from = 0; from < ROWS; from += PART) {
        Stats *test_stats = memory(sizeof *stats);
        part_loss(&b, from, scalars, stats, true);
        int32_t done = read_scalars(scalars).rows_done;
        part_loss(&test, 0, scalars, test_stats, false);
        EXPECT_EQ_INT(read_scalars(scalars).rows_done, done);
        expect_batch("the evaluation", &test, NULL, 0, test_stats);
    }
    expect_batch("evaluating meanwhile", &b, NULL, 4, stats);
    check_ends();
}

// ==== The loss scale =============================================================================

TEST(the_loss_scale_survives_scalars_set)
{
    Scalars *scalars = new_scalars((Scalars){ .set.rows_of_batch = 9, .scale = { 1024, 5, 3 }, .rows_done = 4,
                                              .skip = 1, .norm = 2 });
    StepSettings settings = { .lr = 0.5f, .momentum = 0.25f, .weight_decay = 0.125f, .nesterov = 1,
                              .smoothing = 0.1f, .clip_norm = 7, .rows_of_batch = 30 };
    scalars_set(ops, scalars, settings);
    Scalars s = read_scalars(scalars);
    EXPECT(s.scale.value == 1024 && s.scale.clean == 5 && s.scale.skipped == 3, "kept: %g, %d, %d",
           s.scale.value, s.scale.clean, s.scale.skipped);
    // without the padding at the end
    size_t bytes = offsetof(StepSettings, rows_of_batch) + sizeof settings.rows_of_batch;
    EXPECT(memcmp(&s.set, &settings, bytes) == 0, "a value was not set");
    EXPECT(s.rows_done == 0 && s.skip == 0 && s.norm == 0, "not 0: %d, %d, %g", s.rows_done, s.skip, s.norm);
    check_ends();
}

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
static void check_scale(Stream *stream, float loss_scale, float factor, double odd, bool bad)
{
    float *grads = random_floats(SCALED, 7, loss_scale);
    grads[517] = (float)odd;
    float *there = to_device(grads, SCALED * sizeof *grads);
    Scalars *scalars = new_scalars((Scalars){ .scale.value = loss_scale });
    Stats *stats = memory(sizeof *stats);
    stream_sync(device_stream(device));
    values_scale(stream, there + 512, SCALED - 512, factor);
    values_scale(stream, there, 512, factor);
    stream_sync(stream);
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
    Stream *streams[] = { device_stream(device), beside };
    for (int i = 0; i < 2; i++) {
        check_scale(streams[i], 65536, 1, 3, false);
        check_scale(streams[i], 65536, 0.25f, 65504, false);
        check_scale(streams[i], 1000, 1 / 3.0f, 5, false);
        check_scale(streams[i], 65536, 1, 3e38, false);
        check_scale(streams[i], 65536, 1, INFINITY, true);
        check_scale(streams[i], 1024, 0.5f, -INFINITY, true);
        check_scale(streams[i], 65536, 1, NAN, true);
        check_scale(streams[i], 0.5f, 1, 3e38, true);       // overflows in the division
        check_scale(streams[i], 0.5f, 0.25f, 3e38, false);
        check_scale(streams[i], LOSS_SCALE_LEAST, 1, -1e32, true);
    }
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

TEST(norms_see_every_gradient)
{
    static const size_t sizes[] = { 1, 300, 8200 };
    for (int k = 0; k < 3; k++) {
        float *grads = host_memory(sizes[k] * sizeof *grads);
        int wrong = norm_of(grads, sizes[k]) != 0;
        for (size_t i = 0; i < sizes[k]; i += sizes[k] > 300 ? 97 : 1) {
            grads[i] = -3;
            wrong += norm_of(grads, sizes[k]) != 3;
            grads[i] = NAN;
            wrong += !isnan(norm_of(grads, sizes[k]));
            grads[i] = -INFINITY;
            wrong += norm_of(grads, sizes[k]) != INFINITY;
            grads[i] = 0;
        }
        EXPECT(wrong == 0, "%d norms of %zu gradients are wrong", wrong, sizes[k]);
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

static bool same(double a, double b)
{
    return isnan(b) ? isnan(a) : a == b && !signbit(a) == !signbit(b);
}

static float *various_floats(size_t count)
{
    static const float special[] = { 0, -0.0f, 1, INFINITY, -INFINITY, NAN, 65504, 65519, 65520,
                                     -131008, 3.4e38f, -3.39e38f, 6e-8f, 2.9e-8f, 3e-8f, 1e-45f };
    float *values = host_memory(count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = i < sizeof special / sizeof *special && count > 1
                        ? special[i]
                        : ldexpf(random_of(51, i), (int)(i % 60) - 40);
    return values;
}

enum { GUARD = 0x5a };

// Narrows on stream `there`, then widens on `back`, skipping the first `from` elements. Compares both results with the
// conversions of ops/numbers.h, and checks that nothing outside the range is written.
static void check_short(Type type, size_t count, size_t from, float factor, Stream *there,
                        Stream *back)
{
    size_t rest = count - from, wrong = 0, wide_bytes = (count + 1) * sizeof(float);
    size_t short_bytes = (count + 1) * sizeof(uint16_t);
    float *values = various_floats(count), *guards = host_memory(wide_bytes);
    memset(guards, GUARD, wide_bytes);
    float *source = to_device(values, count * sizeof *values);
    float *again = to_device(guards, wide_bytes);
    uint16_t *narrow = to_device(guards, short_bytes);
    Event *narrowed = event_new(device);

    values_narrow(ops, there, type, rest, source + from, factor, narrow + from);
    event_record(narrowed, there);
    stream_wait(back, narrowed);
    values_widen(ops, back, type, rest, narrow + from, again + from);
    stream_sync(back);
    uint16_t *half = to_host(narrow, short_bytes);
    float *wide = to_host(again, wide_bytes), *kept = to_host(source, count * sizeof *kept);
    for (size_t i = from; i < count; i++) {
        float wanted = rounded(type, values[i] * factor);
        wrong += !same(load_one(type, half, i), wanted) || !same(wide[i], wanted);
    }
    EXPECT(wrong == 0, "type %d: %zu of %zu numbers times %g are wrong", type, wrong, rest, factor);
    EXPECT(memcmp(kept, values, count * sizeof *kept) == 0, "the source changed");
    EXPECT(memcmp(half, guards, from * sizeof *half) == 0 &&
               memcmp(half + count, guards, sizeof *half) == 0 &&
               memcmp(wide, guards, from * sizeof *wide) == 0 &&
               memcmp(wide + count, guards, sizeof *wide) == 0,
           "more than %zu numbers from %zu were written", rest, from);
    event_free(narrowed);
    check_ends();
}

TEST(narrowing_and_widening)
{
    static const size_t sizes[] = { 1, 2, 7, 31, 1031, 4095, 4097, 100003 };
    static const float factors[] = { 1, 0.25f, 1 / 3.0f, 1024 };
    for (Type type = TYPE_BF16; type <= TYPE_F16; type++)
        for (int i = 0; i < 8; i++) {
            Stream *compute = device_stream(device), *there = i % 2 ? beside : compute;
            Stream *back = i % 4 < 2 ? beside : compute;
            for (int j = 0; j < 4; j++)
                check_short(type, sizes[i], 0, factors[j], there, back);
            if (sizes[i] > 8)       // arrays begin at multiples of 16 bytes
                check_short(type, sizes[i], 8, 0.5f, there, back);
        }
}

int main(void)
{
    test_open_device(device_share(1, 0, false), (OpsConfig){ 0 });
    beside = stream_new_beside(device, "beside");
    test_all();
    stream_free(beside);
    test_close_device();
    return test_done();
}
