// test_short_types.c - training steps of whole networks in 16-bit types, compared with f32, and the
// memory they save. test_ops.c tests the operations, test_types.c the conversions.
//
// ctest: PROCESSORS 2 TIMEOUT 120 BACKENDS cpu cuda fake
#include "arrays.h"
#include "check.h"
#include "model.h"

// ==== Training steps =============================================================================

// A model, a batch, and what a step needs. Every Run has the same batch.
enum { BATCH = 32, CLASSES = 10 };

typedef struct Run {
    Model *model;
    void *images;
    int32_t *labels;
    Scalars *scalars;
    Stats *stats;
} Run;

static Run run_new(const char *arch, Type type, int size, float loss_scale)
{
    Run run = { model_new(device, ops, &(ModelConfig){ arch, 3, size, size, CLASSES, BATCH,
                                                       .type = type }) };
    size_t bytes = (size_t)(3 * size * size);
    uint8_t *pixels = host_memory(BATCH * bytes);
    int32_t labels[BATCH];
    for (int n = 0; n < BATCH; n++) {
        labels[n] = n % CLASSES;
        for (size_t i = 0; i < bytes; i++) // a pattern per class, plus noise
            pixels[(size_t)n * bytes + i] =
                (uint8_t)(philox(1, (uint64_t)labels[n], i / 5).v[0] % 128 +
                          philox(2, (uint64_t)n, i).v[0] % 128);
    }
    const float mean[3] = { 0.5f, 0.5f, 0.5f }, std[3] = { 0.25f, 0.25f, 0.25f };
    run.images = empty(run.model->input);
    run.labels = to_device(labels, sizeof labels);
    run.scalars = to_device(&(Scalars){ .scale.value = loss_scale }, sizeof *run.scalars);
    run.stats = memory(sizeof *run.stats);
    images_load(device_stream(device), to_device(pixels, BATCH * bytes), BATCH, 3, mean, std,
                run.images, run.model->input);
    stream_sync(device_stream(device));
    return run;
}

// Sets the norms' betas to plus or minus two deviations. Then few values are so close to ReLU's
// kink that rounding decides whether a gradient passes.
static void spread_betas(Model *model)
{
    size_t bytes = model->param_count * sizeof *model->params;
    float *params = to_host(model->params, bytes);
    for (int i = 1; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i], *before = t - 1;
        bool norm =
            t->kind == MODEL_VECTOR && before->kind == MODEL_VECTOR && before->layer == t->layer;
        for (int64_t c = 0; norm && c < t->count; c++)
            params[t->offset + (size_t)c] = philox(4, (uint64_t)i, (uint64_t)c).v[0] & 1 ? 2 : -2;
    }
    copy_to_device(device_stream(device), model->params, params, bytes);
    stream_sync(device_stream(device));
}

// Initialises the model with this seed and computes the gradients.
static void take_step(Run *run, int seed)
{
    Model *m = run->model;
    model_init(m, seed);
    spread_betas(m);
    model_cast_weights(m);
    model_forward(m, run->images, BATCH, true);
    loss_cross_entropy(ops, BATCH, CLASSES, m->logits, run->labels, run->scalars, run->stats,
                       m->dlogits);
    model_backward(m, NULL, NULL);
}

// Sums over several steps, for comparing b's gradients with a's: the cosine between them, and b's
// length in a's direction, relative to a's. Rounding may turn the gradients a little, but must not
// shorten them.
typedef struct Agreement {
    double dot, aa, bb;
} Agreement;

static void add_gradients(Agreement *sums, const Model *a, const Model *b, double loss_scale)
{
    float *of_a = to_host(a->grads, a->param_count * sizeof(float)),
          *of_b = to_host(b->grads, b->param_count * sizeof(float));
    for (int i = 0; i < a->tensor_count; i++) {
        const ModelTensor *t = &a->tensors[i];
        if (t->kind != MODEL_WEIGHT && t->kind != MODEL_VECTOR)
            continue;
        float *x = xmalloc((size_t)t->count * sizeof *x),
              *y = xmalloc((size_t)t->count * sizeof *y);
        model_export(a, t, of_a, x);
        model_export(b, &b->tensors[i], of_b, y);
        for (int64_t j = 0; j < t->count; j++) {
            double unscaled = y[j] / loss_scale;
            sums->dot += x[j] * unscaled;
            sums->aa += (double)x[j] * x[j];
            sums->bb += unscaled * unscaled;
        }
        free(x);
        free(y);
    }
}

static double mean_loss(const Run *run)
{
    const Stats *stats = to_host(run->stats, sizeof *stats);
    return stats->loss_sum / (double)stats->count;
}

// inits: number of steps, each from a different initialisation, that are compared together.
static void check_steps(const char *arch, int size, Type type, float loss_scale, int inits)
{
    Run wide = run_new(arch, TYPE_F32, size, 1), half = run_new(arch, type, size, loss_scale);
    Agreement sums = { 0 };
    for (int seed = 1; seed <= inits; seed++) {
        take_step(&wide, seed);
        take_step(&half, seed);
        add_gradients(&sums, wide.model, half.model, loss_scale);
    }
    double cosine = sums.dot / sqrt(sums.aa * sums.bb), along = sums.dot / sums.aa;
    double loss = mean_loss(&half), wide_loss = mean_loss(&wide);
    size_t wide_bytes = model_activation_bytes(wide.model, TYPE_F32);
    double bytes = (double)model_activation_bytes(half.model, type) / (double)wide_bytes;
    printf("%s, %s: loss %.6f, in f32 %.6f; gradients: cosine %.5f, %.5f along f32's; "
           "%.3f of the bytes\n",
           arch, type_names[type], loss, wide_loss, cosine, along, bytes);
    EXPECT(model_hash(wide.model) == model_hash(half.model), "%s: master weights differ", arch);
    EXPECT_NEAR(loss / wide_loss, 1, 8 * roundoffs[type]);
    EXPECT(cosine > 0.99, "%s, %s: the gradients' cosine is %f", arch, type_names[type], cosine);
    EXPECT_NEAR(along, 1, 8 * roundoffs[type]);
    EXPECT(model_activation_bytes(half.model, TYPE_F32) == wide_bytes, "%s: f32's bytes", arch);
    EXPECT(bytes <= 0.55, "%s, %s: %.3f of f32's bytes", arch, type_names[type], bytes);
    model_free(wide.model);
    model_free(half.model);
    check_ends();
}

// LeNet has no betas to spread. So rounding decides for some values whether ReLU passes a gradient,
// and which pixel of a window is the maximum. That makes gradients up to 12 roundoffs too long or
// too short (usually 3), with any loss scale and backend. Over eight initialisations together, the
// error is at most about 3 roundoffs.
static void training_steps(Type type)
{
    float loss_scale = type == TYPE_F16 ? 1024 : 1;
    check_steps("lenet", 32, type, loss_scale, 8);
    check_steps("convnet", 28, type, loss_scale, 1);
    check_steps("resnet18", 32, type, loss_scale, 1);
    if (type == TYPE_BF16)
        check_steps("resnet50", 32, type, loss_scale, 1);
}

int main(void)
{
    bool cuda = strcmp(device_backend, "cuda") == 0;
    if (cuda && device_count() == 0)
        TEST_SKIP("no GPU");
    device = device_open(0, 2);
    ops = ops_new(device, &(OpsConfig){ 0 });
    training_steps(TYPE_BF16);
    training_steps(TYPE_F16);
    ops_free(ops);
    device_close(device);
    return test_done();
}
