// The operations of a transformer in every type, against plain loops in double.
//
// ctest: PROCESSORS 2 BACKENDS cpu cuda fake
//
// Inputs are values that the type represents exactly. A result may usually be off by its own rounding (roundoffs[])
// plus a small part of the largest result. In 16-bit types attention's part is larger: it multiplies rounded
// probabilities. On a CPU with bf16 instructions, bf16 is tested again without them.
#include "arrays.h"

#include <errno.h>

static Type type;           // of the activations

static Shape matrix(int rows, int c) { return (Shape){ rows, c, 1, 1, type }; }

static uint64_t *random_keys(int samples)
{
    uint64_t *keys = host_memory((size_t)samples * sizeof *keys);
    for (int i = 0; i < samples; i++)
        keys[i] = (uint64_t)philox(3, 1, (uint64_t)i).v[0] << 32 | philox(3, 1, (uint64_t)i).v[1];
    return keys;
}

// The factor by which dropout multiplies the number at this position of a sample. keys NULL: no dropout.
static double factor(const uint64_t *keys, int sample, Dropout d, size_t position)
{
    if (!keys)
        return 1;
    bool keeps = dropout_keeps(dropout_stream(keys[sample], d.layer), (uint32_t)position,
                               dropout_limit(d.rate));
    return keeps ? 1 / (1 - (double)d.rate) : 0;
}

// Masks of two samples or layers, or a mask and itself shifted, agree only as often as by chance.
static void dropout_masks(void)
{
    enum { COUNT = 1 << 18 };
    const uint32_t limit = dropout_limit(0.3f);
    const uint64_t streams[] = { dropout_stream(0, 0), dropout_stream(1, 0), dropout_stream(0, 1),
                                 dropout_stream(1ull << 63, 0), dropout_stream(12345, 7) };
    for (int i = 0; i < 25; i++)
        for (uint32_t shift = i % 6 == 0; shift < 100; shift += 64) {
            int kept = 0, both = 0;
            for (uint32_t at = 0; at < COUNT; at++) {
                bool keeps = dropout_keeps(streams[i / 5], at, limit);
                kept += keeps;
                both += keeps && dropout_keeps(streams[i % 5], at + shift, limit);
            }
            EXPECT(abs(kept - (int)(0.7 * COUNT)) < 1300 && abs(both - (int)(0.49 * COUNT)) < 1300,
                   "streams %d and %d, %u further: %d are kept, %d in both", i / 5, i % 5, shift, kept, both);
        }
}

static void check_add(int samples, int T, int c, bool alone, bool two_gradients, float rate)
{
    OpSpec spec = { .kind = OP_ADD, .x = matrix(samples * T, c), .T = T, .dropout = { rate, 3 } };
    size_t count = shape_count(spec.x), each = count / (size_t)samples;
    double *a = random_numbers(type, count, 1), *b = random_numbers(type, count, 2);
    double *d1 = random_numbers(type, count, 3), *d2 = random_numbers(type, count, 4);
    double *y = zeros(count), *da = zeros(count), *db = zeros(count);
    uint64_t *keys = rate > 0 ? random_keys(samples) : NULL;
    for (size_t i = 0; i < count; i++) {
        double f = factor(keys, (int)(i / each), spec.dropout, i % each);
        y[i] = (alone ? 0 : a[i]) + f * b[i];
        da[i] = d1[i] + (two_gradients ? d2[i] : 0);
        db[i] = f * rounded(type, (float)da[i]);
    }
    void *got = empty(spec.x), *got_da = empty(spec.x), *got_db = empty(spec.x);
    OpArgs args = { .x = activation(spec.x, b), .residual = alone ? NULL : activation(spec.x, a),
                    .y = got, .dy1 = activation(spec.x, d1),
                    .dy2 = two_gradients ? activation(spec.x, d2) : NULL, .dx = got_db,
                    .dresidual = alone ? NULL : got_da,
                    .keys = keys ? to_device(keys, (size_t)samples * sizeof *keys) : NULL };
    run_op(&spec, &args);
    double u = roundoffs[type];
    expect_near("add", spec.x, got, y, u, 1e-6);
    expect_near("db", spec.x, got_db, db, u, 1e-6);
    if (!alone)
        expect_near("da", spec.x, got_da, da, u, 1e-6);
    check_ends();
}

