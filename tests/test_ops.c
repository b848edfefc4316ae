// Every operation, forward and backward, against the plainest code that computes it in double.
//
// ctest: BACKENDS cpu cuda fake TIMEOUT 120
//
// A case is a function from a few arrays (in torch's order: n, c, h, w) to one. Its gradient is
// taken by central differences in double, at up to `SAMPLES` elements of every input, of the sum of
// the outputs each times a fixed random number; the operation is given that number as its dy.
#include "check.h"
#include "device.h"
#include "ops.h"
#include "rng.h"
#include "test.h"

#include <math.h>

enum { SAMPLES = 120, MAX_INPUTS = 4 };

static Device *device;
static Ops *ops;

// ==== Arrays =====================================================================================

typedef struct Array {
    int count;
    double *v;
} Array;

// Uniform in (-1, 1), a different one for each key; rounded to f32, so that both sides see the
// same.
static Array array_random(int count, int key)
{
    Array a = { count, xmalloc((size_t)count * sizeof(double)) };
    for (int i = 0; i < count; i++)
        a.v[i] = 2 * uniform_of(philox(7, (uint64_t)key, (uint64_t)i).v[0]) - 1;
    return a;
}

static float *to_device(const double *v, int count)
{
    float *host = xmalloc((size_t)count * sizeof *host);
    for (int i = 0; i < count; i++)
        host[i] = (float)v[i];
    float *memory = device_alloc(device, (size_t)count * sizeof *host);
    copy_to_device(device_stream(device), memory, host, (size_t)count * sizeof *host);
    stream_sync(device_stream(device));
    free(host);
    return memory;
}

static Array from_device(const float *memory, int count)
{
    float *host = xmalloc((size_t)count * sizeof *host);
    copy_to_host(device_stream(device), host, memory, (size_t)count * sizeof *host);
    stream_sync(device_stream(device));
    Array a = { count, xmalloc((size_t)count * sizeof(double)) };
    for (int i = 0; i < count; i++)
        a.v[i] = host[i];
    free(host);
    return a;
}

static float *empty(int count) { return device_alloc(device, (size_t)count * sizeof(float)); }

// Where element i in torch's order lies in an activation of this shape.
static size_t place(Shape s, int i)
{
    int p = i % (s.h * s.w), c = i / (s.h * s.w) % s.c, n = i / (s.h * s.w * s.c);
    return (((size_t)n * (s.c / s.block) + c / s.block) * s.h * s.w + p) * s.block + c % s.block;
}

static float *activation(Shape s, const double *v)
{
    int count = (int)shape_count(s);
    double *placed = xmalloc((size_t)count * sizeof *placed);
    for (int i = 0; i < count; i++)
        placed[place(s, i)] = v[i];
    float *memory = to_device(placed, count);
    free(placed);
    return memory;
}

static Array activation_back(Shape s, const float *memory)
{
    Array raw = from_device(memory, (int)shape_count(s));
    Array a = { raw.count, xmalloc((size_t)raw.count * sizeof(double)) };
    for (int i = 0; i < a.count; i++)
        a.v[i] = raw.v[place(s, i)];
    free(raw.v);
    return a;
}

// ==== Comparing ==================================================================================

static double largest(Array a)
{
    double max = 0;
    for (int i = 0; i < a.count; i++)
        max = fmax(max, fabs(a.v[i]));
    return max;
}

// Within `tolerance` of wanted's largest entry, everywhere. Frees `got`.
static void expect_close(const char *what, Array got, Array wanted, double tolerance)
{
    double scale = fmax(largest(wanted), 1e-6), worst = 0;
    int at = 0;
    for (int i = 0; i < wanted.count; i++) {
        double off = fabs(got.v[i] - wanted.v[i]) / scale;
        if (!(off <= worst)) {
            worst = off;
            at = i;
        }
    }
    EXPECT(worst <= tolerance, "%s: element %d is %g, wanted %g (off by %.1e of the largest)", what,
           at, got.v[at], wanted.v[at], worst);
    free(got.v);
}

typedef struct Case {
    const char *name;
    const void *spec;
    Array in[MAX_INPUTS];
    int inputs, outputs;        // how many arrays go in; how many numbers come out
    void (*forward)(const struct Case *c, double *out);
} Case;

static double objective(const Case *c, Array weights)
{
    double *out = xmalloc((size_t)c->outputs * sizeof *out), sum = 0;
    c->forward(c, out);
    for (int i = 0; i < c->outputs; i++)
        sum += out[i] * weights.v[i];
    free(out);
    return sum;
}

// The operation's gradient of input k against differences. Frees `got`.
static void expect_gradient(const Case *c, int k, Array dy, Array got)
{
    const double step = 1e-6;   // small, so that it seldom steps over the bend of a ReLU
    double scale = fmax(largest(got), 1e-6), worst = 0, wanted_worst = 0;
    int stride = c->in[k].count > SAMPLES ? c->in[k].count / SAMPLES : 1, at = 0;
    for (int i = 0; i < c->in[k].count; i += stride) {
        double keep = c->in[k].v[i];
        c->in[k].v[i] = keep + step;
        double up = objective(c, dy);
        c->in[k].v[i] = keep - step;
        double down = objective(c, dy);
        c->in[k].v[i] = keep;
        double wanted = (up - down) / (2 * step), off = fabs(got.v[i] - wanted) / scale;
        if (!(off <= worst)) {
            worst = off;
            wanted_worst = wanted;
            at = i;
        }
    }
    EXPECT(worst <= 1e-4, "%s: gradient of input %d at %d is %g, differences say %g (%.1e)",
           c->name, k, at, got.v[at], wanted_worst, worst);
    free(got.v);
}

static void expect_forward(const Case *c, Array got, double tolerance)
{
    Array wanted = { c->outputs, xmalloc((size_t)c->outputs * sizeof(double)) };
    c->forward(c, wanted.v);
    expect_close(c->name, got, wanted, tolerance);
    free(wanted.v);
}

static void case_free(Case *c)
{
    for (int i = 0; i < c->inputs; i++)
        free(c->in[i].v);
}

// ==== Convolution ================================================================================

static int out_size(int size, int kernel, int stride, int pad)
{
    return (size + 2 * pad - kernel) / stride + 1;
}

