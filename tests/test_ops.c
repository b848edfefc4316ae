// The operations of image networks in every type, forward and backward, against plain loops in double.
// Also the loss, verdicts and sums, in f32.
//
// ctest: PROCESSORS 2 BACKENDS cpu cuda fake
//
// Arrays are in torch's order (n, c, h, w), with values that the type represents exactly. A result may be off by its
// own rounding (roundoffs[], half a unit in the last place), and by one more where a different summation order rounds
// the other way. Most checks also allow a small part of the largest result, for sums in f32.
//
// On a CPU with bf16 instructions, bf16 is tested a second time without them. Our own loops must give the same bits
// with any number of threads, and also when they are limited to AVX2.
#include "arrays.h"
#include "check.h"

static bool cuda;
static Type type;           // of the activations

static Shape shape(int n, int c, int h, int w) { return (Shape){ n, c, h, w, type }; }

// "3x3 on (2, 16, 6, 5)": for messages.
static const char *name_of(const char *kind, Shape x)
{
    static char text[96];
    snprintf(text, sizeof text, "%s on (%d, %d, %d, %d)", kind, x.n, x.c, x.h, x.w);
    return text;
}

// ==== Convolution ================================================================================

typedef struct ConvArrays {
    double *x, *w, *bias, *dy;
    double *y, *dx, *dw, *dbias;
} ConvArrays;

static ConvArrays conv_plain(const OpSpec *s, Shape y)
{
    int taps = s->kernel_h * s->kernel_w, each = s->x.c * taps;
    size_t in = shape_count(s->x), out = shape_count(y), channels = (size_t)y.c, weights = channels * (size_t)each;
    ConvArrays a = { random_numbers(type, in, 1), random_numbers(type, weights, 2),
                     random_numbers(TYPE_F32, channels, 3), random_numbers(type, out, 4),
                     zeros(out), zeros(in), zeros(weights), zeros(channels) };
    for (int i = 0; i < (int)out; i++) {
        int q = i % y.w, p = i / y.w % y.h, o = i / (y.w * y.h) % y.c, n = i / (y.w * y.h * y.c);
        a.y[i] = s->bias ? a.bias[o] : 0;
        a.dbias[o] += a.dy[i];
        for (int k = 0; k < each; k++) {
            int row = p * s->stride - s->pad + k / s->kernel_w % s->kernel_h;
            int col = q * s->stride - s->pad + k % s->kernel_w;
            if (row < 0 || row >= s->x.h || col < 0 || col >= s->x.w)
                continue;
            int from = ((n * s->x.c + k / taps) * s->x.h + row) * s->x.w + col;
            a.y[i] += a.x[from] * a.w[o * each + k];
            a.dx[from] += a.dy[i] * a.w[o * each + k];
            a.dw[o * each + k] += a.dy[i] * a.x[from];
        }
    }
    return a;
}

// Returns the live weights, on the device. *dead, on the host: the weights that read only padding.
static float *import(const Op *conv, const double *oihw, size_t count, float **dead)
{
    size_t bytes = conv_live_count(conv) * sizeof(float);
    float *live = host_memory(bytes), *torch = host_memory(count * sizeof *torch);
    *dead = host_memory(conv_dead_count(conv) * sizeof **dead);
    for (size_t i = 0; i < count; i++)
        torch[i] = (float)oihw[i];
    conv_weights_move(conv, live, *dead, torch, FROM_TORCH);
    return to_device(live, bytes);
}

static float *export(const Op *conv, const float *live, float *dead, size_t count)
{
    float *torch = host_memory(count * sizeof *torch);
    float *here = to_host(live, conv_live_count(conv) * sizeof *here);
    conv_weights_move(conv, here, dead, torch, TO_TORCH);
    return to_device(torch, count * sizeof *torch);
}

// The weights that op_forward reads: f32, or a copy in a 16-bit type.
static const void *weights_to_read(const Op *conv, const float *arena)
{
    size_t count = conv_live_count(conv);
    if (type == TYPE_F32)
        return arena;
    void *copy = memory(count * type_size(type));
    values_narrow(device_stream(device), type, count, arena, 1, copy);
    return copy;
}

// The f32 gradients of a 16-bit layer get extra bits, which the backward pass must round.
static void *output_gradient(const OpSpec *s, Shape y, const double *dy)
{
    double *off = zeros(shape_count(y));
    for (size_t i = 0; i < shape_count(y); i++)
        off[i] = dy[i] * (s->f32_out && type != TYPE_F32 ? 1 + 0x1p-14 : 1);
    return activation(y, off);
}