static void adding(void)
{
    check_add(4, 16, 96, false, true, 0.1f);
    check_add(2, 5, 7, false, false, 0);
    check_add(2, 9, 16, true, true, 0.2f);
}

static void one_hot_rows(void)
{
    enum { SAMPLES = 3, T = 5, VOCAB = 11 };
    OneHotSpec spec = { SAMPLES, T, VOCAB, type };
    Shape shape = matrix(SAMPLES * T, VOCAB + T);
    double *wanted = zeros(shape_count(shape));
    uint64_t *keys = random_keys(SAMPLES);
    int32_t batch[SAMPLES][2 + T];
    for (int n = 0; n < SAMPLES; n++) {
        batch[n][0] = (int32_t)(uint32_t)keys[n];
        batch[n][1] = (int32_t)(keys[n] >> 32);
        for (int t = 0; t < T; t++) {
            batch[n][2 + t] = (7 * n + 5 * t) % VOCAB;
            wanted[(n * T + t) * shape.c + batch[n][2 + t]] = 1;
            wanted[(n * T + t) * shape.c + VOCAB + t] = 1;
        }
    }
    void *out = activation(shape, random_numbers(type, shape_count(shape), 1));
    uint64_t *got = memory(sizeof *got * SAMPLES);
    one_hot(ops, &spec, to_device(batch, sizeof batch), out, got);
    expect_near("one_hot", shape, out, wanted, 0, 0);
    EXPECT(memcmp(to_host(got, sizeof *got * SAMPLES), keys, sizeof *got * SAMPLES) == 0, "keys");
    check_ends();
}

static void check_layer_norm(int rows, int c, double offset)
{
    Shape s = matrix(rows, c);
    size_t count = shape_count(s), n = (size_t)c;
    double *x = random_numbers(type, count, 1), *dy = random_numbers(type, count, 2);
    double *gamma = random_numbers(TYPE_F32, n, 3), *beta = random_numbers(TYPE_F32, n, 4);
    double *y = zeros(count), *dx = zeros(count), *dgamma = zeros(n), *dbeta = zeros(n);
    for (int r = 0; r < rows; r++) {
        double mean = 0, var = 0, g_mean = 0, dot = 0, *row = x + r * c, *d = dy + r * c;
        for (int i = 0; i < c; i++)
            mean += (row[i] = rounded(type, (float)(row[i] + offset * (r % 3)))) / c;
        for (int i = 0; i < c; i++)
            var += (row[i] - mean) * (row[i] - mean) / c;
        double inv = 1 / sqrt(var + 1e-5);
        for (int i = 0; i < c; i++) {
            double hat = (row[i] - mean) * inv;
            y[r * c + i] = gamma[i] * hat + beta[i];
            dgamma[i] += d[i] * hat;
            dbeta[i] += d[i];
            g_mean += gamma[i] * d[i] / c;
            dot += gamma[i] * d[i] * hat / c;
        }
        for (int i = 0; i < c; i++)
            dx[r * c + i] = inv * (gamma[i] * d[i] - g_mean - (row[i] - mean) * inv * dot);
    }
    NormTensors t = { .gamma = activation(row(n), gamma), .beta = activation(row(n), beta),
                      .mean = empty(row((size_t)rows)), .inv_std = empty(row((size_t)rows)),
                      .dgamma = activation(row(n), gamma), .dbeta = activation(row(n), beta) };
    void *in = activation(s, x), *got = empty(s), *got_dx = empty(s);
    OpArgs args = { .x = in, .y = got, .dy1 = activation(s, dy), .dx = got_dx, .norm = t };
    run_op(&(OpSpec){ .kind = OP_ROW_NORM, .x = s }, &args);
    double u = roundoffs[type], wide = offset > 0 ? 1e-4 : 1e-5;
    expect_near("layer norm", s, got, y, u, wide);
    expect_near("layer norm, dx", s, got_dx, dx, u, wide);
    expect_near("layer norm, dgamma", row(n), t.dgamma, dgamma, 0, wide);
    expect_near("layer norm, dbeta", row(n), t.dbeta, dbeta, 0, wide);
    check_ends();
}

static void layer_normalisation(void)
{
    check_layer_norm(70, 128, 0);
    check_layer_norm(33, 5, 0);
    check_layer_norm(1, 384, type == TYPE_F32 ? 100 : 4);
}