// in: x (n, c, h, w), weights (o, c, kh, kw), bias (o)
static void conv_plain(const Case *c, double *out)
{
    const ConvSpec *s = c->spec;
    int oh = out_size(s->x.h, s->kernel_h, s->stride, s->pad);
    int ow = out_size(s->x.w, s->kernel_w, s->stride, s->pad);
    for (int i = 0; i < c->outputs; i++) {
        int q = i % ow, p = i / ow % oh, o = i / (ow * oh) % s->out_channels;
        int n = i / (ow * oh * s->out_channels);
        double sum = s->bias ? c->in[2].v[o] : 0;
        for (int k = 0; k < s->x.c * s->kernel_h * s->kernel_w; k++) {
            int kw = k % s->kernel_w, kh = k / s->kernel_w % s->kernel_h;
            int ic = k / (s->kernel_w * s->kernel_h);
            int y = p * s->stride - s->pad + kh, x = q * s->stride - s->pad + kw;
            if (y < 0 || y >= s->x.h || x < 0 || x >= s->x.w)
                continue;
            sum += c->in[0].v[((n * s->x.c + ic) * s->x.h + y) * s->x.w + x] *
                   c->in[1].v[o * s->x.c * s->kernel_h * s->kernel_w + k];
        }
        out[i] = sum;
    }
}

static float *import(const Conv *conv, Array oihw)
{
    size_t count = conv_weight_count(conv);
    float *arena = xcalloc(count, sizeof *arena),
          *plain = xmalloc((size_t)oihw.count * sizeof *plain);
    for (int i = 0; i < oihw.count; i++)
        plain[i] = (float)oihw.v[i];
    conv_weights_import(conv, arena, plain);
    float *memory = empty((int)count);
    copy_to_device(device_stream(device), memory, arena, count * sizeof *arena);
    stream_sync(device_stream(device));
    free(arena);
    free(plain);
    return memory;
}

static Array export(const Conv *conv, const float *memory, int count)
{
    size_t bytes = conv_weight_count(conv) * sizeof(float);
    float *arena = xmalloc(bytes), *plain = xmalloc((size_t)count * sizeof *plain);
    copy_to_host(device_stream(device), arena, memory, bytes);
    stream_sync(device_stream(device));
    conv_weights_export(conv, plain, arena);
    Array a = { count, xmalloc((size_t)count * sizeof(double)) };
    for (int i = 0; i < count; i++)
        a.v[i] = plain[i];
    free(arena);
    free(plain);
    return a;
}

static void check_conv(const char *name, ConvSpec spec, const Conv *like)
{
    Conv *conv = conv_new(ops, &spec, like);
    Shape y = conv_output(conv);
    int weights = spec.out_channels * spec.x.c * spec.kernel_h * spec.kernel_w;
    Case c = { name, &spec, { array_random((int)shape_count(spec.x), 1), array_random(weights, 2),
               array_random(spec.out_channels, 3) }, 3, (int)shape_count(y), conv_plain };
    Array dy = array_random(c.outputs, 4);
    float *x = activation(spec.x, c.in[0].v), *w = import(conv, c.in[1]);
    float *b = to_device(c.in[2].v, c.in[2].count), *out = empty(c.outputs);
    float *d = activation(y, dy.v), *dx = empty(c.in[0].count);
    float *dw = empty((int)conv_weight_count(conv)), *db = empty(spec.out_channels);

    expect_close(name, export(conv, w, weights), c.in[1], 0);   // there and back again, to the bit
    for (int i = 0; i < 2; i++)         // what was there before is nothing to them
        conv_forward(conv, x, w, b, out);
    expect_forward(&c, activation_back(y, out), 1e-5);
    for (int i = 0; i < 2; i++)
        conv_backward_weights(conv, x, d, dw, db);
    expect_gradient(&c, 1, dy, export(conv, dw, weights));
    if (spec.bias)
        expect_gradient(&c, 2, dy, from_device(db, spec.out_channels));
    if (spec.needs_dx) {
        conv_backward_data(conv, d, w, dx);
        expect_gradient(&c, 0, dy, activation_back(spec.x, dx));
    }

    float *all[] = { x, w, b, out, d, dx, dw, db };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        device_free(device, all[i]);
    free(dy.v);
    case_free(&c);
    conv_free(conv);
}

// The shape in which a value of c channels flows between layers: what a convolution gives.
static Shape flowing(int n, int c, int h, int w)
{
    ConvSpec spec = { { n, 16, h, w, ops_input_block(ops, 16) }, c, 1, 1, 1, 0 };
    spec.x.c = 3;
    spec.x.block = ops_input_block(ops, 3);
    Conv *conv = conv_new(ops, &spec, NULL);
    Shape s = conv_output(conv);
    conv_free(conv);
    return s;
}

static Shape images(int n, int c, int h, int w)
{
    return (Shape){ n, c, h, w, ops_input_block(ops, c) };
}

TEST(convolutions)
{
    check_conv("7x7 stride 2 on images", (ConvSpec){ images(2, 3, 17, 15), 16, 7, 7, 2, 3 }, NULL);
    check_conv("5x5 on one channel", (ConvSpec){ images(3, 1, 9, 8), 6, 5, 5, 1, 0, true }, NULL);
    check_conv("5x5, odd channels", (ConvSpec){ images(2, 6, 9, 7), 5, 5, 5, 1, 2, true, true },
               NULL);
    check_conv("3x3", (ConvSpec){ flowing(2, 16, 6, 5), 32, 3, 3, 1, 1, false, true }, NULL);
    check_conv("3x3 with bias", (ConvSpec){ flowing(2, 16, 6, 5), 16, 3, 3, 1, 1, true, true },
               NULL);
    check_conv("3x3 stride 2", (ConvSpec){ flowing(3, 16, 7, 6), 16, 3, 3, 2, 1, false, true },
               NULL);
    check_conv("1x1 stride 2", (ConvSpec){ flowing(3, 16, 5, 4), 32, 1, 1, 2, 0, false, true },
               NULL);
    check_conv("1x1", (ConvSpec){ flowing(3, 32, 3, 3), 16, 1, 1, 1, 0, false, true }, NULL);
}

