// A small GPT: the loss and gradients of a step against PyTorch's, in f32 and 16 bits; and what the logits
// of a token and of a sample may depend on.
//
// ctest: PROCESSORS 2 BACKENDS cpu cuda fake
//
//   test_gpt_step                                   compares with the file in tests/reference
//   test_gpt_step STEP.safetensors                  compares with STEP (tools/reference/gpt.py describes the file)
#include "step_reference.h"
#include "test_device.h"


typedef struct Gpt {
    StFile file;
    Model *model;
    int rows, block, targets;
    int32_t *batch, *labels;    // device
    Stats *stats;               // device
    Scalars *scalars;           // device
} Gpt;

// Each row has its key (two words), then its tokens.
static int32_t *batch_of(const Gpt *g, const int32_t *tokens)
{
    int32_t *batch = xcalloc((size_t)g->rows * (size_t)(2 + g->block), sizeof *batch);
    for (int n = 0; n < g->rows; n++) {
        int32_t *row = batch + (size_t)n * (size_t)(2 + g->block);
        row[0] = 7 * n;
        row[1] = n % 2;
        memcpy(row + 2, tokens + n * g->block, (size_t)g->block * sizeof *row);
    }
    return batch;
}

static void batch_send(Gpt *g, const int32_t *batch)
{
    send_to_device(g->model, g->batch, batch,
                   (size_t)g->rows * (size_t)(2 + g->block) * sizeof *batch);
}

static void weights_load(Gpt *g)
{
    Model *model = g->model;
    float *params = xcalloc(model->param_count, sizeof *params);
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        const StTensor *there = st_find(&g->file, t->name);
        bool fits = there && there->bytes == (size_t)t->count * 4 && there->ndim == t->ndim
                    && there->shape[0] == t->shape[0];
        if (EXPECT(fits, "%s: not the same tensor in the file", t->name))
            model_import(model, t, params, there->data);
    }
    send_to_device(model, model->params, params, model->param_count * sizeof *params);
    free(params);
    model_cast_weights(model);
}

static Gpt gpt_open(const char *path, Type type, double dropout)
{
    Gpt g = { .file = file_open(path) };
    g.rows = file_int(&g.file, "rows");
    g.block = file_int(&g.file, "block");
    g.targets = g.rows * g.block;
    ModelConfig config = { "gpt", .classes = file_int(&g.file, "classes"), .batch = g.rows, .type = type,
                           .per_row = g.block,
                           .gpt = { file_int(&g.file, "layers"), file_int(&g.file, "heads"),
                                    file_int(&g.file, "width"), dropout } };
    g.model = model_new(device, ops, &config);
    g.batch = device_alloc(device, shape_bytes(g.model->input));
    g.labels = device_alloc(device, (size_t)g.targets * sizeof *g.labels);
    g.stats = device_alloc(device, sizeof *g.stats);
    g.scalars = device_alloc(device, sizeof *g.scalars);
    weights_load(&g);
    send_to_device(g.model, g.labels, file_data(&g.file, "labels"), (size_t)g.targets * sizeof *g.labels);
    int32_t *batch = batch_of(&g, file_data(&g.file, "tokens"));
    batch_send(&g, batch);
    free(batch);
    return g;
}

static void gpt_close(Gpt *g)
{
    device_free(device, g->scalars);
    device_free(device, g->stats);
    device_free(device, g->labels);
    device_free(device, g->batch);
    model_free(g->model);
    st_close(&g->file);
}

static double step(Gpt *g, float scale)
{
    Model *model = g->model;
    Scalars start = { .scale.value = scale };
    Stats stats = { 0 };
    send_to_device(model, g->scalars, &start, sizeof start);
    send_to_device(model, g->stats, &stats, sizeof stats);
    model_forward(model, g->batch, g->rows, true);
    loss_cross_entropy(ops, g->targets, model->config.classes, model->logits, g->labels, g->scalars, g->stats,
                       model->dlogits);
    model_backward(model, NULL, NULL);
    gradients_unscale(ops, model->grad_count, model->grads, g->scalars);
    copy_to_host(device_stream(device), &stats, g->stats, sizeof stats);
    stream_sync(device_stream(device));
    return stats.loss_sum / (double)stats.count;
}