static void gelu(void)
{
    enum { COUNT = 9003 };
    Shape s = { 1, COUNT, 1, 1, type };
    const double far[] = { -1000, -100, -40, 40, 100, 1000, 0 }, a = sqrt(2 / M_PI), b = 0.044715;
    double *x = random_numbers(type, COUNT, 1), *dy = random_numbers(type, COUNT, 2);
    double *y = zeros(COUNT), *dx = zeros(COUNT);
    for (int i = 0; i < COUNT; i++) {
        double v = x[i] = rounded(type, i < 7 ? (float)far[i] : (float)(12 * x[i]));
        double t = tanh(a * (v + b * v * v * v)), slope = a * (1 + 3 * b * v * v);
        y[i] = v / 2 * (1 + t);
        dx[i] = dy[i] * ((1 + t) / 2 + v / 2 * (1 - t * t) * slope);
    }
    void *in = activation(s, x), *got = empty(s), *d = activation(s, dy);
    OpArgs args = { .x = in, .y = got, .dy1 = d, .dx = d };
    run_op(&(OpSpec){ .kind = OP_GELU, .x = s }, &args);
    expect_near("gelu", s, got, y, roundoffs[type] + 1e-6, 1e-9);
    expect_near("gelu backward", s, d, dx, roundoffs[type] + 1e-6, 1e-6);
    check_ends();
}

typedef struct AttentionArrays {
    double *qkv, *dy;
    double *y, *dqkv;
    double *p, *dp;             // (T, T) of one head: after the softmax, before dropout
} AttentionArrays;

// The index in qkv of number i of a head's q, k or v (part 0, 1 or 2).
static size_t in_qkv(const OpSpec *s, int sample, int token, int part, int head, int i)
{
    int c = s->x.c / 3, d = c / s->heads;
    return (size_t)(sample * s->T + token) * (size_t)s->x.c + (size_t)(part * c + head * d + i);
}

static void plain_probabilities(const OpSpec *s, const AttentionArrays *a, int n, int h)
{
    int d = s->x.c / 3 / s->heads;
    for (int t = 0; t < s->T; t++) {
        double sum = 0;
        for (int u = 0; u < s->T; u++) {
            double score = 0;
            for (int i = 0; i < d; i++)
                score += a->qkv[in_qkv(s, n, t, 0, h, i)] * a->qkv[in_qkv(s, n, u, 1, h, i)];
            sum += a->p[t * s->T + u] = u <= t ? exp(score / sqrt(d)) : 0;
        }
        for (int u = 0; u < s->T; u++)
            a->p[t * s->T + u] /= sum;
    }
}

static void plain_head(const OpSpec *s, const AttentionArrays *a, const uint64_t *keys,
                       int n, int h)
{
    const int T = s->T, c = s->x.c / 3, d = c / s->heads;
    plain_probabilities(s, a, n, h);
    for (int t = 0; t < T; t++) {
        double dot = 0;
        for (int u = 0; u <= t; u++) {
            double drop = factor(keys, n, s->dropout, (size_t)((h * T + t) * T + u));
            double p = a->p[t * T + u], *dp = &a->dp[t * T + u];
            *dp = 0;
            for (int i = 0; i < d; i++) {
                size_t out = (size_t)(n * T + t) * (size_t)c + (size_t)(h * d + i);
                a->y[out] += drop * p * a->qkv[in_qkv(s, n, u, 2, h, i)];
                a->dqkv[in_qkv(s, n, u, 2, h, i)] += drop * p * a->dy[out];
                *dp += drop * a->dy[out] * a->qkv[in_qkv(s, n, u, 2, h, i)];
            }
            dot += p * *dp;
        }
        for (int u = 0; u <= t; u++) {
            double ds = a->p[t * T + u] * (a->dp[t * T + u] - dot) / sqrt(d);
            for (int i = 0; i < d; i++) {
                a->dqkv[in_qkv(s, n, t, 0, h, i)] += ds * a->qkv[in_qkv(s, n, u, 1, h, i)];
                a->dqkv[in_qkv(s, n, u, 1, h, i)] += ds * a->qkv[in_qkv(s, n, t, 0, h, i)];
            }
        }
    }
}