// Taps that never meet a pixel: on images of 1x1 and 2x2 pixels, and where the stride steps over
// them.
TEST(convolutions_with_dead_taps)
{
    check_conv("3x3 on 1x1", (ConvSpec){ flowing(5, 16, 1, 1), 32, 3, 3, 1, 1, false, true }, NULL);
    check_conv("3x3 on 2x2", (ConvSpec){ flowing(4, 16, 2, 2), 16, 3, 3, 1, 1, false, true }, NULL);
    check_conv("3x3 stride 2 on 2x2",
               (ConvSpec){ flowing(4, 16, 2, 2), 32, 3, 3, 2, 1, false, true }, NULL);
    check_conv("1x1 stride 2 on 2x2",
               (ConvSpec){ flowing(4, 16, 2, 2), 32, 1, 1, 2, 0, false, true }, NULL);
    check_conv("3x3 on 1x3", (ConvSpec){ flowing(4, 16, 1, 3), 16, 3, 3, 1, 1, false, true }, NULL);
    check_conv("5x5 on 2x1", (ConvSpec){ flowing(4, 16, 2, 1), 16, 5, 5, 1, 2, true, true }, NULL);
    check_conv("3x3 on 1x1, odd", (ConvSpec){ images(5, 3, 1, 1), 7, 3, 3, 1, 1, true, true },
               NULL);
}

TEST(linear_layers)
{
    check_conv("linear of 5x5 images", (ConvSpec){ images(3, 6, 5, 5), 12, 5, 5, 1, 0, true, true },
               NULL);
    check_conv("linear of 3x2 blocks",
               (ConvSpec){ flowing(3, 16, 3, 2), 10, 3, 2, 1, 0, true, true }, NULL);
    check_conv("linear of a row", (ConvSpec){ flowing(7, 48, 1, 1), 10, 1, 1, 1, 0, true, true },
               NULL);
    check_conv("linear, one row", (ConvSpec){ flowing(1, 16, 1, 1), 3, 1, 1, 1, 0, true, true },
               NULL);
}

typedef struct Step {
    Conv *conv;
    float *x, *w, *y;
} Step;

static void step_forward(void *arg)
{
    Step *step = arg;
    conv_forward(step->conv, step->x, step->w, NULL, step->y);
}

// What a recorded step uses stays where it is, also when a later convolution needs more scratch
// memory.
TEST(a_recorded_convolution)
{
    Ops *own = ops_new(device, &(OpsConfig){ .deterministic = true });
    ConvSpec small = { flowing(2, 16, 6, 5), 16, 3, 3, 1, 1, false, false };
    ConvSpec large = { flowing(64, 32, 1, 1), 1024, 1, 1, 1, 0, true, true, true };
    large.x.type = TYPE_BF16;
    Replay *replay = replay_new(device, 1);
    Step step = { conv_new(own, &small, NULL), NULL, NULL, NULL };
    Shape y = conv_output(step.conv);
    Array image = array_random((int)shape_count(small.x), 1), kernel = array_random(16 * 16 * 9, 2);
    step.x = activation(small.x, image.v), step.w = import(step.conv, kernel);
    step.y = empty((int)shape_count(y));
    for (int i = 0; i < 3; i++)
        replay_run(replay, 0, step_forward, &step);
    Array before = activation_back(y, step.y);
    Conv *later = conv_new(own, &large, NULL);
    fill_zero(device_stream(device), step.y, shape_bytes(y));
    replay_run(replay, 0, step_forward, &step);
    expect_close("replayed", activation_back(y, step.y), before, 0);
    replay_free(replay);
    conv_free(later);
    conv_free(step.conv);
    device_free(device, step.x);
    device_free(device, step.w);
    device_free(device, step.y);
    free(image.v);
    free(kernel.v);
    free(before.v);
    ops_free(own);
}

// Another batch size takes the order of the first, so that both can read one arena.
TEST(same_weights_for_another_batch)
{
    static const struct {
        int c, h, out;
    } cases[] = { { 16, 4, 32 }, { 64, 1, 64 }, { 64, 2, 128 } };
    for (int i = 0; i < 3; i++) {
        ConvSpec full = { flowing(64, cases[i].c, cases[i].h, cases[i].h), cases[i].out, 3, 3, 1, 1,
                          false, true };
        ConvSpec tail = full;
        tail.x.n = 3;
        Conv *first = conv_new(ops, &full, NULL);
        check_conv("3x3, a smaller batch", tail, first);
        conv_free(first);
    }
}

// ==== Batch normalisation ========================================================================

// in: x (n, c, h, w), gamma (c), beta (c), residual like x
static void norm_plain(const Case *c, double *out)
{
    const NormSpec *s = c->spec;
    int pixels = s->x.h * s->x.w, channels = s->x.c, n = s->x.n;
    for (int ch = 0; ch < channels; ch++) {
        double mean = 0, var = 0, count = (double)n * pixels;
        for (int i = 0; i < n * pixels; i++)
            mean += c->in[0].v[(i / pixels * channels + ch) * pixels + i % pixels] / count;
        for (int i = 0; i < n * pixels; i++) {
            double d = c->in[0].v[(i / pixels * channels + ch) * pixels + i % pixels] - mean;
            var += d * d / count;
        }
        for (int i = 0; i < n * pixels; i++) {
            int at = (i / pixels * channels + ch) * pixels + i % pixels;
            double y = c->in[1].v[ch] * (c->in[0].v[at] - mean) / sqrt(var + 1e-5) + c->in[2].v[ch];
            y += s->add ? c->in[3].v[at] : 0;
            out[at] = s->relu && y < 0 ? 0 : y;
        }
    }
}

// What forward must have done to the running statistics, which began at 0 and 1.
static void check_running(const Case *c, const NormTensors *t)
{
    const NormSpec *s = c->spec;
    int pixels = s->x.h * s->x.w, count = s->x.n * pixels;
    Array mean = from_device(t->running_mean, s->x.c), var = from_device(t->running_var, s->x.c);
    for (int ch = 0; ch < s->x.c; ch++) {
        double m = 0, v = 0;
        for (int i = 0; i < count; i++)
            m += c->in[0].v[(i / pixels * s->x.c + ch) * pixels + i % pixels] / count;
        for (int i = 0; i < count; i++)
            v += pow(c->in[0].v[(i / pixels * s->x.c + ch) * pixels + i % pixels] - m, 2);
        EXPECT_NEAR(mean.v[ch], 0.1 * m, 1e-6 * fmax(1, fabs(m)));
        EXPECT_NEAR(var.v[ch], 0.9 + 0.1 * v / (count > 1 ? count - 1 : 1), 1e-5);
    }
    free(mean.v);
    free(var.v);
}

