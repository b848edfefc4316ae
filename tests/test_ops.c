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
// with any number of threads, and limited to AVX2.
#include "arrays.h"
#include "check.h"

static bool cuda;
static Type type;           // of the activations

static Shape shape(int n, int c, int h, int w) { return (Shape){ n, c, h, w, type }; }

// ==== Convolution ================================================================================

typedef struct ConvArrays {
    double *x, *w, *bias, *dy;
    double *y, *dx, *dw, *dbias;
} ConvArrays;

static ConvArrays conv_arrays(const OpSpec *s, Shape y, size_t weights)
{
    size_t in = shape_count(s->x), out = shape_count(y), channels = (size_t)s->out_channels;
    return (ConvArrays){ random_numbers(type, in, 1),     random_numbers(type, weights, 2),
                         random_numbers(TYPE_F32, channels, 3), random_numbers(type, out, 4),
                         zeros(out), zeros(in), zeros(weights), zeros(channels) };
}

static void conv_plain(const OpSpec *s, Shape y, const ConvArrays *a)
{
    int taps = s->kernel_h * s->kernel_w, each = s->x.c * taps;
    for (int i = 0; i < (int)shape_count(y); i++) {
        int q = i % y.w, p = i / y.w % y.h, o = i / (y.w * y.h) % y.c, n = i / (y.w * y.h * y.c);
        a->y[i] = s->bias ? a->bias[o] : 0;
        a->dbias[o] += a->dy[i];
        for (int k = 0; k < each; k++) {
            int row = p * s->stride - s->pad + k / s->kernel_w % s->kernel_h;
            int col = q * s->stride - s->pad + k % s->kernel_w;
            if (row < 0 || row >= s->x.h || col < 0 || col >= s->x.w)
                continue;
            int from = ((n * s->x.c + k / taps) * s->x.h + row) * s->x.w + col;
            a->y[i] += a->x[from] * a->w[o * each + k];
            a->dx[from] += a->dy[i] * a->w[o * each + k];
            a->dw[o * each + k] += a->dy[i] * a->x[from];
        }
    }
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
    values_narrow(ops, device_stream(device), type, count, arena, 1, copy);
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

static void check_conv(const char *name, OpSpec spec)
{
    Op *conv = op_new(ops, &spec, NULL);
    size_t weights = (size_t)spec.out_channels * spec.x.c * spec.kernel_h * spec.kernel_w;
    Shape y = op_output(conv), channels = row((size_t)spec.out_channels);
    ConvArrays a = conv_arrays(&spec, y, weights);
    conv_plain(&spec, y, &a);
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

// In some cases the image is so small that some taps never meet a pixel.
static void convolutions(void)
{
    const struct {
        const char *name;
        OpSpec spec;
    } cases[] = {
        { "7x7 stride 2 on images", { OP_CONV, shape(2, 3, 17, 15), 16, 7, 7, 2, 3 } },
        { "5x5 on one channel", { OP_CONV, shape(3, 1, 9, 8), 6, 5, 5, 1, 0, true } },
        { "5x5, 16 channels from one",
          { OP_CONV, shape(3, 1, 9, 8), 16, 5, 5, 1, 2, true } },
        { "5x5, odd channels", { OP_CONV, shape(2, 6, 9, 7), 5, 5, 5, 1, 2, true, true } },
        { "3x3", { OP_CONV, shape(2, 16, 6, 5), 32, 3, 3, 1, 1, false, true } },
        { "3x3 with bias", { OP_CONV, shape(2, 16, 6, 5), 16, 3, 3, 1, 1, true, true } },
        { "3x3 stride 2", { OP_CONV, shape(3, 16, 7, 6), 16, 3, 3, 2, 1, false, true } },
        { "1x1 stride 2", { OP_CONV, shape(3, 16, 5, 4), 32, 1, 1, 2, 0, false, true } },
        { "1x1", { OP_CONV, shape(3, 32, 3, 3), 16, 1, 1, 1, 0, false, true } },
        { "3x3 on 1x1", { OP_CONV, shape(5, 16, 1, 1), 32, 3, 3, 1, 1, false, true } },
        { "3x3 on 2x2", { OP_CONV, shape(4, 16, 2, 2), 16, 3, 3, 1, 1, false, true } },
        { "3x3 stride 2 on 2x2",
          { OP_CONV, shape(4, 16, 2, 2), 32, 3, 3, 2, 1, false, true } },
        { "1x1 stride 2 on 2x2",
          { OP_CONV, shape(4, 16, 2, 2), 32, 1, 1, 2, 0, false, true } },
        { "3x3 on 2x5", { OP_CONV, shape(4, 16, 2, 5), 16, 3, 3, 2, 1, false, true } },
        { "5x5 on 2x9", { OP_CONV, shape(4, 16, 2, 9), 20, 5, 5, 1, 2, false, true } },
        { "3x3 on 1x3", { OP_CONV, shape(4, 16, 1, 3), 16, 3, 3, 1, 1, false, true } },
        { "5x5 on 2x1", { OP_CONV, shape(4, 16, 2, 1), 16, 5, 5, 1, 2, true, true } },
        { "3x3 on 1x1, odd", { OP_CONV, shape(5, 3, 1, 1), 7, 3, 3, 1, 1, true, true } },
        { "linear of 5x5 images",
          { OP_CONV, shape(3, 6, 5, 5), 12, 5, 5, 1, 0, true, true } },
        { "linear of 3x2 pixels",
          { OP_CONV, shape(3, 16, 3, 2), 10, 3, 2, 1, 0, true, true } },
        { "linear of a row", { OP_CONV, shape(7, 48, 1, 1), 10, 1, 1, 1, 0, true, true } },
        { "linear, one row", { OP_CONV, shape(1, 16, 1, 1), 3, 1, 1, 1, 0, true, true } },
        { "logits", { OP_CONV, shape(7, 48, 1, 1), 10, 1, 1, 1, 0, true, true, true } },
        { "logits of 3x2 pixels",
          { OP_CONV, shape(3, 16, 3, 2), 10, 3, 2, 1, 0, true, true, true } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_conv(cases[i].name, cases[i].spec);
}

typedef struct Step {
    Op *conv;
    OpArgs args;
} Step;

static void step_forward(void *arg)
{
    Step *step = arg;
    op_forward(step->conv, &step->args);
}

// A recorded step stays valid when a later convolution makes the scratch memory grow.
static void a_recorded_convolution(void)
{
    Ops *own = ops_new(device, &(OpsConfig){ .deterministic = true });
    OpSpec small = { OP_CONV, shape(2, 16, 6, 5), 16, 3, 3, 1, 1, false, false };
    OpSpec large = { OP_CONV, { 64, 32, 1, 1, TYPE_BF16 }, 1024, 1, 1, 1, 0, true, true, true };
    Replay *replay = replay_new(device, 1);
    Step step = { .conv = op_new(own, &small, NULL) };
    Shape y = op_output(step.conv);
    ConvArrays a = conv_arrays(&small, y, 16 * 16 * 9);
    conv_plain(&small, y, &a);
    float *dead;
    void *out = empty(y);
    step.args = (OpArgs){ .x = activation(small.x, a.x), .y = out,
                          .w = import(step.conv, a.w, 16 * 16 * 9, &dead) };
    for (int i = 0; i < 3; i++)
        replay_run(replay, 0, step_forward, &step);
    Op *later = op_new(own, &large, NULL);
    fill_zero(device_stream(device), out, shape_bytes(y));
    replay_run(replay, 0, step_forward, &step);
    expect_near("replayed", y, out, a.y, 0, 1e-5);
    replay_free(replay);
    op_free(later);
    op_free(step.conv);
    check_ends();
    ops_free(own);
}

// ==== Batch normalisation ========================================================================

typedef struct NormSpec {
    Shape x;
    bool add, relu;
} NormSpec;

// mean, var: the batch's in training, random ones in evaluation.
typedef struct NormArrays {
    double *x, *gamma, *beta, *residual, *dy, *mean, *var;
    double *y, *dx, *dgamma, *dbeta, *d;    // d: the gradient of the residual
} NormArrays;

static size_t in_channel(Shape s, int c, int i)
{
    int pixels = s.h * s.w;
    return (size_t)(i / pixels * s.c + c) * pixels + i % pixels;
}

static void norm_statistics(Shape s, const NormArrays *a)
{
    int count = s.n * s.h * s.w;
    for (int c = 0; c < s.c; c++) {
        a->mean[c] = a->var[c] = 0;
        for (int i = 0; i < count; i++)
            a->mean[c] += a->x[in_channel(s, c, i)] / count;
        for (int i = 0; i < count; i++)
            a->var[c] += pow(a->x[in_channel(s, c, i)] - a->mean[c], 2) / count;
    }
}

static void norm_plain_forward(const NormSpec *s, const NormArrays *a)
{
    for (int c = 0; c < s->x.c; c++)
        for (int i = 0; i < s->x.n * s->x.h * s->x.w; i++) {
            size_t at = in_channel(s->x, c, i);
            double y = a->gamma[c] * (a->x[at] - a->mean[c]) / sqrt(a->var[c] + 1e-5) + a->beta[c];
            y += s->add ? a->residual[at] : 0;
            a->y[at] = s->relu && y < 0 ? 0 : y;
        }
}

static void norm_plain_backward(const NormSpec *s, const NormArrays *a)
{
    int count = s->x.n * s->x.h * s->x.w;
    for (int c = 0; c < s->x.c; c++) {
        double inv_std = 1 / sqrt(a->var[c] + 1e-5);
        for (int i = 0; i < count; i++) {
            size_t at = in_channel(s->x, c, i);
            a->d[at] = s->relu && a->y[at] <= 0 ? 0 : a->dy[at];
            a->dbeta[c] += a->d[at];
            a->dgamma[c] += a->d[at] * (a->x[at] - a->mean[c]) * inv_std;
        }
        for (int i = 0; i < count; i++) {
            size_t at = in_channel(s->x, c, i);
            double hat = (a->x[at] - a->mean[c]) * inv_std;
            a->dx[at] = a->gamma[c] * inv_std *
                        (a->d[at] - a->dbeta[c] / count - hat * a->dgamma[c] / count);
        }
    }
}

static void check_running(Shape s, const NormArrays *a, const NormTensors *t)
{
    double *mean = zeros((size_t)s.c), *var = zeros((size_t)s.c), count = s.n * s.h * s.w;
    for (int c = 0; c < s.c; c++) {
        mean[c] = 0.1 * a->mean[c];             // the running statistics start at 0 and 1
        var[c] = 0.9 + 0.1 * a->var[c] * count / (count - 1);
    }
    expect_near("running mean", row((size_t)s.c), t->running_mean, mean, 0, 1e-5);
    expect_near("running variance", row((size_t)s.c), t->running_var, var, 0, 1e-5);
}

static void check_frozen(const Op *norm, const NormSpec *spec, NormArrays *a, NormTensors *t,
                         const void *x, const void *residual)
{
    Shape s = spec->x, channels = row((size_t)s.c);
    void *y = empty(s);
    a->mean = random_numbers(TYPE_F32, (size_t)s.c, 8);
    a->var = random_numbers(TYPE_F32, (size_t)s.c, 9);
    for (int c = 0; c < s.c; c++)
        a->var[c] = (float)(a->var[c] + 1.5);
    t->running_mean = activation(channels, a->mean);
    t->running_var = activation(channels, a->var);
    op_forward(norm, &(OpArgs){ .x = x, .residual = residual, .y = y, .norm = *t });
    norm_plain_forward(spec, a);
    expect_near("frozen norm", s, y, a->y, roundoffs[type], 1e-5);
    expect_near("frozen mean", channels, t->running_mean, a->mean, 0, 0);
}

// Ranks that share a batch, in one process: each computes twice, first to contribute its numbers, then with the numbers
// of all ranks.
enum { MAX_RANKS = 4 };
static struct {
    int ranks, rank, gathers;
    bool complete;
    double *all;        // device: (ranks, count)
} exchange;

static void gather(void *arg, const double *mine, double *all, size_t count)
{
    size_t bytes = count * sizeof *all;
    exchange.gathers++;
    if (exchange.complete)
        copy_on_device(device_stream(device), all, exchange.all,
                       (size_t)exchange.ranks * bytes);
    else
        copy_on_device(device_stream(device), exchange.all + exchange.rank * count, mine, bytes);
}

typedef struct NormCase {
    const char *name;
    NormSpec spec;
    bool two_gradients;     // the gradient of y is a sum of two
    double offset;          // added to all of x
    double first;           // added to the first pixel of each channel of the first image
} NormCase;

// Memory of the whole batch; a rank's part begins at byte begin[rank].
typedef struct NormRun {
    int ranks;
    void *x, *residual, *y, *dy1, *dy2, *dx, *dresidual;
    size_t begin[MAX_RANKS];
    NormSpec spec[MAX_RANKS];
    NormTensors t[MAX_RANKS];
    Op *norm[MAX_RANKS];
} NormRun;

// Each image has a different mean, so each rank's statistics differ clearly from the batch's.
static NormArrays norm_arrays(const NormCase *n)
{
    Shape s = n->spec.x;
    size_t count = shape_count(s), c = (size_t)s.c;
    NormArrays a = { random_numbers(type, count, 1), random_numbers(TYPE_F32, c, 2),
                     random_numbers(TYPE_F32, c, 3), random_numbers(type, count, 4),
                     random_numbers(type, count, 5), zeros(c), zeros(c), zeros(count),
                     zeros(count), zeros(c), zeros(c), zeros(count) };
    for (size_t i = 0; i < count; i++) {
        double image = (double)(i / (count / (size_t)s.n));
        size_t pixels = (size_t)(s.h * s.w);
        bool first = i % pixels == 0 && i < c * pixels;
        a.x[i] += n->offset + 0.75 * image + (first ? n->first : 0);
        a.x[i] = rounded(type, (float)a.x[i]);
    }
    return a;
}

// Sets up the ranks and the arrays on the device. Adds the second gradient of y, if any, to a->dy.
static NormRun norm_run(const NormCase *n, int ranks, NormArrays *a)
{
    Shape s = n->spec.x, channels = row((size_t)s.c);
    double *more = random_numbers(type, shape_count(s), 6);
    NormRun run = { ranks, activation(s, a->x), n->spec.add ? activation(s, a->residual) : NULL,
                    empty(s), activation(s, a->dy), n->two_gradients ? activation(s, more) : NULL,
                    empty(s), n->spec.add ? empty(s) : NULL };
    for (size_t i = 0; i < shape_count(s) && n->two_gradients; i++)
        a->dy[i] += more[i];
    for (int k = 0; k < ranks; k++) {
        int first = s.n * k / ranks;
        run.begin[k] = shape_bytes(s) / (size_t)s.n * (size_t)first;
        run.spec[k] = n->spec;
        run.spec[k].x.n = s.n * (k + 1) / ranks - first;
        OpSpec spec = { .kind = OP_NORM, .x = run.spec[k].x, .relu = n->spec.relu };
        run.norm[k] = op_new(ops, &spec, NULL);
        run.t[k] = (NormTensors){ activation(channels, a->gamma), activation(channels, a->beta),
                                  empty(channels), empty(channels), empty(channels),
                                  empty(channels), empty(channels), empty(channels) };
    }
    ops_share_norms(ops, ranks, gather, NULL);
    exchange.ranks = ranks;
    exchange.all = memory((size_t)ranks * (1 + 2 * (size_t)s.c) * sizeof(double));
    exchange.gathers = 0;
    return run;
}

static void *part(void *p, size_t begin) { return p ? (char *)p + begin : NULL; }

static void norm_call(NormRun *run, int k, bool forward)
{
    NormTensors *t = &run->t[k];
    size_t at = run->begin[k], channels = (size_t)run->spec[k].x.c;
    double *ones = zeros(channels);
    for (size_t c = 0; c < channels; c++)
        ones[c] = 1;
    if (forward) {
        t->running_mean = activation(row(channels), zeros(channels));
        t->running_var = activation(row(channels), ones);
    }
    OpArgs args = { .training = true, .x = part(run->x, at), .residual = part(run->residual, at),
                    .y = part(run->y, at), .dy1 = part(run->dy1, at), .dy2 = part(run->dy2, at),
                    .dx = part(run->dx, at), .dresidual = part(run->dresidual, at), .norm = *t };
    (forward ? op_forward : op_backward)(run->norm[k], &args);
}

static void norm_calls(NormRun *run, bool forward)
{
    for (int complete = run->ranks == 1; complete < 2; complete++)
        for (int k = 0; k < run->ranks; k++) {
            exchange.rank = k;
            exchange.complete = complete;
            norm_call(run, k, forward);
        }
}

// Also sums the ranks' parameter gradients into rank 0's.
static void check_ranks(const char *name, NormRun *run, size_t c)
{
    size_t bytes = c * sizeof(float);
    for (int k = 1; k < run->ranks; k++) {
        NormTensors *one = &run->t[0], *other = &run->t[k];
        const float *same[][2] = { { one->mean, other->mean }, { one->inv_std, other->inv_std },
                                   { one->running_var, other->running_var } };
        for (int i = 0; i < 3; i++)
            EXPECT(memcmp(to_host(same[i][0], bytes), to_host(same[i][1], bytes), bytes) == 0,
                   "%s: rank %d has different statistics", name, k);
        add_into(ops, c, one->dgamma, other->dgamma);
        add_into(ops, c, one->dbeta, other->dbeta);
    }
}

static void check_norm(const NormCase *n, int ranks)
{
    Shape s = n->spec.x, channels = row((size_t)s.c);
    NormArrays a = norm_arrays(n);
    NormRun run = norm_run(n, ranks, &a);
    double u = roundoffs[type], wide = n->offset > 0 ? 1e-4 : 1e-5, sums = run.dy2 ? u : 0;
    norm_statistics(s, &a);
    norm_plain_forward(&n->spec, &a);
    norm_plain_backward(&n->spec, &a);

    norm_calls(&run, true);
    norm_calls(&run, false);
    check_ranks(n->name, &run, (size_t)s.c);
    expect_near(n->name, s, run.y, a.y, u, wide);
    check_running(s, &a, &run.t[0]);
    expect_near(n->name, s, run.dx, a.dx, u, wide + 2 * sums);
    expect_near("dgamma", channels, run.t[0].dgamma, a.dgamma, 0, wide + sums);
    expect_near("dbeta", channels, run.t[0].dbeta, a.dbeta, 0, wide + sums);
    if (n->spec.add)
        expect_near("dresidual", s, run.dresidual, a.d, u, 1e-6);
    check_frozen(run.norm[0], &run.spec[0], &a, &run.t[0], run.x, run.residual);
    EXPECT_EQ_INT(exchange.gathers, ranks > 1 ? 4 * ranks : 0);
    for (int k = 0; k < ranks; k++)
        op_free(run.norm[k]);
    ops_share_norms(ops, 1, NULL, NULL);
    check_ends();
}

// At an offset of 1000, E[x^2] - E[x]^2 in f32 would lose almost all digits. The f32 mean's 24 bits limit the accuracy
// to 1e-4.
static void normalisation(void)
{
    const NormCase cases[] = {
        { "norm", { shape(3, 16, 5, 3), false, false } },
        { "norm, relu", { shape(2, 32, 3, 3), false, true } },
        { "norm, add, relu", { shape(6, 32, 3, 4), true, true } },
        { "norm, two gradients", { shape(5, 16, 9, 11), true, true }, true },
        { "norm of rows", { shape(9, 48, 1, 1), false, true }, true },
        { "norm, odd channels", { shape(4, 5, 3, 3), false, true } },
        { "norm at 1000", { shape(4, 16, 5, 5), false, false }, false, 1000 },
        { "norm, first pixel far away", { shape(8, 16, 17, 17), false, true }, false, 0, 1e4 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int ranks = 1; ranks <= MAX_RANKS && ranks <= cases[i].spec.x.n; ranks++)
            if ((cases[i].offset == 0 && cases[i].first == 0) || type == TYPE_F32)
                check_norm(&cases[i], ranks);
}

// ==== Pooling, ReLU, images ======================================================================

// As in PyTorch, the first of equal pixels is the maximum and gets the whole gradient.
static void maxpool_plain(const OpSpec *s, Shape out, const double *x, const double *dy, double *y,
                          double *dx)
{
    for (int i = 0; i < (int)shape_count(out); i++) {
        int q = i % out.w, p = i / out.w % out.h, plane = i / (out.w * out.h), best = -1;
        for (int k = 0; k < s->kernel_h * s->kernel_h; k++) {
            int row = p * s->stride - s->pad + k / s->kernel_h;
            int col = q * s->stride - s->pad + k % s->kernel_h;
            int at = (plane * s->x.h + row) * s->x.w + col;
            bool inside = row >= 0 && row < s->x.h && col >= 0 && col < s->x.w;
            if (inside && (best < 0 || x[at] > x[best]))
                best = at;
        }
        y[i] = x[best];
        dx[best] += dy[i];
    }
}

// Pixels have only a few values, so that there are ties.
static void check_maxpool(const char *name, Shape from, int kernel, int stride, int pad,
                          bool two_gradients)
{
    OpSpec spec = { .kind = OP_MAXPOOL, .x = from, .kernel_h = kernel, .stride = stride,
                    .pad = pad };
    Shape out = from;
    out.h = window_count(from.h, kernel, stride, pad);
    out.w = window_count(from.w, kernel, stride, pad);
    size_t in_count = shape_count(spec.x), count = shape_count(out);
    double *pixels = random_numbers(type, in_count, 1), *dy = random_numbers(type, count, 2);
    double *more = random_numbers(type, count, 3), *wanted = zeros(count), *dx = zeros(in_count);
    for (size_t i = 0; i < in_count; i++)
        pixels[i] = rint(8 * pixels[i]) / 8;
    void *x = activation(spec.x, pixels), *dy1 = activation(out, dy), *dy2 = activation(out, more);
    void *y = empty(out), *got = empty(spec.x);
    OpArgs args = { .x = x, .y = y, .dy1 = dy1, .dy2 = two_gradients ? dy2 : NULL, .dx = got,
                    .index = memory(count) };
    for (size_t i = 0; i < count && two_gradients; i++)
        dy[i] += more[i];
    maxpool_plain(&spec, out, pixels, dy, wanted, dx);
    run_op(&spec, &args);
    expect_near(name, out, y, wanted, 0, 0);
    expect_near(name, spec.x, got, dx, roundoffs[type], 1e-6);
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
    void *got = empty(out), *got_dx = empty(s);
    OpArgs args = { .x = activation(s, x), .y = got, .dy1 = activation(out, dy), .dx = got_dx };
    run_op(&(OpSpec){ .kind = OP_AVGPOOL, .x = s }, &args);
    expect_near("avgpool", out, got, y, roundoffs[type], 1e-6);
    expect_near("avgpool backward", s, got_dx, dx, roundoffs[type], 1e-6);
    check_ends();
}

static void pooling(void)
{
    check_maxpool("maxpool 3x3 stride 2", shape(2, 16, 8, 8), 3, 2, 1, false);
    check_maxpool("maxpool 3x3, odd size", shape(2, 16, 7, 5), 3, 2, 1, true);
    check_maxpool("maxpool 2x2", shape(2, 6, 6, 4), 2, 2, 0, false);
    check_maxpool("maxpool 2x2, one row over", shape(2, 5, 5, 7), 2, 2, 0, true);
    check_avgpool(shape(3, 32, 4, 3));
    check_avgpool(shape(3, 5, 4, 3));     // rows are not aligned
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
    OpArgs args = { .x = in, .y = y, .dy1 = d, .dx = d };
    run_op(&(OpSpec){ .kind = OP_RELU, .x = s }, &args);
    expect_near("relu", s, y, x, 0, 0);
    expect_near("relu backward", s, d, dy, 0, 0);
    check_ends();
}

// The 16-bit images must be the f32 images, rounded.
static void images(void)
{
    enum { COUNT = 3, BYTES = 3 * 8 * 7, ROWS = 4 };
    uint8_t pixels[COUNT * BYTES];
    for (int i = 0; i < COUNT * BYTES; i++)
        pixels[i] = (uint8_t)philox(1, 2, (uint64_t)i).v[0];
    const float mean[3] = { 0.49f, 0.48f, 0.45f }, std[3] = { 0.25f, 0.24f, 0.26f };
    Shape half = shape(ROWS, 3, 8, 7), wide = half;
    wide.type = TYPE_F32;
    uint8_t *from = to_device(pixels, sizeof pixels);
    void *x = empty(wide), *short_x = empty(half);
    images_load(device_stream(device), from, COUNT, 3, mean, std, x, wide);
    images_load(device_stream(device), from, COUNT, 3, mean, std, short_x, half);
    const float *f32 = to_host(x, shape_bytes(wide));
    double *wanted = zeros(shape_count(wide));
    for (size_t i = 0; i < shape_count(wide); i++)
        wanted[i] = rounded(type, f32[place(wide, i)]);
    expect_near("images", half, short_x, wanted, 0, 0);
    check_ends();
}

// ==== Loss =======================================================================================

static Stats run_loss(int rows, int classes, const double *z, const int32_t *labels, float *dz)
{
    float *logits = activation(row((size_t)(rows * classes)), z);
    int32_t *there = to_device(labels, (size_t)rows * sizeof *labels);
    Scalars start = { .scale.value = 1 };
    Scalars *scalars = to_device(&start, sizeof start);
    Stats *stats = memory(sizeof *stats);
    loss_cross_entropy(ops, rows, classes, logits, there, scalars, stats, dz);
    Stats *got = to_host(stats, sizeof *got);
    return *got;
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

enum { ROW_KINDS = 16 };

// Makes a special case of a row of numbers in [-1, 1), or of its label. Kind 0 leaves both.
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
    case 14: *label = classes; break;
    case 15: *label = -7; break;
    }
}

// NaN comes first, then the larger logit, then the lower index.
static bool comes_before(const double *z, int a, int b)
{
    if (isnan(z[a]) != isnan(z[b]))
        return isnan(z[a]);
    return z[a] > z[b] || (!(z[a] < z[b]) && a < b);
}

static Verdict verdict_plain(const double *z, int classes, int32_t label)
{
    bool finite = label < classes && z[label] > -INFINITY;
    double sum = 0;
    int best = 0, before = 0;
    for (int j = 0; j < classes; j++) {
        finite = finite && z[j] < INFINITY;
        best = comes_before(z, j, best) ? j : best;
        before += label < classes && comes_before(z, j, label);
    }
    for (int j = 0; j < classes; j++)
        sum += exp(z[j] - z[best]);
    if (!finite)
        return (Verdict){ label, best, INT32_MAX, NAN };
    return (Verdict){ label, best, before, (float)(log(sum) + z[best] - z[label]) };
}

static bool is_near(double value, double wanted)
{
    return value == wanted || fabs(value - wanted) <= 1e-6 * fmax(1, fabs(wanted));
}

static void expect_verdict(Verdict got, Verdict wanted, int classes, int row)
{
    bool finite = wanted.before < INT32_MAX;
    EXPECT(got.label == wanted.label && got.prediction == wanted.prediction &&
               got.before == wanted.before &&
               (finite ? is_near(got.loss, wanted.loss) : !isfinite(got.loss)),
           "row %d of %d classes: label %d, prediction %d, before %d, loss %g; wanted %d, %d, %d, %g",
           row, classes, got.label, got.prediction, got.before, (double)got.loss, wanted.label,
           wanted.prediction, wanted.before, (double)wanted.loss);
}

// The verdicts of `rows` rows, and one more, which judge_rows must not touch.
static const Verdict *verdicts_of(int rows, int classes, const double *z, const int32_t *labels)
{
    size_t bytes = (size_t)(rows + 1) * sizeof(Verdict);
    Verdict *there = to_device(memset(host_memory(bytes), 99, bytes), bytes);
    judge_rows(ops, rows, classes, activation(row((size_t)(rows * classes)), z),
               to_device(labels, (size_t)rows * sizeof *labels), there);
    return to_host(there, bytes);
}

static void check_verdicts(int rows, int classes)
{
    double *z = random_numbers(TYPE_F32, (size_t)(rows * classes), classes);
    int32_t *labels = host_memory((size_t)rows * sizeof *labels);
    for (int i = 0; i < rows; i++) {
        labels[i] = i * 7 / ROW_KINDS % classes;
        row_change(i % ROW_KINDS, classes, z + i * classes, &labels[i]);
    }
    const Verdict *verdicts = verdicts_of(rows, classes, z, labels);
    Stats all = run_loss(rows, classes, z, labels, NULL);
    for (int i = 0; i < rows; i++) {
        bool counts = labels[i] >= 0;
        Verdict wanted = counts ? verdict_plain(z + i * classes, classes, labels[i])
                                : (Verdict){ .label = labels[i] };
        expect_verdict(verdicts[i], wanted, classes, i);
        all.count -= counts;
        all.correct1 -= counts && verdicts[i].before < 1;
        all.correct5 -= counts && verdicts[i].before < 5;
        all.not_finite -= counts && verdicts[i].before == INT32_MAX;
    }
    EXPECT(all.count == 0 && all.correct1 == 0 && all.correct5 == 0 && all.not_finite == 0,
           "%d classes: the totals of loss and verdicts differ", classes);
    EXPECT_EQ_INT(verdicts[rows].label, 0x63636363);
    check_ends();
}

static void verdicts(void)
{
    static const int classes[] = { 1, 2, 4, 10, 32, 33, 100, 1000 };
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        check_verdicts(5 * ROW_KINDS + 1, classes[i]);
}

// ==== Adding =====================================================================================

static void adding(void)
{
    enum { COUNT = 1031 };
    double *a = random_numbers(TYPE_F32, COUNT, 1), *b = random_numbers(TYPE_F32, COUNT, 2);
    float *values = activation(row(COUNT), a), *more = activation(row(COUNT), b);
    add_into(ops, COUNT, values, more);
    for (int i = 0; i < COUNT; i++)
        a[i] = (float)a[i] + (float)b[i];
    expect_near("add_into", row(COUNT), values, a, 1e-7, 0);
    check_ends();
}

// ==== Types of the device ========================================================================

// Adds the results of a loss, a norm and two updates to the checksum.
static void a_step(void)
{
    enum { COUNT = 100000, ROWS = 300, CLASSES = 70 };
    Shape numbers = row(COUNT), scores = row(ROWS * CLASSES);
    float *grads = activation(numbers, random_numbers(TYPE_F32, COUNT, 1));
    float *params = activation(numbers, random_numbers(TYPE_F32, COUNT, 2));
    float *first = empty(numbers), *second = empty(numbers), *dlogits = empty(scores);
    float *logits = activation(scores, random_numbers(TYPE_F32, ROWS * CLASSES, 3));
    Scalars *scalars = memory(sizeof *scalars), start = { .scale.value = 8 };
    Stats *stats = memory(sizeof *stats);
    uint8_t *decays = memory(COUNT / PARAM_ALIGN);
    int32_t *labels = host_memory(ROWS * sizeof *labels);
    for (int i = 0; i < ROWS; i++)
        labels[i] = i % (CLASSES + 1) - 1;
    copy_to_device(device_stream(device), scalars, &start, sizeof start);
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
    result_bits = 0;
    for (type = first; type <= last; type++) {
        normalisation();
        pooling();
        relu();
        images();
    }
    type = TYPE_F32;
    loss_and_gradient();
    verdicts();
    adding();
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
    EXPECT(!ops_emulates(device, TYPE_F32), "f32");
    EXPECT_EQ_INT(ops_emulates(device, TYPE_F16), !cuda);
    EXPECT(!cuda || !emulates, "bf16");
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