// Returns the root mean square of our distances from `exact`, and in *size that of `exact` itself.
static double far_from(const float *ours, const double *exact, int64_t count, double *size)
{
    double far = 0, all = 0;
    for (int64_t i = 0; i < count; i++) {
        far += (ours[i] - exact[i]) * (ours[i] - exact[i]);
        all += exact[i] * exact[i];
    }
    *size = sqrt(all / (double)count);
    return sqrt(far / (double)count);
}

// Exact gradients are PyTorch's in float64. In f32 a gradient is off by at most 1e-5 of its size. In 16 bits it is at
// most 3 times as far off as PyTorch's autocast, in the geometric mean over all tensors at most 2 times.
// (Autocast is more exact: it keeps the residual sum in f32.)
static void compare(const char *path, Type type)
{
    Gpt g = gpt_open(path, type, 0);
    const double *losses = file_data(&g.file, "loss");
    double loss = step(&g, type == TYPE_F16 ? 1024 : 1), logs = 0, worst = 0;
    float *grads = grads_copy(g.model);
    const char *name = "";
    for (int i = 0; i < g.model->tensor_count; i++) {
        const ModelTensor *t = &g.model->tensors[i];
        const StTensor *exact = file_find(&g.file, "grad.", t->name), *far = file_find(&g.file, "far.", t->name);
        float *ours = xmalloc((size_t)t->count * sizeof *ours);
        double size;
        model_export(g.model, t, grads, ours);
        double off = far_from(ours, exact->data, t->count, &size);
        double ratio = off / (type == TYPE_F32 ? 1e-5 * size : ((const double *)far->data)[type - TYPE_BF16]);
        EXPECT(ratio <= (type == TYPE_F32 ? 1 : 3), "%s, %s: the gradient is off by %.3g of %.3g: %.3g times "
               "the limit or PyTorch's distance", t->name, type_names[type], off, size, ratio);
        logs += log(ratio) / g.model->tensor_count;
        name = ratio > worst ? t->name : name;
        worst = fmax(worst, ratio);
        free(ours);
    }
    EXPECT(type == TYPE_F32 || exp(logs) <= 2, "%s: typically %.3g times PyTorch's distance", type_names[type],
           exp(logs));
    EXPECT_NEAR(loss, losses[0], type == TYPE_F32 ? 1e-5 : 6 * losses[type] + 1e-4);
    printf("gpt, %s: %d tensors, loss off by %.1e; distances / limits or PyTorch's: %.2f, worst %.2f, %s\n",
           type_names[type], g.model->tensor_count, loss - losses[0], exp(logs), worst, name);
    free(grads);
    gpt_close(&g);
}

static float *logits_of(Gpt *g, const int32_t *batch, bool training)
{
    batch_send(g, batch);
    model_forward(g->model, g->batch, g->rows, training);
    return arena_copy(g->model, g->model->logits, (size_t)(g->targets * g->model->config.classes));
}

// The logits of a token depend on this token and the earlier ones, and on no other sample.
static void check_future(const char *path, Type type, double dropout)
{
    Gpt g = gpt_open(path, type, dropout);
    int classes = g.model->config.classes, row = 1;
    size_t each = (size_t)classes * sizeof(float);
    int32_t *batch = batch_of(&g, file_data(&g.file, "tokens"));
    float *before = logits_of(&g, batch, true);
    for (int t = 0; t < g.block; t++) {
        int32_t *token = &batch[row * (2 + g.block) + 2 + t], old = *token;
        *token = (old + 1) % classes;
        float *after = logits_of(&g, batch, true);
        *token = old;
        for (int i = 0; i < g.targets; i++) {
            bool same = memcmp(before + i * classes, after + i * classes, each) == 0;
            bool sees = i / g.block == row && i % g.block >= t;
            EXPECT(same || sees, "%s: token %d of sample %d changes the logits %d of sample %d",
                   type_names[type], t, row, i % g.block, i / g.block);
            EXPECT(!same || !sees || i % g.block > t, "%s: token %d has no effect", type_names[type], t);
        }
        free(after);
    }
    free(before);
    free(batch);
    gpt_close(&g);
}