// Evaluation uses the running statistics (given: mean m, variance v for every channel).
static void check_frozen(Norm *norm, const Case *c, NormTensors *t, const float *x,
                         const float *residual)
{
    const NormSpec *s = c->spec;
    int pixels = s->x.h * s->x.w;
    Array m = array_random(s->x.c, 8), v = array_random(s->x.c, 9),
          wanted = array_random(c->outputs, 0);
    for (int ch = 0; ch < s->x.c; ch++)
        v.v[ch] = (float)(v.v[ch] + 1.5);
    float *mean = to_device(m.v, s->x.c), *var = to_device(v.v, s->x.c), *y = empty(c->outputs);
    t->running_mean = mean;
    t->running_var = var;
    norm_forward(norm, t, x, residual, y, false);
    for (int i = 0; i < c->outputs; i++) {
        int ch = i / pixels % s->x.c;
        double out =
            c->in[1].v[ch] * (c->in[0].v[i] - m.v[ch]) / sqrt(v.v[ch] + 1e-5) + c->in[2].v[ch];
        out += s->add ? c->in[3].v[i] : 0;
        wanted.v[i] = s->relu && out < 0 ? 0 : out;
    }
    expect_close("frozen norm", activation_back(s->x, y), wanted, 1e-5);
    expect_close("frozen norm leaves the mean", from_device(mean, s->x.c), m, 0);
    device_free(device, mean);
    device_free(device, var);
    device_free(device, y);
    free(m.v);
    free(v.v);
    free(wanted.v);
}

static void check_norm(const char *name, NormSpec spec, double offset, bool two_gradients)
{
    int count = (int)shape_count(spec.x), channels = spec.x.c;
    Case c = { name,
               &spec,
               { array_random(count, 1), array_random(channels, 2), array_random(channels, 3),
                 array_random(count, 4) },
               4,
               count,
               norm_plain };
    for (int i = 0; i < count; i++)
        c.in[0].v[i] = (float)(c.in[0].v[i] + offset);
    Array dy = array_random(count, 5), part = array_random(count, 6);
    Array rest = array_random(count, 7), ones = array_random(channels, 0);
    for (int i = 0; i < count; i++)
        rest.v[i] = two_gradients ? dy.v[i] - part.v[i] : 0;
    for (int i = 0; i < channels; i++)
        ones.v[i] = 1;
    float *x = activation(spec.x, c.in[0].v), *y = empty(count), *dx = empty(count);
    float *gamma = to_device(c.in[1].v, channels), *beta = to_device(c.in[2].v, channels);
    float *residual = activation(spec.x, c.in[3].v), *dresidual = empty(count);
    float *dy1 = activation(spec.x, two_gradients ? part.v : dy.v),
          *dy2 = activation(spec.x, rest.v);
    float *sums[6] = { empty(channels), to_device(ones.v, channels),
                       empty(channels), empty(channels),
                       empty(channels), empty(channels) };
    NormTensors t = { gamma, beta, sums[0], sums[1], sums[2], sums[3], sums[4], sums[5] };

    Norm *norm = norm_new(ops, &spec);
    norm_forward(norm, &t, x, spec.add ? residual : NULL, y, true);
    expect_forward(&c, activation_back(spec.x, y), offset > 0 ? 1e-4 : 1e-5);
    check_running(&c, &t);
    norm_backward(norm, &t, x, y, dy1, two_gradients ? dy2 : NULL, dx, spec.add ? dresidual : NULL);
    expect_gradient(&c, 0, dy, activation_back(spec.x, dx));
    expect_gradient(&c, 1, dy, from_device(t.dgamma, channels));
    expect_gradient(&c, 2, dy, from_device(t.dbeta, channels));
    if (spec.add)
        expect_gradient(&c, 3, dy, activation_back(spec.x, dresidual));
    check_frozen(norm, &c, &t, x, spec.add ? residual : NULL);
    norm_free(norm);

    float *all[] = { x,   y,       dx,      gamma,   beta,    residual, dresidual, dy1,
                     dy2, sums[0], sums[1], sums[2], sums[3], sums[4],  sums[5] };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        device_free(device, all[i]);
    Array arrays[] = { dy, part, rest, ones };
    for (int i = 0; i < 4; i++)
        free(arrays[i].v);
    case_free(&c);
}

TEST(normalisation)
{
    check_norm("norm", (NormSpec){ flowing(3, 16, 5, 3), false, false }, 0, false);
    check_norm("norm, relu", (NormSpec){ flowing(2, 32, 3, 3), false, true }, 0, false);
    check_norm("norm, add, relu", (NormSpec){ flowing(2, 32, 3, 4), true, true }, 0, false);
    check_norm("norm, add, relu, two gradients", (NormSpec){ flowing(2, 16, 3, 4), true, true }, 0,
               true);
    check_norm("norm of rows", (NormSpec){ flowing(9, 48, 1, 1), false, true }, 0, true);
    check_norm("norm, odd channels", (NormSpec){ images(4, 5, 3, 3), false, true }, 0, false);
}

// E[x^2] - E[x]^2 would lose everything here. The mean itself has only 24 bits: 1e-4 is what it
// leaves.
TEST(normalisation_far_from_zero)
{
    check_norm("norm at 1000", (NormSpec){ flowing(4, 16, 5, 5), false, false }, 1000, false);
}

// ==== Pooling, ReLU, loss, optimizer =============================================================

static void maxpool_plain(const Case *c, double *out)
{
    const PoolSpec *s = c->spec;
    Shape y = pool_output(s);
    for (int i = 0; i < c->outputs; i++) {
        int q = i % y.w, p = i / y.w % y.h, plane = i / (y.w * y.h);
        out[i] = -INFINITY;
        for (int k = 0; k < s->kernel * s->kernel; k++) {
            int row = p * s->stride - s->pad + k / s->kernel,
                col = q * s->stride - s->pad + k % s->kernel;
            if (row >= 0 && row < s->x.h && col >= 0 && col < s->x.w)
                out[i] = fmax(out[i], c->in[0].v[(plane * s->x.h + row) * s->x.w + col]);
        }
    }
}

