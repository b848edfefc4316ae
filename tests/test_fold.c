// test_fold.c - evaluation with BatchNorm folded into the convolutions: whole networks against the
// same ones in float64, layer by layer, written down once more here; and what the training programs
// rely on: a row's answer is its own, a second fold follows the weights, training notices nothing.
//
// ctest: PROCESSORS 2 TIMEOUT 120 BACKENDS cpu cuda fake
//
// Where the processor has instructions for bf16 some of it runs once more without them, and once
// more with vectors of AVX2 only.
#include "check.h"
#include "cpu/short_types.h"
#include "model.h"
#include "rng.h"
#include "test.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

static Device *device;
static Ops *ops;
static bool cuda;

enum { CLASSES = 10, MOST_ROWS = 8 };

// ==== A network, its random weights and images ===================================================

typedef struct Run {
    Model *model;
    Type type;
    void *images;           // device memory
    float *pixels;          // the same in f32, on the host: (rows, c, h, w)
    float *params, *buffers;    // copies on the host
    int rows;
} Run;

static double uniform(int key, int tensor, int64_t i)
{
    return 2 * uniform_of(philox((uint64_t)key, (uint64_t)tensor, (uint64_t)i).v[0]) - 1;
}

// Statistics and factors as no initialisation leaves them: of either sign, and some are zero.
static float made_up(const ModelTensor *t, int key, int tensor, int64_t i)
{
    const char *part = strrchr(t->name, '.') + 1;
    double u = uniform(key, tensor, i);
    if (strcmp(part, "weight") == 0)
        return i % 7 == 3 ? 0 : (float)(u + (u < 0 ? -0.5 : 0.5));
    if (strcmp(part, "running_var") == 0)
        return (float)(1.1 + u);
    return (float)(u / 2);
}

static void to_device(void *to, const void *host, size_t bytes)
{
    copy_to_device(device_stream(device), to, host, bytes);
    stream_sync(device_stream(device));
}

static float *to_host(const float *memory, size_t count)
{
    float *host = xmalloc(count * sizeof *host);
    copy_to_host(device_stream(device), host, memory, count * sizeof *host);
    stream_sync(device_stream(device));
    return host;
}

// Weights as they are initialised, everything else made up.
static void set_weights(Run *run, int key)
{
    Model *m = run->model;
    free(run->params);
    free(run->buffers);
    model_init(m, key);
    run->params = to_host(m->params, m->param_count);
    run->buffers = to_host(m->buffers, m->buffer_count);
    for (int i = 0; i < m->tensor_count; i++) {
        const ModelTensor *t = &m->tensors[i];
        float *arena = t->kind == MODEL_BUFFER ? run->buffers : run->params;
        if (t->ndim != 1)
            continue;
        float *values = xmalloc((size_t)t->count * sizeof *values);
        for (int64_t j = 0; j < t->count; j++)
            values[j] = made_up(t, key, i, j);
        model_import(m, t, arena, values);
        free(values);
    }
    to_device(m->params, run->params, m->param_count * sizeof(float));
    to_device(m->buffers, run->buffers, m->buffer_count * sizeof(float));
    model_cast_weights(m);
}

// Where pixel i of the images, in torch's order, stands in device memory.
static size_t place_of(Shape s, size_t i)
{
    size_t plane = (size_t)s.h * s.w, c = i / plane % s.c, n = i / plane / s.c;
    return ((n * (s.c / s.block) + c / s.block) * plane + i % plane) * s.block + c % s.block;
}

// Random images from row `first` on; what the type holds.
static void set_images(Run *run, int key, int first)
{
    Shape s = run->model->input;
    size_t count = shape_count(s), row = count / s.n;
    char *host = xcalloc(count, sizeof(float));
    for (size_t i = 0; i < count; i++) {
        if (i >= first * row)
            run->pixels[i] = rounded(run->type, (float)uniform(key, 99, (int64_t)i));
        store(run->type, host, place_of(s, i), run->pixels[i]);
    }
    to_device(run->images, host, count * type_size(run->type));
    free(host);
}

static Run run_open(const char *arch, int channels, int size, int rows, Type type)
{
    ModelConfig config = { arch, channels, size, size, CLASSES, rows, .type = type };
    Run run = { .type = type, .rows = rows, .model = model_new(device, ops, &config) };
    size_t count = shape_count(run.model->input);
    run.images = device_alloc(device, count * type_size(type));
    run.pixels = xcalloc(count, sizeof *run.pixels);
    set_weights(&run, 5);
    set_images(&run, 6, 0);
    return run;
}