static void check_conv(OpSpec spec)
{
    Op *conv = op_new(ops, &spec);
    size_t weights = (size_t)spec.out_channels * spec.x.c * spec.kernel_h * spec.kernel_w;
    Shape y = op_output(conv), channels = row((size_t)spec.out_channels);
    ConvArrays a = conv_plain(&spec, y);
    float *dead, *live = import(conv, a.w, weights, &dead), *bias = activation(channels, a.bias);
    float *dw = memory(conv_live_count(conv) * sizeof *dw), *dbias = empty(channels);
    const void *x = activation(spec.x, a.x), *dy = output_gradient(&spec, y, a.dy);
    void *out = empty(y), *dx = spec.needs_dx ? empty(spec.x) : NULL;
    OpArgs args = { .x = x, .w = weights_to_read(conv, live), .bias = bias, .y = out, .dy1 = dy,
                    .dx = dx, .dw = dw, .dbias = dbias };
    // cuDNN rounds y to its type before the bias is added. From 16-bit tensors it makes a 16-bit dw. Matrix products do
    // not use cuDNN.
    bool product = y.h * y.w == 1 && spec.kernel_h >= spec.x.h;
    double u = roundoffs[y.type], its_own = cuda && !product ? u : 0;
    double wide_dy = spec.f32_out && type != TYPE_F32 ? 0x1p-13 : 1e-5;
    char kernel[32];
    snprintf(kernel, sizeof kernel, "%dx%d, stride %d", spec.kernel_h, spec.kernel_w, spec.stride);
    const char *name = name_of(kernel, spec.x);

    EXPECT_EQ_INT(y.type, spec.f32_out ? TYPE_F32 : type);
    expect_near(name, row(weights), export(conv, live, dead, weights), a.w, 0, 0);
    for (int i = 0; i < 2; i++) {       // twice: the results must overwrite, not accumulate
        op_forward(conv, &args);
        op_backward(conv, &args);
        ops_join(ops);
    }
    expect_near(name, y, out, a.y, 2 * u, 1e-5 + (spec.bias ? its_own : 0));
    memset(dead, 0, conv_dead_count(conv) * sizeof *dead);     // the gradients of dead weights
    expect_near(name, row(weights), export(conv, dw, dead, weights), a.dw, its_own, 1e-5);
    if (spec.bias)
        expect_near(name, channels, dbias, a.dbias, 0, wide_dy);
    if (spec.needs_dx)
        expect_near(name, spec.x, dx, a.dx, 2 * roundoffs[type], 1e-5);
    op_free(conv);
    check_ends();
}

static void convolutions(void)
{
    const OpSpec specs[] = {
        { OP_CONV, shape(2, 3, 17, 15), 16, 7, 7, 2, 3 },                   // images
        { OP_CONV, shape(3, 1, 9, 8), 6, 5, 5, 1, 0, true },
        { OP_CONV, shape(2, 6, 9, 7), 5, 5, 5, 1, 2, true, true },
        { OP_CONV, shape(2, 16, 6, 5), 32, 3, 3, 1, 1, true, true },
        { OP_CONV, shape(3, 16, 7, 6), 16, 3, 3, 2, 1, false, true },
        { OP_CONV, shape(3, 16, 5, 4), 32, 1, 1, 2, 0, false, true },
        { OP_CONV, shape(3, 32, 3, 3), 16, 1, 1, 1, 0, false, true },
        { OP_CONV, shape(5, 16, 1, 1), 32, 3, 3, 1, 1, false, true },       // some taps never meet a pixel
        { OP_CONV, shape(4, 16, 2, 2), 16, 3, 3, 1, 1, false, true },
        { OP_CONV, shape(4, 16, 2, 2), 32, 3, 3, 2, 1, false, true },
        { OP_CONV, shape(4, 16, 2, 5), 16, 3, 3, 2, 1, false, true },
        { OP_CONV, shape(4, 16, 2, 9), 20, 5, 5, 1, 2, false, true },
        { OP_CONV, shape(4, 16, 2, 1), 16, 5, 5, 1, 2, true, true },
        { OP_CONV, shape(5, 3, 1, 1), 7, 3, 3, 1, 1, true, true },
        { OP_CONV, shape(5, 3, 1, 1), 7, 3, 3, 1, 2, false, true },         // one pixel becomes nine
        { OP_CONV, shape(3, 6, 5, 5), 12, 5, 5, 1, 0, true, true },         // linear
        { OP_CONV, shape(3, 16, 3, 2), 10, 3, 2, 1, 0, true, true },
        { OP_CONV, shape(1, 16, 1, 1), 3, 1, 1, 1, 0, true, true },
        { OP_CONV, shape(7, 48, 1, 1), 10, 1, 1, 1, 0, true, true, true },  // logits
        { OP_CONV, shape(3, 16, 3, 2), 10, 3, 2, 1, 0, true, true, true },
    };
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        check_conv(specs[i]);
}