static void avgpool_plain(const Case *c, double *out)
{
    const Shape *s = c->spec;
    for (int i = 0; i < c->outputs; i++) {
        out[i] = 0;
        for (int p = 0; p < s->h * s->w; p++)
            out[i] += c->in[0].v[i * s->h * s->w + p] / (s->h * s->w);
    }
}

// Differences would step over a tie: the values are all different, and far enough apart.
static Array array_ranks(int count)
{
    Array a = array_random(count, 11);
    for (int i = 0; i < count; i++)
        a.v[i] = (float)(((i * 7919L) % count) * 0.01 - 1);
    return a;
}

static void check_maxpool(const char *name, PoolSpec spec, bool two_gradients)
{
    Shape y = pool_output(&spec);
    Case c = {
        name,         &spec, { array_ranks((int)shape_count(spec.x)) }, 1, (int)shape_count(y),
        maxpool_plain
    };
    Array dy = array_random(c.outputs, 5), zero = array_random(c.outputs, 5);
    for (int i = 0; i < c.outputs; i++)
        zero.v[i] = 0;
    float *x = activation(spec.x, c.in[0].v), *out = empty(c.outputs), *dx = empty(c.in[0].count);
    float *dy1 = activation(y, dy.v), *dy2 = activation(y, zero.v);
    uint8_t *index = device_alloc(device, (size_t)c.outputs);
    maxpool_forward(ops, &spec, x, out, index);
    expect_forward(&c, activation_back(y, out), 1e-5);
    // the second gradient first, so that it is seen to count
    maxpool_backward(ops, &spec, index, two_gradients ? dy2 : dy1, two_gradients ? dy1 : NULL, dx);
    expect_gradient(&c, 0, dy, activation_back(spec.x, dx));
    float *all[] = { x, out, dx, dy1, dy2 };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        device_free(device, all[i]);
    device_free(device, index);
    free(dy.v);
    free(zero.v);
    case_free(&c);
}

TEST(pooling)
{
    check_maxpool("maxpool 3x3 stride 2", (PoolSpec){ flowing(2, 16, 8, 8), 3, 2, 1 }, false);
    check_maxpool("maxpool 3x3, odd size", (PoolSpec){ flowing(2, 16, 7, 5), 3, 2, 1 }, true);
    check_maxpool("maxpool 2x2", (PoolSpec){ images(2, 6, 6, 4), 2, 2, 0 }, false);
    check_maxpool("maxpool 2x2, a row left over", (PoolSpec){ images(2, 5, 5, 7), 2, 2, 0 }, false);

    Shape s = flowing(3, 32, 4, 3);
    Case c = {
        "avgpool", &s, { array_random((int)shape_count(s), 1) }, 1, s.n * s.c, avgpool_plain
    };
    Array dy = array_random(c.outputs, 2);
    float *x = activation(s, c.in[0].v), *out = empty(c.outputs), *d = to_device(dy.v, dy.count);
    float *dx = empty(c.in[0].count);
    avgpool_forward(ops, s, x, out);
    expect_forward(&c, from_device(out, c.outputs), 1e-5);
    avgpool_backward(ops, s, d, dx);
    expect_gradient(&c, 0, dy, activation_back(s, dx));
    float *all[] = { x, out, d, dx };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        device_free(device, all[i]);
    free(dy.v);
    case_free(&c);
}

// With equal pixels the first one wins, as in PyTorch, and gets the gradient alone.
TEST(a_tie_goes_to_the_first)
{
    PoolSpec spec = { images(1, 1, 2, 2), 2, 2, 0 };
    float *x = to_device((double[]){ 3, 3, 3, 3 }, 4), *y = empty(1), *dx = empty(4);
    float *dy = to_device((double[]){ 1 }, 1);
    uint8_t *index = device_alloc(device, 1);
    maxpool_forward(ops, &spec, x, y, index);
    maxpool_backward(ops, &spec, index, dy, NULL, dx);
    expect_close("tie", from_device(dx, 4), (Array){ 4, (double[]){ 1, 0, 0, 0 } }, 0);
    float *all[] = { x, y, dx, dy };
    for (int i = 0; i < 4; i++)
        device_free(device, all[i]);
    device_free(device, index);
}

TEST(relu)
{
    Array x = array_random(1003, 1), dy = array_random(1003, 2), y = array_random(1003, 0);
    Array dx = array_random(1003, 0);
    for (int i = 0; i < x.count; i++) {
        y.v[i] = x.v[i] > 0 ? x.v[i] : 0;
        dx.v[i] = x.v[i] > 0 ? dy.v[i] : 0;
    }
    float *in = to_device(x.v, x.count), *out = empty(x.count), *d = to_device(dy.v, dy.count);
    relu_forward(ops, (Shape){ 1, x.count, 1, 1, 1 }, in, out);
    expect_close("relu", from_device(out, x.count), y, 0);
    relu_backward(ops, (Shape){ 1, x.count, 1, 1, 1 }, out, d, d);      // in place
    expect_close("relu backward", from_device(d, x.count), dx, 0);
    float *all[] = { in, out, d };
    for (int i = 0; i < 3; i++)
        device_free(device, all[i]);
    Array arrays[] = { x, dy, y, dx };
    for (int i = 0; i < 4; i++)
        free(arrays[i].v);
}

typedef struct LossSpec {
    int rows, classes;
    const int32_t *labels;
} LossSpec;

static void loss_plain(const Case *c, double *out)
{
    const LossSpec *s = c->spec;
    int counted = 0;
    *out = 0;
    for (int r = 0; r < s->rows; r++) {
        if (s->labels[r] < 0)
            continue;
        double sum = 0;
        for (int j = 0; j < s->classes; j++)
            sum += exp(c->in[0].v[r * s->classes + j]);
        *out += log(sum) - c->in[0].v[r * s->classes + s->labels[r]];
        counted++;
    }
    *out /= counted;
}