static void run_close(Run *run)
{
    device_free(device, run->images);
    free(run->pixels);
    free(run->params);
    free(run->buffers);
    model_free(run->model);
}

static float *evaluate(Run *run, int rows)
{
    model_forward(run->model, run->images, rows, false);
    return to_host(run->model->logits, (size_t)rows * CLASSES);
}

// ==== The same in float64 ========================================================================

typedef struct Map {
    int c, h, w;
    double *v;
} Map;

// What reads it: the weights, and how numbers are rounded on the way.
typedef struct Reference {
    const Run *run;
    bool folds;             // or rounds what a convolution writes, before it is normalised
} Reference;

static Map map_new(int c, int h, int w)
{
    return (Map){ c, h, w, xcalloc((size_t)c * h * w, sizeof(double)) };
}

static double keep(const Reference *r, double value)
{
    return r->run->type == TYPE_F32 ? value : (double)rounded(r->run->type, (float)value);
}

static float *tensor(const Reference *r, const char *layer, const char *part)
{
    const Model *m = r->run->model;
    char name[80];
    snprintf(name, sizeof name, "%s.%s", layer, part);
    for (int i = 0; i < m->tensor_count; i++) {
        const ModelTensor *t = &m->tensors[i];
        if (strcmp(t->name, name) != 0)
            continue;
        float *values = xmalloc((size_t)t->count * sizeof *values);
        model_export(m, t, t->kind == MODEL_BUFFER ? r->run->buffers : r->run->params, values);
        return values;
    }
    return NULL;
}

// y = factor * x + summand, for each channel; 1 and 0 where there is no such layer.
typedef struct Affine {
    double *factor, *summand;
} Affine;

static Affine affine_of(const Reference *r, const char *norm, int channels)
{
    Affine a = { xcalloc((size_t)channels, sizeof(double)),
                 xcalloc((size_t)channels, sizeof(double)) };
    float *gamma = norm ? tensor(r, norm, "weight") : NULL;
    for (int c = 0; c < channels; c++)
        a.factor[c] = 1;
    if (!gamma)
        return a;
    float *beta = tensor(r, norm, "bias"), *mean = tensor(r, norm, "running_mean"),
          *var = tensor(r, norm, "running_var");
    for (int c = 0; c < channels; c++) {
        a.factor[c] = gamma[c] / sqrt(var[c] + 1e-5);
        a.summand[c] = beta[c] - mean[c] * a.factor[c];
    }
    free(gamma);
    free(beta);
    free(mean);
    free(var);
    return a;
}

// One output of a convolution, its bias aside.
static double convolve(Map x, const double *w, int kernel, int top, int left)
{
    double sum = 0;
    for (int i = 0; i < x.c; i++)
        for (int a = top < 0 ? -top : 0; a < kernel && top + a < x.h; a++)
            for (int b = left < 0 ? -left : 0; b < kernel && left + b < x.w; b++)
                sum += x.v[((size_t)i * x.h + top + a) * x.w + left + b] *
                       w[((size_t)i * kernel + a) * kernel + b];
    return sum;
}

typedef struct Stage {
    const char *conv, *norm;    // norm: NULL if there is none
    int out, kernel, stride, pad;
    bool relu, is_last;
    const Map *residual;
} Stage;

static Map stage(const Reference *r, Map x, Stage s)
{
    Map y = map_new(s.out, (x.h + 2 * s.pad - s.kernel) / s.stride + 1,
                    (x.w + 2 * s.pad - s.kernel) / s.stride + 1);
    float *weights = tensor(r, s.conv, "weight"), *bias = tensor(r, s.conv, "bias");
    Affine a = affine_of(r, s.norm, s.out);
    int each = x.c * s.kernel * s.kernel;
    double *w = xmalloc((size_t)each * sizeof *w);
    for (int o = 0; o < s.out; o++) {
        for (int i = 0; i < each; i++)
            w[i] = keep(r, weights[o * each + i] * (r->folds ? a.factor[o] : 1));
        for (int p = 0; p < y.h * y.w; p++) {
            double sum = convolve(x, w, s.kernel, p / y.w * s.stride - s.pad,
                                  p % y.w * s.stride - s.pad);
            if (r->folds)
                sum += (bias ? bias[o] * a.factor[o] : 0) + a.summand[o];
            else
                sum = keep(r, sum + (bias ? bias[o] : 0)) * a.factor[o] + a.summand[o];
            size_t at = (size_t)o * y.h * y.w + p;
            sum += s.residual ? s.residual->v[at] : 0;
            sum = s.relu && sum < 0 ? 0 : sum;
            y.v[at] = s.is_last ? sum : keep(r, sum);
        }
    }
    free(w);
    free(a.factor);
    free(a.summand);
    free(weights);
    free(bias);
    return y;
}

