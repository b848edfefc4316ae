// gpu_check.c - compares GPU results with the CPU's, before ./ddp run trains on a GPU.
//
//   build/cpu/gpu_check write FILE       a step of LeNet, ResNet-18 and a GPT: losses, gradients
//   build/cuda/gpu_check compare FILE N  the same on GPU N, in f32, TF32 and a 16-bit type
//
// Exit status of compare: 0 the numbers agree, 4 they do not, 77 no GPU is visible, others: an error.
#include "check.h"
#include "model.h"
#include "optim.h"
#include "rng.h"
#include "checkpoint/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 32, CLASSES = 10, SIZE = 32, EXIT_DIFFERENT = 4, EXIT_NO_GPU = 77 };

// Ways to compute, with the allowed distances from the CPU's loss and gradients, as fractions of a
// tensor's norm. A different order of sums gives about 1e-5, a ReLU or maximum that rounding
// flips gives 1e-3 to 1e-2, and one lost row of 32 gives 1.8e-1. With 10-bit mantissas many
// ReLUs flip: 5e-2, and 2e-1 in the short vectors of biases and normalisations.
typedef struct Mode {
    const char *name;
    bool tf32, short_type;
    float loss_scale;
    double loss, weights, vectors;
} Mode;
static const Mode modes[] = {
    { "f32", false, false, 1, 1e-4, 2e-2, 2e-2 },
    { "TF32", true, false, 1, 1e-2, 1e-1, 4e-1 },
    { "16 bits", false, true, 1024, 1e-2, 1e-1, 4e-1 },
};

static const struct {
    const char *arch;
    int channels, per_row;
} nets[] = { { "lenet", 1, 1 }, { "resnet18", 3, 1 }, { "gpt", 1, 16 } };

typedef struct Job {
    Device *device;
    Ops *ops;
    Model *model;
    void *batch;
    int32_t *labels;
    Scalars *scalars;
    Stats *stats;
    const Mode *mode;
} Job;

typedef struct Results {
    StTensor tensors[128];
    double limits[128];     // the allowed distances
    int count;
} Results;

static void add_result(Results *results, const char *arch, const char *name, int64_t count,
                       const float *data, double limit)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, name);
    results->limits[results->count] = limit;
    results->tensors[results->count++] = (StTensor){ xstrdup(full), "F32", 1, { count }, data,
                                                     (size_t)count * sizeof *data };
}

static void free_results(Results *results)
{
    for (int i = 0; i < results->count; i++) {
        free((void *)results->tensors[i].name);
        free((void *)results->tensors[i].data);
    }
    results->count = 0;
}

static void *to_device(const Job *job, const void *host, size_t bytes)
{
    void *memory = device_alloc(job->device, bytes);
    copy_to_device(device_stream(job->device), memory, host, bytes);
    stream_sync(device_stream(job->device));
    return memory;
}

static void load_images(const Job *job, int channels)
{
    int count = ROWS * channels * SIZE * SIZE;
    unsigned char *bytes = xmalloc((size_t)count);
    for (int i = 0; i < count; i++)
        bytes[i] = (unsigned char)philox(1, 1, (uint64_t)i).v[0];
    const float mean[3] = { .5, .5, .5 }, std[3] = { .25, .25, .25 };
    void *images = to_device(job, bytes, (size_t)count);
    images_load(device_stream(job->device), images, ROWS, channels, mean, std, job->batch,
                job->model->input);
    stream_sync(device_stream(job->device));
    device_free(job->device, images);
    free(bytes);
}

// Random classes: labels, or a text's tokens and dropout keys.
static void load_classes(const Job *job, int32_t *to, size_t count)
{
    int32_t *classes = xmalloc(count * sizeof *classes);
    for (size_t i = 0; i < count; i++)
        classes[i] = (int32_t)(philox(1, 2, i).v[0] % CLASSES);
    copy_to_device(device_stream(job->device), to, classes, count * sizeof *classes);
    stream_sync(device_stream(job->device));
    free(classes);
}