typedef struct Recorded {
    Op *conv;
    OpArgs args;
} Recorded;

static void recorded_forward(void *arg)
{
    Recorded *step = arg;
    op_forward(step->conv, &step->args);
}

// A recorded step stays valid when a later convolution makes the scratch memory grow.
static void a_recorded_convolution(void)
{
    Ops *own = ops_new(device, &(OpsConfig){ .deterministic = true });
    OpSpec small = { OP_CONV, shape(2, 16, 6, 5), 16, 3, 3, 1, 1, false, false };
    OpSpec large = { OP_CONV, { 64, 32, 1, 1, TYPE_BF16 }, 1024, 1, 1, 1, 0, true, true, true };
    Replay *replay = replay_new(device, 1);
    Recorded step = { .conv = op_new(own, &small) };
    Shape y = op_output(step.conv);
    ConvArrays a = conv_plain(&small, y);
    float *dead;
    void *out = empty(y);
    step.args = (OpArgs){ .x = activation(small.x, a.x), .y = out, .w = import(step.conv, a.w, 16 * 16 * 9, &dead) };
    for (int i = 0; i < 3; i++)
        replay_run(replay, 0, recorded_forward, &step);
    Op *later = op_new(own, &large);
    fill_zero(device_stream(device), out, shape_bytes(y));
    replay_run(replay, 0, recorded_forward, &step);
    expect_near("replayed", y, out, a.y, 0, 1e-5);
    replay_free(replay);
    op_free(later);
    op_free(step.conv);
    check_ends();
    ops_free(own);
}

// ==== Batch normalisation ========================================================================

typedef struct NormCase {
    Shape x;
    bool add, relu, two;    // two: the gradient of y is a sum of two
    double offset;          // added to all of x
    double first;           // added to the first pixel of each channel of the first image
} NormCase;

typedef struct NormArrays {
    double *x, *gamma, *beta, *residual, *dy, *more, *mean, *var;
    double *y, *dx, *dgamma, *dbeta, *d;    // d: the gradient of the residual
} NormArrays;

// The index of number i of a channel.
static size_t in_channel(Shape s, int c, int i)
{
    int pixels = s.h * s.w;
    return (size_t)(i / pixels * s.c + c) * pixels + i % pixels;
}

// Each image has a different mean, so each rank's statistics differ clearly from the batch's.
static NormArrays norm_arrays(const NormCase *n)
{
    Shape s = n->x;
    size_t count = shape_count(s), c = (size_t)s.c;
    NormArrays a = { random_numbers(type, count, 1), random_numbers(TYPE_F32, c, 2), random_numbers(TYPE_F32, c, 3),
                     random_numbers(type, count, 4), random_numbers(type, count, 5), random_numbers(type, count, 6),
                     zeros(c), zeros(c), zeros(count), zeros(count), zeros(c), zeros(c), zeros(count) };
    for (int k = 0; k < s.c; k++)
        for (int i = 0, rows = s.n * s.h * s.w; i < rows; i++) {
            double *x = &a.x[in_channel(s, k, i)];
            *x = rounded(type, (float)(*x + n->offset + 0.75 * (i / (s.h * s.w)) + (i == 0 ? n->first : 0)));
            a.mean[k] += *x / rows;
        }
    for (int k = 0; k < s.c; k++)
        for (int i = 0, rows = s.n * s.h * s.w; i < rows; i++)
            a.var[k] += pow(a.x[in_channel(s, k, i)] - a.mean[k], 2) / rows;
    return a;
}

static void norm_plain(const NormCase *n, const NormArrays *a)
{
    for (int c = 0; c < n->x.c; c++)
        for (int i = 0; i < n->x.n * n->x.h * n->x.w; i++) {
            size_t at = in_channel(n->x, c, i);
            double y = a->gamma[c] * (a->x[at] - a->mean[c]) / sqrt(a->var[c] + 1e-5) + a->beta[c];
            y += n->add ? a->residual[at] : 0;
            a->y[at] = n->relu && y < 0 ? 0 : y;
        }
}