static Map then(const Reference *r, Map x, Stage s)
{
    Map y = stage(r, x, s);
    free(x.v);
    return y;
}

static Map pool(Map x, int kernel, int stride, int pad)
{
    Map y = map_new(x.c, (x.h + 2 * pad - kernel) / stride + 1,
                    (x.w + 2 * pad - kernel) / stride + 1);
    for (int i = 0; i < y.c * y.h * y.w; i++) {
        int c = i / (y.h * y.w), top = i / y.w % y.h * stride - pad, left = i % y.w * stride - pad;
        y.v[i] = -INFINITY;
        for (int a = 0; a < kernel * kernel; a++) {
            int row = top + a / kernel, col = left + a % kernel;
            if (row >= 0 && row < x.h && col >= 0 && col < x.w)
                y.v[i] = fmax(y.v[i], x.v[((size_t)c * x.h + row) * x.w + col]);
        }
    }
    free(x.v);
    return y;
}

static Map average(const Reference *r, Map x)
{
    Map y = map_new(x.c, 1, 1);
    for (int c = 0; c < x.c; c++) {
        for (int p = 0; p < x.h * x.w; p++)
            y.v[c] += x.v[(size_t)c * x.h * x.w + p] / (x.h * x.w);
        y.v[c] = keep(r, y.v[c]);
    }
    free(x.v);
    return y;
}

// A linear layer reads all of x.
static Map linear(const Reference *r, Map x, const char *name, int out, bool relu, bool is_last)
{
    Map flat = { x.c * x.h * x.w, 1, 1, x.v };
    return then(r, flat, (Stage){ name, NULL, out, 1, 1, 0, relu, is_last, NULL });
}

static Map lenet(const Reference *r, Map x)
{
    x = pool(then(r, x, (Stage){ "conv1", NULL, 6, 5, 1, 0, true }), 2, 2, 0);
    x = pool(then(r, x, (Stage){ "conv2", NULL, 16, 5, 1, 0, true }), 2, 2, 0);
    x = linear(r, x, "fc1", 120, true, false);
    x = linear(r, x, "fc2", 84, true, false);
    return linear(r, x, "fc3", CLASSES, false, true);
}

static Map convnet(const Reference *r, Map x)
{
    x = pool(then(r, x, (Stage){ "conv1", "bn1", 16, 5, 1, 2, true }), 2, 2, 0);
    x = pool(then(r, x, (Stage){ "conv2", "bn2", 32, 5, 1, 2, true }), 2, 2, 0);
    return linear(r, x, "fc", CLASSES, false, true);
}

typedef struct BlockNames {
    char conv[3][64], norm[3][64], shortcut[64], shortcut_norm[64];
} BlockNames;

static BlockNames names_of(int layer, int block)
{
    BlockNames n;
    for (int i = 0; i < 3; i++) {
        snprintf(n.conv[i], sizeof n.conv[i], "layer%d.%d.conv%d", layer, block, i + 1);
        snprintf(n.norm[i], sizeof n.norm[i], "layer%d.%d.bn%d", layer, block, i + 1);
    }
    snprintf(n.shortcut, sizeof n.shortcut, "layer%d.%d.downsample.0", layer, block);
    snprintf(n.shortcut_norm, sizeof n.shortcut_norm, "layer%d.%d.downsample.1", layer, block);
    return n;
}

