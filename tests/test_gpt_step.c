// A small GPT: the loss and gradients of a step against PyTorch's, in f32 and 16 bits; and what the logits
// of a token and of a sample may depend on.
//
// ctest: PROCESSORS 2 BACKENDS cpu cuda fake
#include "step_reference.h"
#include "test_device.h"

// Each row has its key (two words), then its tokens.
static int32_t *batch_of(const StepRun *run, int block)
{
    const int32_t *tokens = file_data(&run->file, "tokens");
    int32_t *batch = xcalloc((size_t)run->rows * (size_t)(2 + block), sizeof *batch);
    for (int n = 0; n < run->rows; n++) {
        int32_t *row = batch + n * (2 + block);
        row[0] = 7 * n;
        row[1] = n % 2;
        memcpy(row + 2, tokens + n * block, (size_t)block * sizeof *row);
    }
    return batch;
}

static void weights_load(StepRun *run)
{
    Model *model = run->model;
    float *params = xcalloc(model->param_count, sizeof *params);
    for (const ModelTensor *t = model->tensors; t < model->tensors + model->tensor_count; t++) {
        const StTensor *there = st_find(&run->file, t->name);
        if (EXPECT(there && there->bytes == (size_t)t->count * 4 && there->ndim == t->ndim
                       && there->shape[0] == t->shape[0], "%s: not the same tensor in the file", t->name))
            model_import(model, t, params, there->data);
    }
    send_to_device(model, model->params, params, model->param_count * sizeof *params);
    free(params);
    model_cast_weights(model);
}

// Returns the batch.
static int32_t *gpt_open(StepRun *run, Type type, double dropout)
{
    step_open(run, "gpt.step.safetensors");
    const StFile *file = &run->file;
    ModelConfig config = { "gpt", .classes = file_int(file, "classes"), .batch = run->batch, .type = type,
                           .per_row = file_int(file, "block"),
                           .gpt = { file_int(file, "layers"), file_int(file, "heads"), file_int(file, "width"),
                                    dropout } };
    Model *model = model_new(device, ops, &config);
    step_memory(run, model, run->batch);
    weights_load(run);
    send_to_device(model, run->labels, file_data(file, "labels"), (size_t)run->targets * sizeof *run->labels);
    int32_t *batch = batch_of(run, config.per_row);
    send_to_device(model, run->inputs, batch, shape_bytes(model->input));
    return batch;
}