static void norm_plain_backward(const NormCase *n, const NormArrays *a)
{
    int count = n->x.n * n->x.h * n->x.w;
    for (int c = 0; c < n->x.c; c++) {
        double inv_std = 1 / sqrt(a->var[c] + 1e-5);
        for (int i = 0; i < count; i++) {
            size_t at = in_channel(n->x, c, i);
            a->d[at] = n->relu && a->y[at] <= 0 ? 0 : a->dy[at] + (n->two ? a->more[at] : 0);
            a->dbeta[c] += a->d[at];
            a->dgamma[c] += a->d[at] * (a->x[at] - a->mean[c]) * inv_std;
        }
        for (int i = 0; i < count; i++) {
            size_t at = in_channel(n->x, c, i);
            double hat = (a->x[at] - a->mean[c]) * inv_std;
            a->dx[at] = a->gamma[c] * inv_std * (a->d[at] - a->dbeta[c] / count - hat * a->dgamma[c] / count);
        }
    }
}

// Ranks that share a batch, in one process: each computes twice, first to contribute its numbers, then with the numbers
// of all ranks. t: the tensors of these two passes.
enum { MAX_RANKS = 3 };
static struct {
    int ranks, rank, gathers;
    bool complete;
    double *all;        // device: (ranks, count)
    NormTensors t[2][MAX_RANKS];
} shared;

static void gather(void *arg, const double *mine, double *all, size_t count)
{
    size_t bytes = count * sizeof *all;
    shared.gathers++;
    if (shared.complete)
        copy_on_device(device_stream(device), all, shared.all, (size_t)shared.ranks * bytes);
    else
        copy_on_device(device_stream(device), shared.all + shared.rank * count, mine, bytes);
}

// The running mean starts at beta, and the running variance at 1 + gamma / 2.
static NormTensors norm_tensors(Shape channels, const NormArrays *a)
{
    double *var = zeros((size_t)channels.c);
    for (int c = 0; c < channels.c; c++)
        var[c] = 1 + a->gamma[c] / 2;
    return (NormTensors){ activation(channels, a->gamma), activation(channels, a->beta), activation(channels, a->beta),
                          activation(channels, var), empty(channels), empty(channels), empty(channels),
                          empty(channels) };
}

// args: those of the whole batch. Each rank gets a part of the batch's images.
static void norm_calls(const NormCase *n, Op *const norm[], const OpArgs *args, bool forward)
{
    for (int complete = shared.ranks == 1; complete < 2; complete++)
        for (int k = 0; k < shared.ranks; k++) {
            OpArgs part = *args;
            size_t at = shape_bytes(n->x) / (size_t)n->x.n * (size_t)(n->x.n * k / shared.ranks);
            const void **inputs[] = { &part.x, &part.residual, &part.dy1, &part.dy2 };
            void **outputs[] = { &part.y, &part.dx, &part.dresidual };
            for (int i = 0; i < 4; i++)
                *inputs[i] = *inputs[i] ? (const char *)*inputs[i] + at : NULL;
            for (int i = 0; i < 3; i++)
                *outputs[i] = *outputs[i] ? (char *)*outputs[i] + at : NULL;
            shared.rank = k;
            shared.complete = complete;
            part.norm = shared.t[forward ? complete : 1][k];
            (forward ? op_forward : op_backward)(norm[k], &part);
        }
}

// Also sums the ranks' parameter gradients into rank 0's.
static void check_ranks(size_t c)
{
    size_t bytes = c * sizeof(float);
    NormTensors *one = &shared.t[1][0];
    for (NormTensors *other = one + 1; other < one + shared.ranks; other++) {
        const float *same[][2] = { { one->mean, other->mean }, { one->inv_std, other->inv_std },
                                   { one->running_var, other->running_var } };
        for (int i = 0; i < 3; i++)
            EXPECT(memcmp(to_host(same[i][0], bytes), to_host(same[i][1], bytes), bytes) == 0, "another rank's");
        add_into(ops, c, one->dgamma, other->dgamma);
        add_into(ops, c, one->dbeta, other->dbeta);
    }
}

// Replaces the batch's statistics by the running ones.
static void check_running(Shape channels, double count, NormArrays *a, const NormTensors *t)
{
    for (int c = 0; c < channels.c; c++) {
        a->mean[c] = 0.9 * a->beta[c] + 0.1 * a->mean[c];
        a->var[c] = 0.9 * (1 + a->gamma[c] / 2) + 0.1 * a->var[c] * count / (count - 1);
    }
    expect_near("running mean", channels, t->running_mean, a->mean, 0, 1e-5);
    expect_near("running variance", channels, t->running_var, a->var, 0, 1e-5);
}