static Map residual_block(const Reference *r, Map x, int layer, int block, bool deep)
{
    BlockNames n = names_of(layer, block);
    int width = 32 << layer, out = deep ? 4 * width : width;
    int stride = layer > 1 && block == 0 ? 2 : 1;
    Map around = x, y;
    if (stride > 1 || x.c != out)
        around = stage(r, x, (Stage){ n.shortcut, n.shortcut_norm, out, 1, stride, 0, false });
    if (deep) {
        y = stage(r, x, (Stage){ n.conv[0], n.norm[0], width, 1, 1, 0, true });
        y = then(r, y, (Stage){ n.conv[1], n.norm[1], width, 3, stride, 1, true });
        y = then(r, y, (Stage){ n.conv[2], n.norm[2], out, 1, 1, 0, true, false, &around });
    } else {
        y = stage(r, x, (Stage){ n.conv[0], n.norm[0], width, 3, stride, 1, true });
        y = then(r, y, (Stage){ n.conv[1], n.norm[1], width, 3, 1, 1, true, false, &around });
    }
    if (around.v != x.v)
        free(around.v);
    free(x.v);
    return y;
}

static Map resnet(const Reference *r, Map x, bool deep)
{
    static const int counts[2][4] = { { 2, 2, 2, 2 }, { 3, 4, 6, 3 } };
    x = pool(then(r, x, (Stage){ "conv1", "bn1", 64, 7, 2, 3, true }), 3, 2, 1);
    for (int layer = 1; layer <= 4; layer++)
        for (int block = 0; block < counts[deep][layer - 1]; block++)
            x = residual_block(r, x, layer, block, deep);
    return linear(r, average(r, x), "fc", CLASSES, false, true);
}

static void reference_row(const Reference *r, int row, double *logits)
{
    Shape s = r->run->model->input;
    const char *arch = r->run->model->config.arch;
    Map x = map_new(s.c, s.h, s.w);
    size_t count = (size_t)s.c * s.h * s.w;
    for (size_t i = 0; i < count; i++)
        x.v[i] = (double)r->run->pixels[row * count + i];
    Map y = strcmp(arch, "lenet") == 0     ? lenet(r, x)
            : strcmp(arch, "convnet") == 0 ? convnet(r, x)
                                           : resnet(r, x, strcmp(arch, "resnet50") == 0);
    memcpy(logits, y.v, CLASSES * sizeof *logits);
    free(y.v);
}

// ==== Tests ======================================================================================

static const char *const type_names[] = { "f32", "bf16", "f16" };

// In f32 what is left is rounding, about 1e-6 of the logits' size after 18 or 50 layers. In a short
// type the reference rounds where the network does, but a sum close to the middle of two numbers
// may go to the other one: a last bit, here and there, that is carried on.
static void compare_network(const char *arch, int channels, int size, int rows, Type type)
{
    static const double tolerance[] = { 1e-5, 0x1p-6, 0x1p-9 };
    Run run = run_open(arch, channels, size, rows, type);
    Reference r = { &run, !cuda && !ops_emulates(device, type) };
    model_fold(run.model);
    float *ours = evaluate(&run, rows);
    double wanted[MOST_ROWS * CLASSES], largest = 0, off = 0;
    for (int row = 0; row < rows; row++)
        reference_row(&r, row, wanted + row * CLASSES);
    for (int i = 0; i < rows * CLASSES; i++) {
        largest = fmax(largest, fabs(wanted[i]));
        off = fabs(ours[i] - wanted[i]) <= off ? off : fabs(ours[i] - wanted[i]);
    }
    EXPECT(off / largest <= tolerance[type] && largest > 0.1,
           "%s of %dx%d pixels in %s: off by %.2g of %.2g", arch, size, size, type_names[type], off,
           largest);
    printf("%s, %d pixels, %s: off by %.1e of the largest logit\n", arch, size, type_names[type],
           off / largest);
    free(ours);
    run_close(&run);
}

TEST(networks_are_what_they_are_in_float64)
{
    for (Type type = TYPE_F32; type <= TYPE_F16; type++) {
        compare_network("lenet", 1, 28, 3, type);
        compare_network("convnet", 1, 28, 3, type);
        compare_network("resnet18", 3, 32, 2, type);
    }
    compare_network("resnet18", 1, 45, 1, TYPE_F32);    // odd sizes: 23, 12, 6, 3, 2 pixels
    compare_network("resnet50", 3, 32, 1, TYPE_F32);
    compare_network("resnet50", 3, 32, 1, TYPE_BF16);
}

