// test_step.c - one training step, compared with PyTorch's.
// ctest: PROCESSORS 2 TIMEOUT 120 BACKENDS cpu cuda fake SANITIZERS none
//
//   test_step                                   the files of tests/reference
//   test_step STEP.safetensors...               these files
#include "data.h"
#include "step_reference.h"

static Device *device;
static Ops *ops;

// --- one step -----------------------------------------------------------------------------------

static void compare_step(const char *path)
{
    StepRun run;
    step_open(&run, path);
    ModelConfig config = step_config(&run, run.batch);
    Model *model = model_new(device, ops, &config);
    step_begin(&run, model, 0, run.batch);
    step_compare(&run, step_take(&run));
    step_close(&run);
    model_free(model);
}

TEST(committed_steps)
{
    static const char *const names[] = {
        "convnet-000", "convnet-005", "convnet-020", "convnet-050", "convnet-100",
        "resnet18-1",  "resnet18-2",  "resnet18-3",  "resnet18-4",  "resnet18-5",
        "resnet50-1",  "resnet50-2",  "resnet50-3",  "resnet50-4",  "resnet50-5",
    };
    size_t count = sizeof names / sizeof *names;
    if (strcmp(device_name(device), "Fake GPU") == 0)
        count -= 4;     // the mock CUDA runtime takes 10 s for each step of ResNet-50: one shows its shapes
    for (size_t i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.step.safetensors", names[i]);
        compare_step(reference_path(name));
    }
}

// --- LeNet: without BatchNorm, twenty steps can be compared --------------------------------------

static void lenet_final(const StFile *file, const Model *model)
{
    float *params = arena_copy(model, model->params, model->param_count);
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        const StTensor *wanted = file_find(file, "final.", t->name);
        if (!EXPECT(wanted && wanted->bytes == (size_t)t->count * 4, "%s: missing", t->name))
            continue;
        float *ours = xmalloc(wanted->bytes);
        const float *theirs = wanted->data;
        model_export(model, t, params, ours);
        double largest = 0, off = 0;
        bool finite = true;
        for (int64_t j = 0; j < t->count; j++) {
            finite = finite && isfinite(ours[j]);
            largest = fmax(largest, fabs(theirs[j]));
            off = fmax(off, fabs((double)ours[j] - theirs[j]));
        }
        EXPECT(finite && off <= 5e-3 * largest, "%s: off by %g, largest %g", t->name, off, largest);
        free(ours);
    }
    free(params);
}

TEST(lenet_run)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", reference_path("lenet.state.safetensors"));
    StepRun run;
    step_open(&run, reference_path("lenet.run.safetensors"));
    const StTensor *losses = st_find(&run.file, "losses"), *pixels = st_find(&run.file, "images");
    const int64_t *wide_labels = file_data(&run.file, "labels");
    int steps = (int)losses->shape[0], count = steps * run.batch;

    Model *model = model_new(device, ops, &(ModelConfig){ "lenet", 1, 32, 32, 10, run.batch });
    step_memory(&run, model, run.batch);
    Error err;
    if (!checkpoint_load(path, model, NULL, NULL, &err))
        FAIL_ERROR(&err);
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
    void *images = run.images;
    int32_t *device_labels = run.labels;
    for (int i = 0; i < steps; i++) {
        const Batch *batch = loader_next(loader);
        run.images = batch->images;
        run.labels = batch->labels;
        double wanted = ((const double *)losses->data)[i], loss = step_take(&run);
        EXPECT_NEAR(loss, wanted, 1e-4);
        worst = fmax(worst, fabs(loss - wanted));
    }
    printf("lenet: %d losses, off by at most %.1e\n", steps, worst);
    lenet_final(&run.file, model);
    run.images = images;
    run.labels = device_labels;
    loader_free(loader);
    free(labels);
    step_close(&run);
    model_free(model);
}

int main(int argc, char **argv)
{
    if (strcmp(device_backend, "cuda") == 0 && device_count() == 0)
        TEST_SKIP("no GPU here");
    device = device_open(0, 0);
    ops = ops_new(device, &(OpsConfig){ .tf32 = false, .deterministic = true });
    for (int i = 1; i < argc; i++)
        compare_step(argv[i]);
    if (argc == 1) {
        lenet_run();
        committed_steps();
    }
    int status = test_done();
    ops_free(ops);
    device_close(device);
    return status;
}