static Stats stats_back(const Stats *memory)
{
    Stats stats;
    copy_to_host(device_stream(device), &stats, memory, sizeof stats);
    stream_sync(device_stream(device));
    return stats;
}

static float smoothing;     // of what run_loss computes

static Stats run_loss(int rows, int classes, const double *z, const int32_t *labels, float scale,
                      float *dz, int times)
{
    float *logits = to_device(z, rows * classes);
    int32_t *on_device = device_alloc(device, (size_t)rows * sizeof *labels);
    Scalars *scalars = device_alloc(device, sizeof *scalars);
    Stats *stats = device_alloc(device, sizeof *stats);
    copy_to_device(device_stream(device), on_device, labels, (size_t)rows * sizeof *labels);
    scalars_set(ops, scalars, (Scalars){ .loss_scale = scale, .smoothing = smoothing });
    for (int i = 0; i < times; i++)
        loss_cross_entropy(ops, rows, classes, logits, on_device, scalars, stats, dz);
    Stats got = stats_back(stats);
    device_free(device, logits);
    device_free(device, on_device);
    device_free(device, scalars);
    device_free(device, stats);
    return got;
}

TEST(loss)
{
    enum { ROWS = 37, CLASSES = 11 };
    int32_t labels[ROWS];
    for (int i = 0; i < ROWS; i++)
        labels[i] = i % 9 == 4 ? -1 : i * 5 % CLASSES;
    LossSpec spec = { ROWS, CLASSES, labels };
    Case c = { "loss", &spec, { array_random(ROWS * CLASSES, 1) }, 1, 1, loss_plain };
    float *dz = empty(ROWS * CLASSES);
    Stats stats = run_loss(ROWS, CLASSES, c.in[0].v, labels, 1, dz, 2);
    double wanted;
    loss_plain(&c, &wanted);
    int64_t counted = ROWS - 4, correct1 = 0, correct5 = 0;
    for (int r = 0; r < ROWS; r++) {
        int before = 0;
        for (int j = 0; labels[r] >= 0 && j < CLASSES; j++)
            before += c.in[0].v[r * CLASSES + j] > c.in[0].v[r * CLASSES + labels[r]];
        correct1 += labels[r] >= 0 && before < 1;
        correct5 += labels[r] >= 0 && before < 5;
    }
    EXPECT_NEAR(stats.batch_loss_sum / (double)counted, wanted, 1e-6);
    EXPECT_NEAR(stats.loss_sum, 2 * stats.batch_loss_sum, 1e-9);
    EXPECT_EQ_INT(stats.batch_count, counted);
    EXPECT_EQ_INT(stats.count, 2 * counted);
    EXPECT_EQ_INT(stats.batch_correct1, correct1);
    EXPECT_EQ_INT(stats.correct1, 2 * correct1);
    EXPECT_EQ_INT(stats.correct5, 2 * correct5);
    EXPECT_EQ_INT(stats.not_finite, 0);
    expect_gradient(&c, 0, (Array){ 1, (double[]){ 1 } }, from_device(dz, ROWS * CLASSES));
    run_loss(ROWS, CLASSES, c.in[0].v, labels, 8, dz, 1);
    expect_gradient(&c, 0, (Array){ 1, (double[]){ 8 } }, from_device(dz, ROWS * CLASSES));
    device_free(device, dz);
    case_free(&c);
}

// The numbers of torch.nn.CrossEntropyLoss(label_smoothing=S, ignore_index=-1) in float64.
TEST(label_smoothing)
{
    static const double z[] = { 1, -2, 0.5, 3, 0.25, 0.25, -1, 0, 4, 0, -4, 1 };
    static const int32_t labels[] = { 0, -1, 3 };
    static const struct {
        float smoothing;
        double loss, dz[12];
    } cases[] = {
        { 0.1f, 2.69047569,
          { -0.407223125, -0.00974792644, 0.0210271196, 0.395943932, 0, 0, 0, 0,
            0.455472798, -0.00392877922, -0.0123430126, -0.439201006 } },
        { 1, 3.19672569,
          { -0.0697231248, -0.122247926, -0.0914728804, 0.283443932, 0, 0, 0, 0,
            0.342972798, -0.116428779, -0.124843013, -0.101701006 } },
    };
    float *dz = empty(12);
    for (int i = 0; i < 2; i++) {
        smoothing = cases[i].smoothing;
        Stats s = run_loss(3, 4, z, labels, 1, dz, 1);
        EXPECT_NEAR(s.batch_loss_sum / 2, cases[i].loss, 1e-6);
        expect_close("smoothed", from_device(dz, 12), (Array){ 12, (double *)cases[i].dz }, 1e-6);
        s = run_loss(3, 4, z, labels, 1, NULL, 1);
        EXPECT_NEAR(s.batch_loss_sum / 2, 2.63422569, 1e-6);    // evaluation smoothes nothing
    }
    smoothing = 0;
    device_free(device, dz);
}

TEST(loss_of_strange_numbers)
{
    Stats s = run_loss(1, 3, (double[]){ 500, -500, 0 }, (int32_t[]){ 1 }, 1, NULL, 1);
    EXPECT_NEAR(s.loss_sum, 1000, 1e-3);
    EXPECT_EQ_INT(s.not_finite, 0);
    s = run_loss(2, 3, (double[]){ NAN, NAN, NAN, 1, 2, 3 }, (int32_t[]){ 0, 2 }, 1, NULL, 1);
    EXPECT_EQ_INT(s.not_finite, 1);
    EXPECT_EQ_INT(s.correct1, 1);
    s = run_loss(1, 2, (double[]){ INFINITY, 0 }, (int32_t[]){ 1 }, 1, NULL, 1);
    EXPECT_EQ_INT(s.not_finite, 1);
    s = run_loss(2, 3, (double[]){ 1, 1, 0, 1, 1, 0 }, (int32_t[]){ 0, 1 }, 1, NULL, 1);
    EXPECT_EQ_INT(s.correct1, 1);       // a tie: the lower class is the answer
}

// --- verdicts ------------------------------------------------------------------------------------

enum { ROW_KINDS = 16 };