// Bit for bit, in a batch of as many rows.
static void check_neighbours(const char *arch, int channels, int rows, Type type)
{
    Run run = run_open(arch, channels, 32, rows, type);
    model_fold(run.model);
    float *before = evaluate(&run, rows);
    for (int first = 1; first < rows; first++) {
        set_images(&run, 100 + first, first);
        float *after = evaluate(&run, rows);
        EXPECT(memcmp(before, after, (size_t)first * CLASSES * sizeof *after) == 0,
               "%s, %s: the first %d rows changed with the others", arch, type_names[type], first);
        EXPECT(memcmp(before + first * CLASSES, after + first * CLASSES,
                      CLASSES * sizeof *after) != 0,
               "%s: another image, the same logits", arch);
        free(before);
        before = after;
    }
    free(before);
    run_close(&run);
}

TEST(a_row_does_not_see_the_others)
{
    for (Type type = TYPE_F32; type <= TYPE_BF16; type++) {
        check_neighbours("lenet", 1, 5, type);
        check_neighbours("resnet18", 3, 3, type);
    }
}

TEST(fewer_rows_have_the_same_answers)
{
    for (Type type = TYPE_F32; type <= TYPE_BF16; type++) {
        Run run = run_open("resnet18", 3, 32, 8, type);
        model_fold(run.model);
        float *all = evaluate(&run, 8), *some = evaluate(&run, 3), largest = 0;
        for (int i = 0; i < 8 * CLASSES; i++)
            largest = fmaxf(largest, fabsf(all[i]));
        for (int i = 0; i < 3 * CLASSES; i++)
            EXPECT_NEAR(some[i] / largest, all[i] / largest, type == TYPE_F32 ? 1e-5 : 0x1p-6);
        free(all);
        free(some);
        run_close(&run);
    }
}

static void check_refold(const char *arch, int channels, Type type)
{
    Run run = run_open(arch, channels, 32, 2, type), other = run_open(arch, channels, 32, 2, type);
    model_fold(run.model);
    float *before = evaluate(&run, 2);
    set_weights(&run, 8);
    set_weights(&other, 8);
    model_fold(run.model);
    model_fold(other.model);
    float *after = evaluate(&run, 2), *wanted = evaluate(&other, 2);
    EXPECT(memcmp(before, wanted, 2 * CLASSES * sizeof *after) != 0, "%s: nothing changed", arch);
    EXPECT(memcmp(after, wanted, 2 * CLASSES * sizeof *after) == 0,
           "%s, %s: folded for the second time is not folded for the first time", arch,
           type_names[type]);
    free(before);
    free(after);
    free(wanted);
    run_close(&run);
    run_close(&other);
}

TEST(folding_again_follows_the_weights)
{
    for (Type type = TYPE_F32; type <= TYPE_BF16; type++) {
        check_refold("convnet", 1, type);
        check_refold("resnet18", 3, type);
    }
}

static float *train(Run *run)
{
    Model *m = run->model;
    float dlogits[2 * CLASSES];
    for (int i = 0; i < 2 * CLASSES; i++)
        dlogits[i] = (float)(i % 7 - 3) / 8;
    model_forward(m, run->images, 2, true);
    to_device(m->dlogits, dlogits, sizeof dlogits);
    model_backward(m, NULL, NULL);
    return to_host(m->grads, m->param_count);
}

TEST(training_notices_nothing)
{
    for (Type type = TYPE_F32; type <= TYPE_BF16; type++) {
        Run run = run_open("resnet18", 3, 32, 2, type);
        float *before = train(&run);
        set_weights(&run, 5);                   // the statistics moved
        model_fold(run.model);
        free(evaluate(&run, 2));
        free(evaluate(&run, 1));
        float *after = train(&run);
        EXPECT(memcmp(before, after, run.model->param_count * sizeof *after) == 0,
               "%s: an evaluation changed the gradients", type_names[type]);
        free(before);
        free(after);
        run_close(&run);
    }
}

// Bit for bit what pooling for training gives; also where a number is none.
static void check_pooling(PoolSpec spec)
{
    spec.x.block = spec.x.block == 1 ? ops_input_block(ops, spec.x.c) : spec.x.c;
    Shape out = pool_output(&spec);
    size_t count = shape_count(spec.x), bytes = shape_bytes(out);
    char *x = xmalloc(shape_bytes(spec.x));
    for (size_t i = 0; i < count; i++)
        store(spec.x.type, x, i, i % 41 == 7 ? NAN : (float)uniform(11, 0, (int64_t)i));
    char *memory = device_alloc(device, shape_bytes(spec.x) + 2 * bytes);
    uint8_t *index = device_alloc(device, shape_count(out));
    char *kept = memory + shape_bytes(spec.x), *forgotten = kept + bytes;
    to_device(memory, x, shape_bytes(spec.x));
    maxpool_forward(ops, &spec, memory, kept, index);
    maxpool_forward(ops, &spec, memory, forgotten, NULL);
    float *a = to_host((float *)kept, bytes / 4), *b = to_host((float *)forgotten, bytes / 4);
    EXPECT(memcmp(a, b, bytes) == 0, "%dx%d pixels in %s, a window of %d: another maximum",
           spec.x.h, spec.x.w, type_names[spec.x.type], spec.kernel);
    free(a);
    free(b);
    free(x);
    device_free(device, memory);
    device_free(device, index);
}