static void check_norm(const NormCase *n, int ranks)
{
    Shape s = n->x, channels = row((size_t)s.c);
    NormArrays a = norm_arrays(n);
    double u = roundoffs[type], wide = n->offset > 0 ? 1e-4 : 1e-5, sums = n->two ? u : 0;
    const char *name = name_of("norm", s);
    NormTensors *t = &shared.t[1][0];
    Op *norm[MAX_RANKS];
    OpArgs args = { .training = true, .x = activation(s, a.x), .residual = n->add ? activation(s, a.residual) : NULL,
                    .y = empty(s), .dy1 = activation(s, a.dy), .dy2 = n->two ? activation(s, a.more) : NULL,
                    .dx = empty(s), .dresidual = n->add ? empty(s) : NULL };
    norm_plain(n, &a);
    norm_plain_backward(n, &a);
    shared.ranks = ranks;
    shared.gathers = 0;
    shared.all = memory((size_t)ranks * (1 + 2 * (size_t)s.c) * sizeof(double));
    for (int k = 0; k < ranks; k++) {
        OpSpec spec = { .kind = OP_NORM, .x = s, .relu = n->relu };
        spec.x.n = s.n * (k + 1) / ranks - s.n * k / ranks;
        norm[k] = op_new(ops, &spec);
        shared.t[0][k] = norm_tensors(channels, &a);
        shared.t[1][k] = norm_tensors(channels, &a);
    }
    ops_share_norms(ops, ranks, gather, NULL);
    norm_calls(n, norm, &args, true);
    norm_calls(n, norm, &args, false);
    check_ranks((size_t)s.c);
    expect_near(name, s, args.y, a.y, u, wide);
    expect_near(name, s, args.dx, a.dx, u, wide + 2 * sums);
    expect_near("dgamma", channels, t->dgamma, a.dgamma, 0, wide + sums);
    expect_near("dbeta", channels, t->dbeta, a.dbeta, 0, wide + sums);
    if (n->add)
        expect_near("dresidual", s, args.dresidual, a.d, u, 1e-6);

    check_running(channels, s.n * s.h * s.w, &a, t);
    args.training = false;
    norm_calls(n, norm, &args, true);
    norm_plain(n, &a);
    expect_near("evaluation", s, args.y, a.y, u, wide);
    expect_near("running mean, after it", channels, t->running_mean, a.mean, 0, 1e-5);
    EXPECT_EQ_INT(shared.gathers, ranks > 1 ? 4 * ranks : 0);
    for (int k = 0; k < ranks; k++)
        op_free(norm[k]);
    ops_share_norms(ops, 1, NULL, NULL);
    check_ends();
}

// At an offset of 1000, E[x^2] - E[x]^2 in f32 would lose almost all digits. The f32 mean's 24 bits limit the accuracy
// to 1e-4.
static void normalisation(void)
{
    const NormCase cases[] = {
        { shape(3, 16, 5, 3) },
        { shape(2, 32, 3, 3), .relu = true },
        { shape(6, 32, 3, 4), .add = true, .relu = true },
        { shape(5, 16, 9, 11), .add = true, .relu = true, .two = true },
        { shape(4, 48, 1, 1), .two = true },          // ranks with one row
        { shape(4, 5, 3, 3), .relu = true },        // rows are not aligned
        { shape(4, 16, 5, 5), .offset = 1000 },
        { shape(8, 16, 17, 17), .relu = true, .first = 1e4 },
    };
    for (int i = 0; i < (type == TYPE_F32 ? 8 : 6); i++)
        for (int ranks = 1; ranks <= cases[i].x.n; ranks += 2)
            if (ranks <= MAX_RANKS)
                check_norm(&cases[i], ranks);
}

// ==== Pooling, ReLU, images ======================================================================

// Pixels have only a few values, so that there are ties. As in PyTorch, the first of equal pixels is the maximum and
// gets the whole gradient.
static void check_maxpool(Shape from, int kernel, int stride, int pad, bool two)
{
    OpSpec spec = { .kind = OP_MAXPOOL, .x = from, .kernel_h = kernel, .stride = stride, .pad = pad };
    Shape out = { from.n, from.c, window_count(from.h, kernel, stride, pad), window_count(from.w, kernel, stride, pad),
                  type };
    size_t in_count = shape_count(from), count = shape_count(out);
    double *x = random_numbers(type, in_count, 1), *dy = random_numbers(type, count, 2);
    double *more = random_numbers(type, count, 3), *y = zeros(count), *dx = zeros(in_count);
    for (size_t i = 0; i < in_count; i++)
        x[i] = rint(8 * x[i]) / 8;
    for (int i = 0; i < (int)count; i++) {
        int q = i % out.w, p = i / out.w % out.h, plane = i / (out.w * out.h), best = -1;
        for (int k = 0; k < kernel * kernel; k++) {
            int row = p * stride - pad + k / kernel, col = q * stride - pad + k % kernel;
            int at = (plane * from.h + row) * from.w + col;
            bool inside = row >= 0 && row < from.h && col >= 0 && col < from.w;
            if (inside && (best < 0 || x[at] > x[best]))
                best = at;
        }
        y[i] = x[best];
        dx[best] += dy[i] + (two ? more[i] : 0);
    }
    OpArgs args = { .x = activation(from, x), .y = empty(out), .dy1 = activation(out, dy),
                    .dy2 = two ? activation(out, more) : NULL, .dx = empty(from), .index = memory(count) };
    run_op(&spec, &args);
    expect_near(name_of("maxpool", from), out, args.y, y, 0, 0);
    expect_near(name_of("maxpool, backward", from), from, args.dx, dx, roundoffs[type], 1e-6);
    check_ends();
}