// Makes of a row of numbers in (-1, 1) one of another kind.
static void row_change(int kind, int classes, double *z, int32_t *label)
{
    double *right = &z[*label], *other = &z[(*label + 1) % classes];
    for (int j = 0; j < classes; j++)
        z[j] = kind == 1   ? 9 * z[j]
               : kind == 2 ? round(3 * z[j])        // many ties
               : kind == 3 ? 0.25
               : kind == 4 ? -INFINITY
                           : z[j];
    switch (kind) {
    case 5: *right = NAN; break;
    case 6: *other = NAN; break;
    case 7: *right = *other = z[0] = NAN; break;
    case 8: *right = INFINITY; break;
    case 9: *other = INFINITY; break;
    case 10: *right = -INFINITY; break;
    case 11: *other = -INFINITY; break;
    case 12: *right = -500, *other = 500; break;
    case 13: *right = 3e38, *other = -3e38; break;
    case 14: *label = classes; break;               // no class
    case 15: *label = -7; break;                    // masked
    }
}

static const double *row_sorted;

static int by_logit(const void *one, const void *two)
{
    int a = *(const int *)one, b = *(const int *)two;
    double x = row_sorted[a], y = row_sorted[b];
    if (isnan(x) != isnan(y))
        return isnan(x) ? -1 : 1;
    return x > y ? -1 : x < y ? 1 : a - b;
}

static Verdict verdict_plain(const double *z, int classes, int32_t label)
{
    int *order = xmalloc((size_t)classes * sizeof *order);
    bool finite = label < classes && z[label] > -INFINITY;
    double largest = 1, sum = 0;
    for (int j = 0; j < classes; j++) {
        order[j] = j;
        finite = finite && z[j] < INFINITY;
        largest = isfinite(z[j]) ? fmax(largest, fabs(z[j])) : largest;
    }
    row_sorted = z;
    qsort(order, (size_t)classes, sizeof *order, by_logit);
    Verdict v = { label, order[0], INT32_MAX, NAN, 0 };
    if (finite) {
        for (v.before = 0; order[v.before] != label; v.before++)
            continue;
        for (int j = 0; j < classes; j++)
            sum += exp(z[order[j]] - z[order[0]]);
        v.loss = (float)(log(sum) + z[order[0]] - z[label]);
        v.margin = classes > 1 ? (float)((z[order[0]] - z[order[1]]) / largest) : INFINITY;
    }
    free(order);
    return v;
}

static bool is_near(double value, double wanted)
{
    return value == wanted || fabs(value - wanted) <= 1e-6 * fmax(1, fabs(wanted));
}

static void expect_verdict(Verdict got, Verdict wanted, int classes, int row)
{
    bool finite = wanted.before < INT32_MAX;
    EXPECT(got.label == wanted.label && got.prediction == wanted.prediction &&
               got.before == wanted.before && is_near(got.margin, wanted.margin) &&
               (finite ? is_near(got.loss, wanted.loss) : !isfinite(got.loss)),
           "row %d of %d classes: label %d, prediction %d, before %d, loss %g, margin %g; wanted "
           "%d, %d, %d, %g, %g", row, classes, got.label, got.prediction, got.before,
           (double)got.loss, (double)got.margin, wanted.label, wanted.prediction, wanted.before,
           (double)wanted.loss, (double)wanted.margin);
}

// The verdicts of `rows` rows, and of one behind them that must not be touched.
static Verdict *verdicts_of(int rows, int classes, const double *z, const int32_t *labels)
{
    size_t bytes = (size_t)(rows + 1) * sizeof(Verdict);
    Verdict *verdicts = xmalloc(bytes), *there = device_alloc(device, bytes);
    int32_t *on_device = device_alloc(device, (size_t)rows * sizeof *labels);
    float *logits = to_device(z, rows * classes);
    memset(verdicts, 99, bytes);
    copy_to_device(device_stream(device), there, verdicts, bytes);
    copy_to_device(device_stream(device), on_device, labels, (size_t)rows * sizeof *labels);
    judge_rows(ops, rows, classes, logits, on_device, there);
    copy_to_host(device_stream(device), verdicts, there, bytes);
    stream_sync(device_stream(device));
    device_free(device, there);
    device_free(device, on_device);
    device_free(device, logits);
    return verdicts;
}

// What loss_cross_entropy says of a row alone is the verdict, bit for bit.
static void expect_same_as_loss(Verdict v, int classes, const double *z, int row)
{
    Stats s = run_loss(1, classes, z, &v.label, 1, NULL, 1);
    float loss = (float)s.batch_loss_sum;
    EXPECT(s.count == (v.label >= 0) && s.correct1 == (s.count && v.before < 1) &&
               s.correct5 == (s.count && v.before < 5) &&
               s.not_finite == (s.count && v.before == INT32_MAX) &&
               (s.not_finite ? !isfinite(v.loss) : memcmp(&loss, &v.loss, sizeof loss) == 0),
           "row %d of %d classes: %d, %d, %d, %d; before %d, loss %.9g, not %.9g", row, classes,
           (int)s.count, (int)s.correct1, (int)s.correct5, (int)s.not_finite, v.before,
           (double)v.loss, (double)loss);
    if (s.count && !s.not_finite)
        EXPECT_EQ_INT(s.correct1, v.prediction == v.label);
}

static void check_verdicts(int rows, int classes)
{
    Array z = array_random(rows * classes, classes);
    int32_t *labels = xmalloc((size_t)rows * sizeof *labels);
    for (int i = 0; i < rows; i++) {
        labels[i] = i * 7 / ROW_KINDS % classes;
        row_change(i % ROW_KINDS, classes, z.v + i * classes, &labels[i]);
    }
    Verdict *verdicts = verdicts_of(rows, classes, z.v, labels);
    Stats all = run_loss(rows, classes, z.v, labels, 1, NULL, 1);
    for (int i = 0; i < rows; i++) {
        Verdict wanted = { .label = labels[i] };
        if (labels[i] >= 0)
            wanted = verdict_plain(z.v + i * classes, classes, labels[i]);
        expect_verdict(verdicts[i], wanted, classes, i);
        expect_same_as_loss(verdicts[i], classes, z.v + i * classes, i);
        bool counts = labels[i] >= 0;
        all.count -= counts;
        all.correct1 -= counts && verdicts[i].before < 1;
        all.correct5 -= counts && verdicts[i].before < 5;
        all.not_finite -= counts && verdicts[i].before == INT32_MAX;
    }
    EXPECT(all.count == 0 && all.correct1 == 0 && all.correct5 == 0 && all.not_finite == 0,
           "%d classes: together the loss counts other rows", classes);
    EXPECT_EQ_INT(verdicts[rows].label, 0x63636363);
    free(verdicts);
    free(labels);
    free(z.v);
}