static void gpt_close(StepRun *run, int32_t *batch)
{
    Model *model = run->model;
    free(batch);
    step_close(run);
    model_free(model);
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

// Exact gradients are PyTorch's in float64. In f32 a gradient may be off by 1e-5 of its size. In 16 bits it may be 3
// times as far off as PyTorch's autocast, in the geometric mean over all tensors 2 times.
// (Autocast is more exact: it keeps the residual sum in f32.)
static void compare(Type type)
{
    StepRun run;
    int32_t *batch = gpt_open(&run, type, 0);
    const Model *model = run.model;
    const double *losses = file_data(&run.file, "loss");
    double loss = step_take(&run, type == TYPE_F16 ? 1024 : 1, NULL, NULL, NULL), logs = 0, worst = 0;
    float *grads = grads_copy(model);
    const char *name = "";
    for (const ModelTensor *t = model->tensors; t < model->tensors + model->tensor_count; t++) {
        const StTensor *exact = file_find(&run.file, "grad.", t->name), *far = file_find(&run.file, "far.", t->name);
        float *ours = exported(model, t, NULL, grads);
        double size, off = far_from(ours, exact->data, t->count, &size);
        double ratio = off / (type == TYPE_F32 ? 1e-5 * size : ((const double *)far->data)[type - TYPE_BF16]);
        EXPECT(ratio <= (type == TYPE_F32 ? 1 : 3), "%s, %s: the gradient is off by %.3g of %.3g: %.3g times "
               "the limit or PyTorch's distance", t->name, type_names[type], off, size, ratio);
        logs += log(ratio) / model->tensor_count;
        name = ratio > worst ? t->name : name;
        worst = fmax(worst, ratio);
        free(ours);
    }
    EXPECT(type == TYPE_F32 || exp(logs) <= 2, "%s: typically %.3g times PyTorch's distance", type_names[type],
           exp(logs));
    EXPECT_NEAR(loss, losses[0], type == TYPE_F32 ? 1e-5 : 6 * losses[type] + 1e-4);
    printf("gpt, %s: %d tensors, loss off by %.1e; distances / limits or PyTorch's: %.2f, worst %.2f, %s\n",
           type_names[type], model->tensor_count, loss - losses[0], exp(logs), worst, name);
    free(grads);
    gpt_close(&run, batch);
}

static float *logits_of(StepRun *run, const int32_t *batch, bool training)
{
    Model *model = run->model;
    send_to_device(model, run->inputs, batch, shape_bytes(model->input));
    model_forward(model, run->inputs, run->rows, training);
    return arena_copy(model, model->logits, (size_t)(run->targets * model->config.classes));
}

// The logits of a token depend on this token and the earlier ones, and on no other sample.
static void check_future(Type type, double dropout)
{
    StepRun run;
    int32_t *batch = gpt_open(&run, type, dropout);
    int classes = run.model->config.classes, block = run.model->per_row, row = 1;
    size_t each = (size_t)classes * sizeof(float);
    float *before = logits_of(&run, batch, true);
    for (int t = 0; t < block; t++) {
        int32_t *token = &batch[row * (2 + block) + 2 + t], old = *token;
        *token = (old + 1) % classes;
        float *after = logits_of(&run, batch, true);
        *token = old;
        for (int i = 0; i < run.targets; i++) {
            bool same = memcmp(before + i * classes, after + i * classes, each) == 0;
            bool sees = i / block == row && i % block >= t;
            EXPECT(same || sees, "%s: token %d of sample %d changes the logits %d of sample %d",
                   type_names[type], t, row, i % block, i / block);
            EXPECT(!same || !sees || i % block > t, "%s: token %d has no effect", type_names[type], t);
        }
        free(after);
    }
    free(before);
    gpt_close(&run, batch);
}

// With dropout, a sample's logits depend only on its tokens and its key. In evaluation the key has no effect.
static void check_keys(void)
{
    StepRun run;
    int32_t *batch = gpt_open(&run, TYPE_F32, 0.2);
    int width = 2 + run.model->per_row, each = run.model->per_row * run.model->config.classes;
    size_t bytes = (size_t)each * sizeof(float);
    float *first = logits_of(&run, batch, true);
    memcpy(batch, batch + 2 * width, (size_t)width * sizeof *batch);    // sample 2 is also in place 0
    batch[3 * width]++;                                                 // another key
    float *moved = logits_of(&run, batch, true), *plain = logits_of(&run, batch, false);
    batch[3 * width]--;
    float *other = logits_of(&run, batch, false);
    EXPECT(memcmp(moved, first + 2 * each, bytes) == 0, "sample 2 has other logits in place 0");
    EXPECT(memcmp(moved + 3 * each, first + 3 * each, bytes) != 0, "another key drops the same");
    EXPECT(memcmp(plain, other, (size_t)run.rows * bytes) == 0, "in evaluation a key matters");
    EXPECT(memcmp(plain, moved, bytes) != 0, "training drops nothing");
    free(other);
    free(plain);
    free(moved);
    free(first);
    gpt_close(&run, batch);
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
    for (const ModelTensor *t = model->tensors; t < model->tensors + model->tensor_count; t++) {
        float *values = exported(model, t, NULL, params);
        double mean = 0, square = 0, deviation = strstr(t->name, "c_proj") ? 0.005 : 0.02;
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
    test_open_device(2, (OpsConfig){ .deterministic = true });
    for (Type type = TYPE_F32; type <= TYPE_F16; type++) {
        compare(type);
        check_future(type, type == TYPE_F32 ? 0.1 : 0);
    }
    check_keys();
    check_init();
    if (strcmp(device_backend, "cpu") == 0 && !ops_emulates(device, TYPE_BF16))
        test_again_with("DNNL_MAX_CPU_ISA", "AVX512_CORE", argv);
    test_close_device();
    return test_done();
}