static void check_avgpool(Shape s)
{
    Shape out = { s.n, s.c, 1, 1, type };
    int pixels = s.h * s.w, count = (int)shape_count(s);
    double *x = random_numbers(type, (size_t)count, 1), *y = zeros(shape_count(out));
    double *dy = random_numbers(type, shape_count(out), 2), *dx = zeros((size_t)count);
    for (int i = 0; i < count; i++) {
        y[i / pixels] += x[i] / pixels;
        dx[i] = dy[i / pixels] / pixels;
    }
    OpArgs args = { .x = activation(s, x), .y = empty(out), .dy1 = activation(out, dy), .dx = empty(s) };
    run_op(&(OpSpec){ .kind = OP_AVGPOOL, .x = s }, &args);
    expect_near("avgpool", out, args.y, y, roundoffs[type], 1e-6);
    expect_near("avgpool backward", s, args.dx, dx, roundoffs[type], 1e-6);
    check_ends();
}

static void pooling(void)
{
    check_maxpool(shape(2, 16, 7, 5), 3, 2, 1, true);
    check_maxpool(shape(2, 6, 6, 4), 2, 2, 0, false);
    check_maxpool(shape(2, 5, 5, 7), 2, 2, 0, true);        // a row and a column are in no window
    check_avgpool(shape(3, 32, 4, 3));
    check_avgpool(shape(3, 5, 4, 3));
    check_avgpool(shape(1, 10, 4, 3));      // one row of y, but x's rows are not aligned
}

static void relu(void)
{
    enum { COUNT = 9001 };
    Shape s = { 1, COUNT, 1, 1, type };
    double *x = random_numbers(type, COUNT, 1), *dy = random_numbers(type, COUNT, 2);
    void *in = activation(s, x), *d = activation(s, dy), *y = empty(s);
    for (int i = 0; i < COUNT; i++) {
        dy[i] = x[i] > 0 ? dy[i] : 0;
        x[i] = x[i] > 0 ? x[i] : 0;
    }
    run_op(&(OpSpec){ .kind = OP_RELU, .x = s }, &(OpArgs){ .x = in, .y = y, .dy1 = d, .dx = d });
    expect_near("relu", s, y, x, 0, 0);
    expect_near("relu backward", s, d, dy, 0, 0);
    check_ends();
}

// Rows after the images become zeros.
static void images(void)
{
    enum { COUNT = 3, PIXELS = 8 * 7, BYTES = COUNT * 3 * PIXELS };
    uint8_t bytes[BYTES];
    const float mean[3] = { 0.49f, 0.48f, 0.45f }, std[3] = { 0.25f, 0.24f, 0.26f };
    Shape s = shape(COUNT + 1, 3, 8, 7);
    double *wanted = zeros(shape_count(s));
    for (int i = 0; i < BYTES; i++) {
        bytes[i] = (uint8_t)philox(1, 2, (uint64_t)i).v[0];
        wanted[i] = (bytes[i] / 255.0 - mean[i / PIXELS % 3]) / std[i / PIXELS % 3];
    }
    void *x = activation(s, random_numbers(type, shape_count(s), 1));
    images_load(device_stream(device), to_device(bytes, sizeof bytes), COUNT, 3, mean, std, x, s);
    expect_near("images", s, x, wanted, roundoffs[type] * 1.01, 1e-6);
    check_ends();
}

// ==== Loss =======================================================================================

static Stats run_loss(int rows, int classes, const double *z, const int32_t *labels, float *dz)
{
    float *logits = activation(row((size_t)(rows * classes)), z);
    Scalars start = { .scale.value = 1 };
    Stats *stats = memory(sizeof *stats);
    loss_cross_entropy(ops, rows, classes, logits, to_device(labels, (size_t)rows * sizeof *labels),
                       to_device(&start, sizeof start), stats, dz);
    return *(Stats *)to_host(stats, sizeof *stats);
}