// Sets the biases of batch norms, which are 0 at first, to 2 or -2 by channel. So fewer inputs of
// ReLUs are near 0. Without that, rounding flips a ReLU or two in every other run.
static void shift_norms(const Job *job)
{
    const Model *model = job->model;
    size_t bytes = model->param_count * sizeof(float);
    float *params = xmalloc(bytes), shift[512];
    copy_to_host(device_stream(job->device), params, model->params, bytes);
    stream_sync(device_stream(job->device));
    for (int i = 0; i + 1 < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        if (model->tensors[i + 1].kind != MODEL_BUFFER || t->kind != MODEL_VECTOR)
            continue;               // only biases of norms come before running means
        for (int64_t j = 0; j < t->count; j++)
            shift[j] = j % 2 ? 2 : -2;
        model_import(model, t, params, shift);
    }
    copy_to_device(device_stream(job->device), model->params, params, bytes);
    stream_sync(device_stream(job->device));
    free(params);
}

// The weights stay as they are, so that every step has the same gradients.
static void step(void *arg)
{
    Job *job = arg;
    fill_zero(device_stream(job->device), job->stats, sizeof *job->stats);
    model_forward(job->model, job->batch, ROWS, true);
    loss_cross_entropy(job->ops, ROWS * job->model->per_row, CLASSES, job->model->logits,
                       job->labels, job->scalars, job->stats, job->model->dlogits);
    model_backward(job->model, NULL, NULL);
}

static void collect(const Job *job, Results *results)
{
    const Model *model = job->model;
    float *grads = xcalloc(model->param_count, sizeof *grads), *loss = xmalloc(sizeof *loss);
    Stats stats;
    copy_to_host(device_stream(job->device), &stats, job->stats, sizeof stats);
    copy_to_host(device_stream(job->device), grads, model->grads,
                 model->grad_count * sizeof *grads);
    stream_sync(device_stream(job->device));
    *loss = (float)(stats.batch_loss_sum / (ROWS * model->per_row));
    add_result(results, model->config.arch, "loss", 1, loss, job->mode->loss);
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        if (t->kind != MODEL_WEIGHT && t->kind != MODEL_VECTOR)
            continue;
        float *gradient = xmalloc((size_t)t->count * sizeof *gradient);
        model_export(model, t, grads, gradient);
        for (int64_t k = 0; k < t->count; k++)
            gradient[k] /= job->mode->loss_scale;
        add_result(results, model->config.arch, t->name, t->count, gradient,
                   t->kind == MODEL_WEIGHT ? job->mode->weights : job->mode->vectors);
    }
    free(grads);
}

// first: the first step's results; third, if not NULL: those of the third, which a GPU replays.
static void take_steps(Job *job, const char *arch, int channels, int per_row, Results *first,
                       Results *third)
{
    Model *model = model_new(job->device, job->ops, &(ModelConfig){
        .arch = arch, .channels = channels, .height = SIZE, .width = SIZE, .classes = CLASSES,
        .batch = ROWS, .type = job->mode->short_type ? TYPE_F16 : TYPE_F32,
        .per_row = per_row, .gpt = { .layers = 1, .heads = 4, .width = 64, .dropout = 0.1 } });
    job->model = model;
    job->batch = device_alloc(job->device, shape_bytes(model->input));
    job->labels = device_alloc(job->device, (size_t)(ROWS * per_row) * sizeof *job->labels);
    job->scalars = scalars_new(job->device);
    job->stats = device_alloc(job->device, sizeof *job->stats);
    copy_to_device(device_stream(job->device), &job->scalars->scale.value, &job->mode->loss_scale,
                   sizeof(float));
    model_init(model, 1);
    shift_norms(job);
    model_cast_weights(model);
    if (per_row > 1)
        load_classes(job, job->batch, shape_count(model->input));
    else
        load_images(job, channels);
    load_classes(job, job->labels, (size_t)(ROWS * per_row));
    Replay *replay = replay_new(job->device, 1);
    replay_run(replay, 0, step, job);
    collect(job, first);
    for (int i = 0; i < 2 && third; i++)
        replay_run(replay, 0, step, job);
    if (third)
        collect(job, third);
    replay_free(replay);
    device_free(job->device, job->stats);
    device_free(job->device, job->scalars);
    device_free(job->device, job->labels);
    device_free(job->device, job->batch);
    model_free(model);
}