TEST(verdicts)
{
    static const int classes[] = { 1, 2, 4, 10, 32, 33, 100, 1000 };
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        check_verdicts(5 * ROW_KINDS + 1, classes[i]);
}

static void check_sgd(bool nesterov, int32_t skip)
{
    enum { COUNT = 1031 };
    Array p = array_random(COUNT, 1), g = array_random(COUNT, 2), v = array_random(COUNT, 3);
    float *params = to_device(p.v, COUNT), *grads = to_device(g.v, COUNT),
          *velocity = to_device(v.v, COUNT);
    Scalars *scalars = device_alloc(device, sizeof *scalars);
    scalars_set(ops, scalars, (Scalars){ .lr = 0.05f, .momentum = 0.9f, .weight_decay = 0.01f,
                                         .nesterov = nesterov, .loss_scale = 1, .skip = skip });
    for (int step = 0; step < 3; step++) {
        sgd_update(ops, COUNT, params, grads, velocity, scalars);
        for (int i = 0; i < COUNT && !skip; i++) {
            double d = g.v[i] + 0.01 * p.v[i];
            v.v[i] = 0.9 * v.v[i] + d;
            p.v[i] -= 0.05 * (nesterov ? d + 0.9 * v.v[i] : v.v[i]);
        }
    }
    expect_close("sgd", from_device(params, COUNT), p, skip ? 0 : 1e-6);
    expect_close("sgd velocity", from_device(velocity, COUNT), v, skip ? 0 : 1e-6);
    float *all[] = { params, grads, velocity };
    for (int i = 0; i < 3; i++)
        device_free(device, all[i]);
    device_free(device, scalars);
    free(p.v);
    free(g.v);
    free(v.v);
}

TEST(optimizer)
{
    check_sgd(false, 0);
    check_sgd(true, 0);
    check_sgd(true, 1);
}

// From the second element on too, where nothing lies as vectors would like it.
TEST(adding)
{
    for (int from = 0; from < 2; from++) {
        Array a = array_random(1031, 1), b = array_random(1031, 2);
        float *values = to_device(a.v, a.count), *more = to_device(b.v, b.count);
        add_into(ops, (size_t)(a.count - from), values + from, more + from);
        for (int i = from; i < a.count; i++)
            a.v[i] = (float)a.v[i] + (float)b.v[i];
        expect_close("add_into", from_device(values, a.count), a, 1e-7);
        device_free(device, values);
        device_free(device, more);
        free(a.v);
        free(b.v);
    }
}

typedef struct Scaled {
    int32_t skip;
    int64_t bad_gradients;
} Scaled;

// Scales `count` random gradients from element `from` on, of which number `where` is `odd`, on the
// device's stream and on one beside it: twice, as if they were two pieces of one step.
static Scaled scale_gradients(int count, int from, int where, double odd, float factor)
{
    Array g = array_random(count, 3);
    g.v[where] = odd;
    float *grads = to_device(g.v, count);
    Scalars *scalars = device_alloc(device, sizeof *scalars), there;
    Stats *stats = device_alloc(device, sizeof *stats);
    Stream *beside = stream_new_beside(device, "beside");
    scalars_set(ops, scalars, (Scalars){ .loss_scale = 1 });
    stream_sync(device_stream(device));
    gradients_scale(ops, beside, (size_t)(count - from), grads + from, factor, scalars, stats);
    stream_sync(beside);
    gradients_scale(ops, device_stream(device), (size_t)(count - from), grads + from, factor,
                    scalars, stats);
    for (int i = from; i < count; i++)
        g.v[i] *= (double)factor * factor;
    Array got = from_device(grads, count);
    got.v[where] = g.v[where] = 0;      // what became of it does not matter
    expect_close("gradients_scale", got, g, 1e-6);
    copy_to_host(device_stream(device), &there, scalars, sizeof there);
    stream_sync(device_stream(device));
    Scaled scaled = { there.skip, stats_back(stats).bad_gradients };
    stream_free(beside);
    device_free(device, grads);
    device_free(device, scalars);
    device_free(device, stats);
    free(g.v);
    return scaled;
}

TEST(scaling_gradients)
{
    static const struct {
        int from, where;
        double odd;
        float factor;
        bool bad;
    } cases[] = {
        { 0, 0, 0.5, 0.25f, false },        { 1, 5, 0.5, 0.25f, false },
        { 0, 0, NAN, 0.25f, true },         { 0, 1030, NAN, 1, true },
        { 0, 517, INFINITY, 0.5f, true },   { 0, 1, -INFINITY, 1, true },
        { 1, 1, NAN, 1, true },             { 1, 0, NAN, 1, false },
        { 0, 700, 3e38, 0.5f, false },      { 0, 700, -3e38, 2, true },
        { 0, 3, 1e-42, 1, false },          { 0, 3, 0, 1, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Scaled s = scale_gradients(1031, cases[i].from, cases[i].where, cases[i].odd,
                                   cases[i].factor);
        EXPECT(s.skip == cases[i].bad, "case %zu: skip is %d", i, s.skip);
        EXPECT(s.bad_gradients == cases[i].bad, "case %zu: %lld are counted", i,
               (long long)s.bad_gradients);
    }
}

int main(void)
{
    if (strcmp(device_backend, "cuda") == 0 && device_count() == 0)
        TEST_SKIP("no GPU");
    device = device_open(0, 2);
    ops = ops_new(device, &(OpsConfig){ 0 });
    convolutions();
    convolutions_with_dead_taps();
    linear_layers();
    a_recorded_convolution();
    same_weights_for_another_batch();
    normalisation();
    normalisation_far_from_zero();
    pooling();
    a_tie_goes_to_the_first();
    relu();
    loss();
    label_smoothing();
    loss_of_strange_numbers();
    verdicts();
    optimizer();
    adding();
    scaling_gradients();
    ops_free(ops);
    device_close(device);
    return test_done();
}