// Against torch.nn.CrossEntropyLoss(ignore_index=-1) in float64.
static void loss_and_gradient(void)
{
    static const double z[] = { 1, -2, 0.5, 3, 0.25, 0.25, -1, 0, 4, 0, -4, 1 };
    static const int32_t labels[] = { 0, -1, 3 };
    static const double wanted[] = { -0.444723125, 0.00275207358, 0.0335271196, 0.408443932, 0, 0, 0, 0,
                                     0.467972798, 0.00857122078, 0.0001569874, -0.476701006 };
    float *dz = empty(row(12));
    Stats s = run_loss(3, 4, z, labels, dz);
    EXPECT_NEAR(s.batch_loss_sum / 2, 2.63422569, 1e-6);
    expect_near("gradient of the loss", row(12), dz, wanted, 0, 1e-6);
    check_ends();
}

// Makes a special case of a row of numbers in [-1, 1), or of its label.
enum { ROW_KINDS = 11 };
static void row_change(int kind, int classes, double *z, int32_t *label)
{
    double *right = &z[*label], *other = &z[(*label + 1) % classes];
    for (int j = 0; j < classes; j++)
        z[j] = kind == 1 ? 9 * z[j] : kind == 2 ? round(3 * z[j]) : z[j];   // 2: many ties
    switch (kind) {
    case 3: *right = NAN; break;
    case 4: *other = NAN; break;
    case 5: *right = INFINITY; break;
    case 6: *other = INFINITY; break;
    case 7: *right = -INFINITY; break;
    case 8: *right = -500, *other = 500; break;
    case 9: *label = classes; break;
    case 10: *label = -7; break;
    }
}

static Verdict verdict_plain(const double *z, int classes, int32_t label)
{
    Verdict v = { .label = label };
    double sum = 0, mine = label < classes ? z[label] : NAN;
    for (int j = 1; j < classes && label >= 0; j++)
        if (!isnan(z[v.prediction]) && (isnan(z[j]) || z[j] > z[v.prediction]))
            v.prediction = j;
    for (int j = 0; j < classes && label >= 0; j++) {
        sum += exp(z[j] - z[v.prediction]);
        v.before += z[j] > mine || (z[j] == mine && j < label);
    }
    double loss = label < 0 ? 0 : log(sum) + z[v.prediction] - mine;
    v.before = isfinite(loss) ? v.before : INT32_MAX;
    v.loss = (float)loss;
    return v;
}

// There is one verdict more than there are rows; judge_rows must not touch it.
static void check_verdicts(int rows, int classes)
{
    size_t bytes = (size_t)(rows + 1) * sizeof(Verdict);
    double *z = random_numbers(TYPE_F32, (size_t)(rows * classes), classes);
    int32_t *labels = host_memory((size_t)rows * sizeof *labels);
    for (int i = 0; i < rows; i++) {
        labels[i] = i * 7 / ROW_KINDS % classes;
        row_change(i % ROW_KINDS, classes, z + i * classes, &labels[i]);
    }
    Verdict *there = to_device(memset(host_memory(bytes), 99, bytes), bytes);
    judge_rows(ops, rows, classes, activation(row((size_t)(rows * classes)), z),
               to_device(labels, (size_t)rows * sizeof *labels), there);
    const Verdict *verdicts = to_host(there, bytes);
    Stats all = run_loss(rows, classes, z, labels, NULL);
    for (int i = 0; i < rows; i++) {
        Verdict got = verdicts[i], wanted = verdict_plain(z + i * classes, classes, labels[i]);
        bool counts = labels[i] >= 0, finite = wanted.before < INT32_MAX;
        EXPECT(got.label == wanted.label && got.prediction == wanted.prediction && got.before == wanted.before &&
                   (finite ? fabs(got.loss - wanted.loss) <= 1e-6 * fmax(1, wanted.loss) : !isfinite(got.loss)),
               "row %d of %d classes: label %d, prediction %d, before %d, loss %g; wanted %d, %d, %d, %g", i, classes,
               got.label, got.prediction, got.before, got.loss, wanted.label, wanted.prediction, wanted.before,
               wanted.loss);
        all.count -= counts;
        all.correct1 -= counts && got.before < 1;
        all.correct5 -= counts && got.before < 5;
        all.not_finite -= counts && got.before == INT32_MAX;
    }
    EXPECT(all.count == 0 && all.correct1 == 0 && all.correct5 == 0 && all.not_finite == 0,
           "%d classes: the totals of loss and verdicts differ", classes);
    EXPECT_EQ_INT(verdicts[rows].label, 0x63636363);
    check_ends();
}

// ==== Everything, with all threads and instructions ==============================================