static void compute(int index, const Mode *mode, Results *first, Results *third)
{
    Job job = { .device = device_open(index, 0), .mode = mode };
    job.ops = ops_new(job.device, &(OpsConfig){ .tf32 = mode->tf32, .deterministic = false });
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        take_steps(&job, nets[i].arch, nets[i].channels, nets[i].per_row, first, third);
    ops_free(job.ops);
    device_close(job.device);
}

static double distance(const StTensor *ours, const StTensor *theirs)
{
    const float *a = ours->data, *b = theirs->data;
    double off = 0, norm = 0;
    for (size_t i = 0; i < ours->bytes / sizeof *a; i++) {
        off += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(off / norm);
}

// Prints the first tensor that is off by more than its limit, and if there are more, how many.
// Returns true if there is none. Raises *worst to the largest distance.
static bool compare(int gpu, const Mode *mode, const char *how, const Results *ours,
                    const StFile *file, double *worst)
{
    int wrong = 0;
    for (int i = 0; i < ours->count; i++) {
        const StTensor *mine = &ours->tensors[i], *theirs = st_find(file, mine->name);
        CHECK(theirs && theirs->bytes == mine->bytes, "build both programs from the same sources",
              "the CPU's file has no numbers for %s of this size", mine->name);
        bool loss = strstr(mine->name, ".loss") != NULL;
        double limit = ours->limits[i], off = distance(mine, theirs);
        if (!(off <= limit) && wrong++ == 0)
            printf("GPU %d, %s, %s step: %s%s is off by %.1e of its norm, more than %.0e\n", gpu,
                   mode->name, how, loss ? "" : "the gradient of ", mine->name, off, limit);
        if (worst)
            *worst = fmax(*worst, off);
    }
    if (wrong > 1)
        printf("GPU %d, %s, %s step: %d of %d tensors are off\n", gpu, mode->name, how, wrong,
               ours->count);
    return wrong == 0;
}

static int compare_gpu(const char *path, int gpu)
{
    enum { MODES = sizeof modes / sizeof *modes };
    if (device_count() == 0) {
        printf("CUDA sees no GPU\n");
        return EXIT_NO_GPU;
    }
    StFile file;
    Error err;
    if (!st_open(&file, path, &err))
        FAIL_ERROR(&err);
    bool same = true;
    double worst = 0;               // distance in f32
    for (int i = 0; i < MODES; i++) {
        Results first = { 0 }, third = { 0 };
        compute(gpu, &modes[i], &first, i == 0 ? &third : NULL);
        same = compare(gpu, &modes[i], "first", &first, &file, i == 0 ? &worst : NULL) && same;
        same = compare(gpu, &modes[i], "recorded", &third, &file, i == 0 ? &worst : NULL) && same;
        free_results(&first);
        free_results(&third);
    }
    st_close(&file);
    if (same)
        printf("the losses and gradients of LeNet, ResNet-18 and a GPT match the CPU's: f32 to "
               "%.0e, TF32 and 16 bits within their rounding\n", worst);
    return same ? 0 : EXIT_DIFFERENT;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "compare") == 0)
        return compare_gpu(argv[2], atoi(argv[3]));
    if (argc != 3 || strcmp(argv[1], "write") != 0) {
        fprintf(stderr, "usage: gpu_check write FILE, or gpu_check compare FILE GPU\n");
        return EXIT_USAGE;
    }
    Results results = { 0 };
    Error err;
    compute(0, &modes[0], &results, NULL);
    if (!st_write(argv[2], results.tensors, results.count, NULL, 0, &err))
        FAIL_ERROR(&err);
    free_results(&results);
    return 0;
}
