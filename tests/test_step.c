// test_step.c - training steps, compared with PyTorch's: single steps, a run of LeNet, and AdamW.
// ctest: PROCESSORS 2 BACKENDS cpu cuda fake SANITIZERS none LABELS quick
#include "data.h"
#include "step_reference.h"
#include "test_device.h"

// test_step_amp takes four more steps of resnet18, from other states.
TEST(steps)
{
    static const char *const names[] = { "resnet18-1.step.safetensors", "resnet50-1.step.safetensors" };
    for (int i = 0; i < 2; i++) {
        StepRun run;
        step_open(&run, names[i]);
        ModelConfig config = step_config(&run, run.batch);
        Model *model = model_new(device, ops, &config);
        step_begin(&run, model, 0, run.batch);
        step_compare(&run, step_take(&run, 1, NULL, NULL, NULL));
        step_close(&run);
        model_free(model);
    }
}

// The file keeps all values of a tensor, or every n-th. Ours may be off by `part` times the file's largest.
static void expect_values(const StFile *file, const Model *model, const char *kind, const float *values, double part)
{
    float *arena = arena_copy(model, values, model->param_count);
    for (const ModelTensor *t = model->tensors; t < model->tensors + model->tensor_count; t++) {
        const StTensor *wanted = file_find(file, kind, t->name);
        if (!EXPECT(wanted != NULL, "%s%s: missing", kind, t->name))
            continue;
        int64_t kept = (int64_t)wanted->bytes / 4, every = (t->count + kept - 1) / kept;
        float *ours = exported(model, t, NULL, arena);
        const float *theirs = wanted->data;
        double largest = 0, off = 0;
        bool finite = true;
        for (int64_t i = 0; i < kept; i++) {
            finite = finite && isfinite(ours[i * every]);
            largest = fmax(largest, fabs(theirs[i]));
            off = fmax(off, fabs((double)ours[i * every] - theirs[i]));
        }
        EXPECT(finite && off <= part * largest, "%s%s: off by %g, largest %g", kind, t->name, off, largest);
        free(ours);
    }
    free(arena);
}

static void load_lenet(Model *model)
{
    Error err;
    if (!checkpoint_load(reference_path("lenet.state.safetensors"), model, NULL, NULL, &err))
        FAIL_ERROR(&err);
}

// LeNet is not deep, and has no BatchNorm. So rounding errors stay small, and several steps can be compared.
TEST(lenet_run)
{
    StepRun run;
    step_open(&run, "lenet.run.safetensors");
    const StTensor *losses = st_find(&run.file, "losses"), *pixels = st_find(&run.file, "images");
    const int64_t *wide_labels = file_data(&run.file, "labels");
    int steps = (int)losses->shape[0], count = steps * run.batch;

    Model *model = model_new(device, ops, &(ModelConfig){ "lenet", 1, 32, 32, 10, run.batch });
    step_memory(&run, model, run.batch);
    load_lenet(model);
    EXPECT_EQ_INT(model->torch_params, 61706);
    int32_t *labels = xmalloc((size_t)count * sizeof *labels);
    for (int i = 0; i < count; i++)
        labels[i] = (int32_t)wide_labels[i];
    Dataset set = { count, 1, 28, 28, 10, (uint8_t *)pixels->data, labels, .per_row = 1 };
    LoaderConfig config = { model->input, { .mean = { *(const float *)file_data(&run.file, "mean") },
                                            .std = { *(const float *)file_data(&run.file, "std") } } };
    Loader *loader = loader_new(device, &set, &config);
    loader_start(loader, NULL, count, 0, 0);

    double worst = 0;
    void *images = run.inputs;
    int32_t *device_labels = run.labels;
    for (int i = 0; i < steps; i++) {
        const Batch *batch = loader_next(loader);
        run.inputs = batch->inputs;
        run.labels = batch->labels;
        double wanted = ((const double *)losses->data)[i], loss = step_take(&run, 1, NULL, NULL, NULL);
        EXPECT_NEAR(loss, wanted, 1e-4);
        worst = fmax(worst, fabs(loss - wanted));
    }
    printf("lenet: %d losses, off by at most %.1e\n", steps, worst);
    expect_values(&run.file, model, "final.", model->params, 5e-3);
    run.inputs = images;
    run.labels = device_labels;
    loader_free(loader);
    free(labels);
    step_close(&run);
    model_free(model);
}

// The gradients of tools/reference/make.py. bad: the first gradient of each tensor is infinite.
static void set_gradients(const Model *model, uint64_t seed, bool bad)
{
    float *arena = xcalloc(model->param_count, sizeof *arena);
    for (const ModelTensor *t = model->tensors; t < model->tensors + model->tensor_count; t++) {
        float *u = numbers_make(seed, (uint64_t)tensor_rank(model, t), t->count);
        u[0] = bad ? INFINITY : u[0];
        model_import(model, t, arena, u);
        free(u);
    }
    send_to_device(model, model->grads, arena, model->grad_count * sizeof *arena);
    free(arena);
}

TEST(adamw_run)
{
    StFile file = file_open("lenet.adamw.safetensors");
    OptimConfig config = { .name = "adamw", .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1 };
    Model *model = model_new(device, ops, &(ModelConfig){ "lenet", 1, 32, 32, 10, 1 });
    Optim *optim = optim_new(&config, model);
    Scalars *scalars = scalars_new(device);
    Stats *stats = device_alloc(device, sizeof *stats);
    load_lenet(model);
    for (int step = 0; step < file_int(&file, "steps"); step++) {
        StepSettings settings = optim_settings(optim, 0.01, step);
        settings.clip_norm = 1;
        scalars_set(ops, scalars, settings);
        set_gradients(model, (uint64_t)(file_int(&file, "seed") + step),
                      step == file_int(&file, "skipped"));
        gradients_check(ops, model->grad_count, model->grads, scalars, stats);
        gradients_norm(ops, model->grad_count, model->grads, scalars);
        optim_step(optim, scalars);
        loss_scale_adapt(ops, scalars, 1000);
    }
    expect_values(&file, model, "weights.", model->params, 2e-6);
    expect_values(&file, model, "exp_avg.", optim->arenas[0].values, 2e-6);
    expect_values(&file, model, "exp_avg_sq.", optim->arenas[1].values, 2e-6);
    device_free(device, stats);
    device_free(device, scalars);
    optim_free(optim);
    model_free(model);
    st_close(&file);
}

TEST_MAIN_ON_DEVICE(0, .tf32 = false, .deterministic = true)