// Adds the results of a loss, a norm and two updates to the checksum.
static void a_step(void)
{
    enum { COUNT = 100000, ROWS = 300, CLASSES = 70 };
    Shape numbers = row(COUNT), scores = row(ROWS * CLASSES);
    float *grads = activation(numbers, random_numbers(TYPE_F32, COUNT, 1));
    float *params = activation(numbers, random_numbers(TYPE_F32, COUNT, 2));
    float *first = empty(numbers), *second = empty(numbers), *dlogits = empty(scores);
    float *logits = activation(scores, random_numbers(TYPE_F32, ROWS * CLASSES, 3));
    Scalars start = { .scale.value = 8 }, *scalars = to_device(&start, sizeof start);
    Stats *stats = memory(sizeof *stats);
    uint8_t *decays = memory(COUNT / PARAM_ALIGN);
    int32_t *labels = host_memory(ROWS * sizeof *labels);
    for (int i = 0; i < ROWS; i++)
        labels[i] = i % (CLASSES + 1) - 1;
    scalars_set(ops, scalars, (StepSettings){ .lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f,
                                              .clip_norm = 1, .betas = { 0.9, 0.99 }, .step = 1 });
    loss_cross_entropy(ops, ROWS, CLASSES, logits, to_device(labels, ROWS * sizeof *labels),
                       scalars, stats, dlogits);
    gradients_norm(ops, COUNT, grads, scalars);
    sgd_update(ops, COUNT, COUNT / 32 * 16, params, grads, first, scalars);
    adamw_update(ops, COUNT, COUNT / 32 * 16, params, grads, first, second, decays, scalars);
    add_bits(to_host(scalars, sizeof *scalars), sizeof *scalars);
    add_bits(to_host(stats, sizeof *stats), sizeof *stats);
    add_bits(to_host(dlogits, shape_bytes(scores)), shape_bytes(scores));
    add_bits(to_host(params, shape_bytes(numbers)), shape_bytes(numbers));
    check_ends();
}

// Checks the operations that are loops of our own. Returns a checksum of most results.
static uint64_t own_loops(Type first, Type last)
{
    static const int classes[] = { 1, 4, 33, 100, 1000 };
    result_bits = 0;
    for (type = first; type <= last; type++) {
        normalisation();
        pooling();
        relu();
        images();
    }
    type = TYPE_F32;
    loss_and_gradient();
    for (int i = 0; i < 5; i++)
        check_verdicts(5 * ROW_KINDS + 1, classes[i]);
    a_step();
    return result_bits;
}

static void loops_for_avx2(const void *arg)
{
    setenv("DNNL_MAX_CPU_ISA", "AVX2", 1);
    test_open_device(1, (OpsConfig){ 0 });
    printf("%llx\n", (unsigned long long)own_loops(TYPE_F32, TYPE_F16));
    test_close_device();
}

static void check_device(void)
{
    bool emulates = ops_emulates(device, TYPE_BF16);
    EXPECT(!ops_emulates(device, ops_best_type(device)), "the best type is emulated");
    EXPECT(!ops_emulates(device, TYPE_F32) && !(cuda && emulates), "f32, or bf16 on a GPU, is emulated");
    EXPECT_EQ_INT(ops_emulates(device, TYPE_F16), !cuda);
}

int main(int argc, char **argv)
{
    bool only_bf16 = argc > 1 && strcmp(argv[1], "bf16") == 0;
    cuda = strcmp(device_backend, "cuda") == 0;
    Type first = only_bf16 ? TYPE_BF16 : TYPE_F32, last = only_bf16 ? TYPE_BF16 : TYPE_F16;
    uint64_t bits = 0, avx2 = 0;
    if (!cuda && !only_bf16) {      // before this process chooses its instructions
        EXPECT_EQ_INT(test_child(loops_for_avx2, NULL), 0);
        avx2 = strtoull(test_said, NULL, 16);
    }
    for (int threads = cuda ? 1 : 3; threads > 0; threads--) {
        if (device)
            test_close_device();
        test_open_device(threads, (OpsConfig){ 0 });
        uint64_t now = own_loops(first, last);
        EXPECT(bits == 0 || now == bits, "the results depend on the number of threads");
        bits = now;
    }
    EXPECT(cuda || only_bf16 || bits == avx2, "the loops for AVX2 give other results: %s", test_said);
    test_close_device();
    test_open_device(2, (OpsConfig){ 0 });
    check_device();
    for (type = first; type <= last; type++)
        convolutions();
    type = TYPE_F32;
    a_recorded_convolution();
    if (!cuda && !ops_emulates(device, TYPE_BF16))
        test_again_with("DNNL_MAX_CPU_ISA", "AVX512_CORE",
                        (char *[]){ "test_ops", "bf16", NULL });
    test_close_device();
    return test_done();
}