TEST(pooling_need_not_remember)
{
    for (Type type = TYPE_F32; type <= TYPE_BF16; type++) {
        check_pooling((PoolSpec){ { 2, 16, 16, 16, 16, type }, 3, 2, 1 });
        check_pooling((PoolSpec){ { 2, 16, 7, 9, 16, type }, 3, 2, 1 });
        check_pooling((PoolSpec){ { 2, 16, 8, 8, 16, type }, 2, 2, 0 });
        check_pooling((PoolSpec){ { 2, 6, 28, 28, 1, type }, 2, 2, 0 });
        check_pooling((PoolSpec){ { 2, 8, 9, 9, 1, type }, 4, 3, 1 });
    }
}

// One weight that is not a number: no ReLU on the way may hide it.
TEST(broken_weights_give_broken_answers)
{
    const char *const archs[] = { "lenet", "resnet18" };
    for (int i = 0; i < 2; i++) {
        Run run = run_open(archs[i], i ? 3 : 1, 32, 2, TYPE_F32);
        run.params[run.model->tensors[0].offset] = NAN;
        to_device(run.model->params, run.params, run.model->param_count * sizeof(float));
        model_fold(run.model);
        float *logits = evaluate(&run, 2);
        for (int j = 0; j < 2 * CLASSES; j++)
            EXPECT(isnan(logits[j]), "%s: logit %d is %g", archs[i], j, logits[j]);
        set_weights(&run, 5);
        model_fold(run.model);
        float *whole = evaluate(&run, 2);
        EXPECT(isfinite(whole[0]), "%s: %g after whole weights", archs[i], whole[0]);
        free(logits);
        free(whole);
        run_close(&run);
    }
}

// In a process of its own, which says why it ends.
TEST(a_model_never_folded_does_not_evaluate)
{
    int pipes[2], status;
    char text[512] = "";
    if (cuda || pipe(pipes) != 0)
        return;                                 // CUDA does not outlive a fork
    Run run = run_open("lenet", 1, 28, 2, TYPE_F32);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        model_forward(run.model, run.images, 2, false);
        _exit(0);
    }
    close(pipes[1]);
    EXPECT(read(pipes[0], text, sizeof text - 1) > 0, "nothing is said");
    close(pipes[0]);
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILED, "it ends with %d", status);
    EXPECT(strstr(text, "model_fold") != NULL, "it says: %s", text);
    run_close(&run);
}

static void again_with(const char *isa)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv("DNNL_MAX_CPU_ISA", isa, 1);
        execl("/proc/self/exe", "test_fold", isa, (char *)NULL);
        _exit(127);
    }
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "with %s: status %d", isa, status);
}

int main(int argc, char **argv)
{
    (void)argv;
    cuda = strcmp(device_backend, "cuda") == 0;
    if (cuda && device_count() == 0)
        TEST_SKIP("no GPU");
    device = device_open(0, 2);
    // gradients are compared bit by bit
    ops = ops_new(device, &(OpsConfig){ .deterministic = true });
    if (argc > 1) {
        compare_network("resnet18", 3, 32, 1, TYPE_F32);
        compare_network("resnet18", 3, 32, 1, TYPE_BF16);
        return test_done();
    }
    networks_are_what_they_are_in_float64();
    a_row_does_not_see_the_others();
    fewer_rows_have_the_same_answers();
    folding_again_follows_the_weights();
    training_notices_nothing();
    pooling_need_not_remember();
    broken_weights_give_broken_answers();
    a_model_never_folded_does_not_evaluate();
    bool once_more = !cuda && !ops_emulates(device, TYPE_BF16);
    ops_free(ops);
    device_close(device);
    if (once_more) {
        again_with("AVX512_CORE");
        again_with("AVX2");
    }
    return test_done();
}