// With dropout, a sample's logits depend only on its tokens and its key. In evaluation the key has no effect.
static void check_keys(const char *path)
{
    Gpt g = gpt_open(path, TYPE_F32, 0.2);
    int width = 2 + g.block, each = g.block * g.model->config.classes;
    size_t bytes = (size_t)each * sizeof(float);
    int32_t *batch = batch_of(&g, file_data(&g.file, "tokens"));
    float *first = logits_of(&g, batch, true), *again = logits_of(&g, batch, true);
    EXPECT(memcmp(first, again, bytes) == 0, "the same batch has other logits");
    free(again);
    memcpy(batch, batch + 2 * width, (size_t)width * sizeof *batch);    // sample 2 is also in place 0
    batch[3 * width]++;                                                 // another key
    float *moved = logits_of(&g, batch, true);
    EXPECT(memcmp(moved, first + 2 * each, bytes) == 0, "sample 2 has other logits in place 0");
    EXPECT(memcmp(moved + 3 * each, first + 3 * each, bytes) != 0, "another key drops the same");
    float *plain = logits_of(&g, batch, false);
    batch[3 * width]--;
    float *other = logits_of(&g, batch, false);
    EXPECT(memcmp(plain, other, (size_t)g.rows * bytes) == 0, "in evaluation a key matters");
    EXPECT(memcmp(plain, moved, bytes) != 0, "training drops nothing");
    free(other);
    free(plain);
    free(moved);
    free(first);
    free(batch);
    gpt_close(&g);
}

// minGPT's initialisation: weights have a standard deviation of 0.02, or (c_proj, before a residual sum) of
// 0.02 / sqrt(2 layers); biases are 0, gamma 1.
static void check_init(void)
{
    ModelConfig config = { "gpt", .classes = 65, .batch = 1, .per_row = 64, .gpt = { 8, 4, 128 } };
    Model *model = model_new(device, ops, &config);
    model_init(model, 1);
    EXPECT_EQ_INT(model->torch_params, 8 * (12 * 128 * 128 + 13 * 128) + 2 * 128 + (2 * 65 + 64) * 128);
    float *params = arena_copy(model, model->params, model->param_count);
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        float *values = xmalloc((size_t)t->count * sizeof *values);
        double mean = 0, square = 0, deviation = strstr(t->name, "c_proj") ? 0.005 : 0.02;
        model_export(model, t, params, values);
        for (int64_t j = 0; j < t->count; j++) {
            mean += values[j] / (double)t->count;
            square += (double)values[j] * values[j] / (double)t->count;
        }
        if (t->kind == MODEL_WEIGHT)
            EXPECT(fabs(mean) < 0.05 * deviation && fabs(sqrt(square) / deviation - 1) < 0.05,
                   "%s: mean %g, deviation %g", t->name, mean, sqrt(square));
        else
            EXPECT(square == mean * mean && mean == (strstr(t->name, ".weight") ? 1 : 0), "%s", t->name);
        free(values);
    }
    free(params);
    model_free(model);
}

int main(int argc, char **argv)
{
    bool cpu = strcmp(device_backend, "cpu") == 0;
    test_open_device(2, (OpsConfig){ .deterministic = true });
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", argc > 1 ? argv[1] : reference_path("gpt.step.safetensors"));
    for (Type type = TYPE_F32; type <= TYPE_F16; type++) {
        compare(path, type);
        check_future(path, type, type == TYPE_F32 ? 0.1 : 0);
    }
    check_keys(path);
    check_init();
    if (cpu && !ops_emulates(device, TYPE_BF16))
        test_again_with("DNNL_MAX_CPU_ISA", "AVX512_CORE", argv);
    test_close_device();
    return test_done();
}