// scale: multiplies q, k and v. With a large scale, many weights of the softmax are nearly 0 or 1.
static void check_attention(int samples, int T, int heads, int d, float rate, double scale)
{
    int c = heads * d;
    OpSpec spec = { .kind = OP_ATTENTION, .x = matrix(samples * T, 3 * c), .heads = heads, .T = T,
                    .dropout = { rate, 5 } };
    Shape out = matrix(samples * T, c);
    size_t count = shape_count(out), square = (size_t)(T * T);
    AttentionArrays a = { random_numbers(type, 3 * count, 1), random_numbers(type, count, 2),
                          zeros(count), zeros(3 * count), zeros(square), zeros(square) };
    for (size_t i = 0; i < 3 * count; i++)
        a.qkv[i] = rounded(type, (float)(scale * a.qkv[i]));
    uint64_t *keys = rate > 0 ? random_keys(samples) : NULL;
    for (int i = 0; i < samples * heads; i++)
        plain_head(&spec, &a, keys, i / heads, i % heads);
    uint64_t *there = keys ? to_device(keys, (size_t)samples * sizeof *keys) : NULL;
    void *y = empty(out), *dqkv = activation(spec.x, a.qkv);
    OpArgs args = { .x = activation(spec.x, a.qkv), .y = y, .dy1 = activation(out, a.dy),
                    .dx = dqkv, .keys = there };
    run_op(&spec, &args);
    double u = roundoffs[type], factors = type == TYPE_F32 ? 0 : 2 * u;
    expect_near("attention", out, y, a.y, u, 1e-5 + factors);
    expect_near("attention, dqkv", spec.x, dqkv, a.dqkv, u, 1e-5 + factors);
    check_ends();
}

static void attention(void)
{
    check_attention(2, 5, 2, 8, 0, 1);
    check_attention(3, 16, 4, 16, 0.2f, 1);
    check_attention(2, 64, 4, 32, 0.1f, 2);
    check_attention(1, 65, 3, 12, 0, 4);
    check_attention(2, 33, 1, 64, 0, 1);
    check_attention(1, 1, 1, 4, 0, 1);
}

static uint64_t bits_of_attention(const char *which, float rate)
{
    uint64_t before = result_bits, bits;
    setenv("DDP_ATTENTION", which, 1);
    result_bits = 0;
    check_attention(2, 128, 2, 64, rate, 1);
    check_attention(1, 256, 3, 32, rate, 4);
    check_attention(2, 128, 1, 128, rate, 2);
    check_attention(3, 72, 4, 16, rate, 1);
    unsetenv("DDP_ATTENTION");
    bits = result_bits;
    result_bits = before;
    return bits;
}

static bool is_fused(float rate) { return bits_of_attention("fused", rate) != bits_of_attention("plain", rate); }

// cuDNN's fused attention rounds in other places, so equal bits show that it did not run. The log has the reason.
static void fused_attention(void)
{
    Ops *usual = ops;
    bool used = is_fused(0);
    EXPECT(used || !strstr(program_invocation_short_name, "_fake"), "the mock has fused attention");
    EXPECT(!is_fused(0.1f), "never with dropout");
    ops = ops_new(device, &(OpsConfig){ .deterministic = true });
    EXPECT(!is_fused(0), "never with --deterministic");
    ops_free(ops);
    ops = usual;
    if (!used)
        printf("SKIPPED: FUSED ATTENTION IS NOT TESTED in %s\n", type_names[type]);
}

static uint64_t all(Type first, Type last)
{
    result_bits = 0;
    for (type = first; type <= last; type++) {
        adding();
        one_hot_rows();
        layer_normalisation();
        gelu();
        attention();
        if (type != TYPE_F32 && strcmp(device_backend, "cuda") == 0)
            fused_attention();
    }
    return result_bits;
}

int main(int argc, char **argv)
{
    bool only_bf16 = argc > 1 && strcmp(argv[1], "bf16") == 0, cpu = strcmp(device_backend, "cpu") == 0;
    Type first = only_bf16 ? TYPE_BF16 : TYPE_F32, last = only_bf16 ? TYPE_BF16 : TYPE_F16;
    uint64_t bits = 0;
    for (int threads = cpu ? 3 : 1; threads > 0; threads--) {
        if (device)
            test_close_device();
        test_open_device(threads, (OpsConfig){ 0 });
        uint64_t now = all(first, last);
        EXPECT(bits == 0 || now == bits, "the results depend on the number of threads");
        bits = now;
    }
    if (!only_bf16)
        dropout_masks();
    if (cpu && !ops_emulates(device, TYPE_BF16))
        test_again_with("DNNL_MAX_CPU_ISA", "AVX512_CORE",
                        (char *[]){ "test_transformer_ops", "bf16", NULL });
    test_close_device();
    return test_done();
}
