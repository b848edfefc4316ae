// step_reference.h - compares one training step with PyTorch's.
//
// Two runs of a deep network diverge within a few steps (even PyTorch on one thread and on two), so whole runs
// cannot be compared. A single step can: from the same weights, momentum and batch, our step must give PyTorch's
// loss, gradients and updates. tools/reference makes the files of PyTorch's results; reference.py there documents them.
//
//   StepRun run;
//   step_open(&run, reference_path("resnet18-1.step.safetensors"));
//   ModelConfig config = step_config(&run, rows);    // rows: the model's largest batch
//   Model *model = model_new(device, ops, &config);
//   step_begin(&run, model, first, rows);            // loads the state and these rows of the batch
//   double loss = step_take(&run);                   // on one device; step_take_with: in several processes
//   step_compare(&run, loss);                        // loss: the mean over the whole batch
//   step_close(&run);                                // then free the model
//
// With several ranks, each takes a part of the rows, and one compares what all have computed.
#pragma once
#include "test.h"

#include "check.h"
#include "checkpoint.h"
#include "device.h"
#include "model.h"
#include "ops.h"
#include "rng.h"
#include "checkpoint/safetensors.h"

#include <limits.h>
#include <math.h>

static const StepSettings step_recipe = { .lr = 0.01f, .momentum = 0.9f, .weight_decay = 1e-4f,
                                          .nesterov = 1 };

typedef struct Arenas {
    float *params, *buffers;
} Arenas;

typedef struct StepRun {
    char path[PATH_MAX];
    StFile file;
    int batch;                  // rows of PyTorch's batch
    Model *model;
    int rows;
    float *velocity;            // device
    Scalars *scalars;           // device: step_recipe
    Stats *stats;               // device
    void *inputs;               // device: `rows` images in the layout of model->input
    int32_t *labels;            // device
    Arenas old;                 // before the step
} StepRun;

// --- files ---------------------------------------------------------------------------------------

static inline StFile file_open(const char *path)
{
    StFile file;
    Error err;
    if (!st_open(&file, path, &err))
        FAIL_ERROR(&err);
    return file;
}

static inline const StTensor *file_find(const StFile *file, const char *kind, const char *name)
{
    char key[96];
    snprintf(key, sizeof key, "%s%s", kind, name);
    return st_find(file, key);
}

static inline const void *file_data(const StFile *file, const char *name)
{
    const StTensor *tensor = st_find(file, name);
    CHECK(tensor, "make the references again", "a reference file has no tensor %s", name);
    return tensor->data;
}

static inline int file_int(const StFile *file, const char *key)
{
    const char *value = st_metadata(file, key);
    CHECK(value, "make the references again", "a reference file has no %s", key);
    return atoi(value);
}

static inline const char *reference_path(const char *name)
{
    static char path[PATH_MAX];
    const char *source = getenv("SRC");
    snprintf(path, sizeof path, "%s/tests/reference/%s", source ? source : ".", name);
    return path;
}

static inline const char *beside(const char *path, const char *name)
{
    static char out[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    snprintf(out, sizeof out, "%.*s%s", folder, path, name);
    return out;
}

// --- the model's memory and the host's -----------------------------------------------------------

static inline float *arena_copy(const Model *model, const float *arena, size_t count)
{
    float *host = xmalloc(count * sizeof *host);
    copy_to_host(device_stream(model->device), host, arena, count * sizeof *host);
    stream_sync(device_stream(model->device));
    return host;
}

// The gradients, in host memory. Parameters without a gradient get 0.
static inline float *grads_copy(const Model *model)
{
    float *host = xcalloc(model->param_count, sizeof *host);
    copy_to_host(device_stream(model->device), host, model->grads, model->grad_count * sizeof *host);
    stream_sync(device_stream(model->device));
    return host;
}

static inline Arenas arenas_copy(const Model *model)
{
    return (Arenas){ arena_copy(model, model->params, model->param_count),
                     arena_copy(model, model->buffers, model->buffer_count) };
}

static inline void arenas_free(Arenas *arenas)
{
    free(arenas->params);
    free(arenas->buffers);
}

static inline void send_to_device(const Model *model, void *to, const void *host, size_t bytes)
{
    copy_to_device(device_stream(model->device), to, host, bytes);
    stream_sync(device_stream(model->device));
}

static inline void images_narrow(const Model *model, void *images, size_t count, Type type)
{
    Stream *compute = device_stream(model->device);
    float *wide = device_alloc(model->device, count * sizeof *wide);
    copy_on_device(compute, wide, images, count * sizeof *wide);
    values_narrow(model->ops, compute, type, count, wide, 1, images);
    stream_sync(compute);
    device_free(model->device, wide);
}

static inline void images_set(StepRun *run, const float *nchw, int rows)
{
    Shape s = run->model->input;
    const ModelConfig *config = &run->model->config;
    CHECK(s.h == config->height && s.w == config->width, NULL, "the model pads its images");
    s.n = rows;
    float *host = xcalloc(shape_count(s), sizeof(float));
    for (int n = 0; n < rows; n++)
        for (int c = 0; c < config->channels; c++)
            for (int p = 0; p < s.h * s.w; p++)
                host[((size_t)n * s.h * s.w + p) * s.c + c] = *nchw++;
    send_to_device(run->model, run->inputs, host, shape_count(s) * sizeof(float));
    if (s.type != TYPE_F32)
        images_narrow(run->model, run->inputs, shape_count(s), s.type);
    free(host);
}

static inline void labels_set(StepRun *run, const int64_t *labels, int rows)
{
    int32_t *host = xmalloc((size_t)rows * sizeof *host);
    for (int n = 0; n < rows; n++)
        host[n] = (int32_t)labels[n];
    send_to_device(run->model, run->labels, host, (size_t)rows * sizeof *host);
    free(host);
}

// --- generated states and batches: bit-identical to those of reference.py ------------------------

enum { STREAM_IMAGES = 1 << 20, STREAM_NOISE, STREAM_LABELS };

// `count` multiples of 2^-15 in [-1, 1): eight from each Philox call, of each word the low half first.
static inline void numbers_make(uint64_t seed, uint64_t stream, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i += 8) {
        Philox bits = philox(seed, stream, (uint64_t)i / 8);
        for (int j = 0; j < 8 && i + j < count; j++) {
            int half = bits.v[j / 2] >> 16 * (j % 2) & 0xffff;
            out[i + j] = (float)(half - 32768) * 0x1p-15f;
        }
    }
}

static inline bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

// The largest 2^-k such that weights uniform in +-2^-k have at most He's standard deviation: 4^k >= fan_in / 6.
static inline float weight_scale(const ModelTensor *tensor)
{
    int64_t fan_in = tensor->count / tensor->shape[0], four = 1;
    float scale = 1;
    for (; 6 * four < fan_in; four *= 4)
        scale /= 2;
    return scale;
}

// Turns numbers in [-1, 1) into values that suit the tensor. A batch norm's bias is about plus or minus two standard
// deviations, so that few sums are close to ReLU's kink, where rounding would decide the result.
static inline void numbers_shape(const ModelTensor *tensor, float *u)
{
    float scale = tensor->kind == MODEL_WEIGHT ? weight_scale(tensor) : 1;
    bool positive = ends_with(tensor->name, ".weight") || ends_with(tensor->name, "running_var");
    bool shift = ends_with(tensor->name, ".bias") && !ends_with(tensor->name, "fc.bias");
    for (int64_t i = 0; i < tensor->count; i++) {
        if (tensor->kind == MODEL_WEIGHT)
            u[i] *= scale;
        else if (positive)
            u[i] = 1 + u[i] / 4;
        else if (shift)
            u[i] = u[i] / 2 + (i % 2 ? 2.0f : -2.0f);
        else
            u[i] = u[i] / 4;
    }
}

static inline int tensor_rank(const Model *model, const ModelTensor *tensor)
{
    int rank = 0;
    for (int i = 0; i < model->tensor_count; i++)
        rank += strcmp(model->tensors[i].name, tensor->name) < 0;
    return rank;
}

static inline void state_make(StepRun *run, uint64_t seed)
{
    Model *model = run->model;
    float *params = xcalloc(model->param_count, sizeof(float));
    float *velocity = xcalloc(model->param_count, sizeof(float));
    float *buffers = xcalloc(model->buffer_count, sizeof(float));
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *tensor = &model->tensors[i];
        if (tensor->kind == MODEL_COUNTER)
            continue;
        uint64_t stream = 2 * (uint64_t)tensor_rank(model, tensor);
        float *u = xmalloc((size_t)tensor->count * sizeof(float));
        numbers_make(seed, stream, tensor->count, u);
        numbers_shape(tensor, u);
        model_import(model, tensor, tensor->kind == MODEL_BUFFER ? buffers : params, u);
        if (tensor->kind != MODEL_BUFFER) {
            float scale = tensor->kind == MODEL_WEIGHT ? weight_scale(tensor) : 1;
            numbers_make(seed, stream + 1, tensor->count, u);
            for (int64_t j = 0; j < tensor->count; j++)
                u[j] *= scale / 64;
            model_import(model, tensor, velocity, u);
        }
        free(u);
    }
    send_to_device(model, model->params, params, model->param_count * sizeof(float));
    send_to_device(model, run->velocity, velocity, model->param_count * sizeof(float));
    send_to_device(model, model->buffers, buffers, model->buffer_count * sizeof(float));
    free(buffers);
    free(velocity);
    free(params);
}

// Images of noisy 8x8 blocks, and labels; uses run->rows rows from `first` on.
static inline void batch_make(StepRun *run, uint64_t seed, int first)
{
    const ModelConfig *config = &run->model->config;
    int planes = run->batch * config->channels, h = config->height, w = config->width;
    float *blocks = xmalloc((size_t)planes * (h / 8) * (w / 8) * sizeof(float));
    float *images = xmalloc((size_t)planes * h * w * sizeof(float));
    int64_t *labels = xmalloc((size_t)run->batch * sizeof *labels);
    numbers_make(seed, STREAM_IMAGES, (int64_t)planes * (h / 8) * (w / 8), blocks);
    numbers_make(seed, STREAM_NOISE, (int64_t)planes * h * w, images);
    for (int p = 0; p < planes; p++)
        for (int y = 0; y < h; y++)
            for (int x = 0; x < w; x++) {
                float *pixel = &images[((size_t)p * h + y) * w + x];
                *pixel = blocks[((size_t)p * (h / 8) + y / 8) * (w / 8) + x / 8] + *pixel / 2;
            }
    for (int n = 0; n < run->batch; n++)
        labels[n] = philox(seed, STREAM_LABELS, (uint64_t)n).v[0] % (uint32_t)config->classes;
    images_set(run, images + (size_t)first * config->channels * h * w, run->rows);
    labels_set(run, labels + first, run->rows);
    free(labels);
    free(images);
    free(blocks);
}

// --- comparing -----------------------------------------------------------------------------------

typedef struct Judgement {
    double worst;               // of tensors that pass the float32 rule: distance / largest entry
    char worst_name[80];
    int tensors, by_float64;    // tensors compared; of these, left to the float64 rule
} Judgement;

// A tensor of finite numbers passes if its distance from PyTorch's float32 is at most 1e-3 of PyTorch's
// largest entry, or if its distance from float64 is at most twice that of PyTorch's float32 (`far`).
static inline void tensor_compare(const StFile *file, const char *kind, const char *name,
                                  const float *ours, int64_t count, double far, Judgement *verdict)
{
    const StTensor *pair = file_find(file, kind, name), *index = file_find(file, "index.", name);
    if (!EXPECT(pair && pair->ndim == 2 && pair->shape[0] == 2, "%s%s is missing", kind, name))
        return;
    int64_t kept = (int64_t)(pair->bytes / 8);
    const float *theirs = pair->data;
    if (!EXPECT(index ? index->shape[0] == kept : count == kept, "%s%s: %lld entries", kind, name,
                (long long)kept))
        return;
    double largest = 0, off32 = 0, off64 = 0;
    bool finite = true;
    for (int64_t i = 0; i < kept; i++) {
        double mine = ours[index ? ((const int32_t *)index->data)[i] : i];
        double f32 = theirs[i], f64 = f32 + theirs[kept + i];
        finite = finite && isfinite(mine);
        largest = fmax(largest, fabs(f32));
        off32 = fmax(off32, fabs(mine - f32));
        off64 = fmax(off64, fabs(mine - f64));
    }
    bool close = off32 <= 1e-3 * largest;
    EXPECT(finite && (close || off64 <= 2 * far),
           "%s%s: largest entry %.3g; off by %.3g from PyTorch, by %.3g from float64, and "
           "PyTorch from float64 by %.3g", kind, name, largest, off32, off64, far);
    verdict->tensors++;
    verdict->by_float64 += !close;
    if (close && off32 > verdict->worst * largest) {
        verdict->worst = off32 / largest;
        snprintf(verdict->worst_name, sizeof verdict->worst_name, "%s%s", kind, name);
    }
}

static inline void export_change(const Model *model, const ModelTensor *tensor,
                                 const float *old, const float *new, float *out)
{
    float *before = xmalloc((size_t)tensor->count * sizeof(float));
    model_export(model, tensor, old, before);
    model_export(model, tensor, new, out);
    for (int64_t i = 0; i < tensor->count; i++)
        out[i] -= before[i];
    free(before);
}

// A step's effect on one tensor: kind "grad.", "update." or "stat."; rank, column: its place in the file's `far`.
typedef struct Outcome {
    const StFile *file;
    const char *kind;
    int column;
    const ModelTensor *tensor;
    int rank;
    const float *ours;
} Outcome;

typedef void (*Judge)(void *arg, const Outcome *outcome);

static inline void step_outcomes(const StepRun *run, Judge judge, void *arg)
{
    const Model *model = run->model;
    Arenas new = arenas_copy(model);
    float *grads = grads_copy(model);
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        if (t->kind == MODEL_COUNTER)
            continue;
        float *ours = xmalloc((size_t)t->count * sizeof(float));
        Outcome outcome = { &run->file, "stat.", 2, t, tensor_rank(model, t), ours };
        if (t->kind == MODEL_BUFFER) {
            export_change(model, t, run->old.buffers, new.buffers, ours);
        } else {
            model_export(model, t, grads, ours);
            outcome.kind = "grad.";
            outcome.column = 0;
            judge(arg, &outcome);
            export_change(model, t, run->old.params, new.params, ours);
            outcome.kind = "update.";
            outcome.column = 1;
        }
        judge(arg, &outcome);
        free(ours);
    }
    free(grads);
    arenas_free(&new);
}

static inline void judge_float32(void *arg, const Outcome *o)
{
    const float *far = file_data(o->file, "far");
    tensor_compare(o->file, o->kind, o->tensor->name, o->ours, o->tensor->count,
                   far[3 * o->rank + o->column], arg);
}

// --- what tests call -----------------------------------------------------------------------------

static inline void step_open(StepRun *run, const char *path)
{
    *run = (StepRun){ .file = file_open(path) };
    snprintf(run->path, sizeof run->path, "%s", path);
    run->batch = file_int(&run->file, "rows");
}

static inline ModelConfig step_config(const StepRun *run, int rows)
{
    const StFile *file = &run->file;
    return (ModelConfig){ st_metadata(file, "arch"),  file_int(file, "channels"),
                          file_int(file, "height"),   file_int(file, "width"),
                          file_int(file, "classes"),  rows };
}

static inline void step_memory(StepRun *run, Model *model, int rows)
{
    Shape input = model->input;
    input.n = rows;
    run->model = model;
    run->rows = rows;
    run->velocity = device_alloc(model->device, model->param_count * sizeof(float));
    run->scalars = scalars_new(model->device);
    run->stats = device_alloc(model->device, sizeof(Stats));
    run->inputs = device_alloc(model->device, shape_count(input) * sizeof(float));
    run->labels = device_alloc(model->device, (size_t)rows * sizeof(int32_t));
    scalars_set(model->ops, run->scalars, step_recipe);
}

// Loads weights, buffers, momentum, and rows [first, first + rows) of the batch; or, if the file has only
// a seed, generates them.
static inline void step_begin(StepRun *run, Model *model, int first, int rows)
{
    const StFile *file = &run->file;
    const char *state_name = st_metadata(file, "state");
    step_memory(run, model, rows);
    if (state_name) {
        size_t image = (size_t)model->config.channels * model->config.height * model->config.width;
        TrainState state;
        Error err;
        Optim sgd = { .arenas = { { run->velocity, model->param_count, "ddp.momentum." } }, .arena_count = 1 };
        if (!checkpoint_load(beside(run->path, state_name), model, &sgd, &state, &err))
            FAIL_ERROR(&err);
        EXPECT_EQ_INT(state.global_step, file_int(file, "global_step"));
        images_set(run, (const float *)file_data(file, "images") + (size_t)first * image, rows);
        labels_set(run, (const int64_t *)file_data(file, "labels") + first, rows);
    } else {
        state_make(run, (uint64_t)file_int(file, "seed"));
        batch_make(run, (uint64_t)file_int(file, "seed"), first);
    }
    run->old = arenas_copy(model);
    model_cast_weights(model);
}

static inline double step_loss(const StepRun *run)
{
    Stream *compute = device_stream(run->model->device);
    Stats stats;
    copy_to_host(compute, &stats, run->stats, sizeof stats);
    stream_sync(compute);
    EXPECT_EQ_INT(stats.batch_count, run->rows);
    return stats.batch_loss_sum / (double)stats.batch_count;
}

// Takes the step and returns the mean loss of this process's rows. Passes `ready` and `arg` to model_backward. Calls
// wait(arg) before the update, unless `wait` is NULL.
static inline double step_take_with(StepRun *run, GradReady ready, void (*wait)(void *arg),
                                    void *arg)
{
    Model *model = run->model;
    model_forward(model, run->inputs, run->rows, true);
    loss_cross_entropy(model->ops, run->rows, model->config.classes, model->logits, run->labels,
                       run->scalars, run->stats, model->dlogits);
    model_backward(model, ready, arg);
    if (wait)
        wait(arg);
    sgd_update(model->ops, model->param_count, model->grad_count, model->params, model->grads,
               run->velocity, run->scalars);
    model_cast_weights(model);
    return step_loss(run);
}

static inline double step_take(StepRun *run) { return step_take_with(run, NULL, NULL, NULL); }

static inline void step_compare(StepRun *run, double loss)
{
    const double *wanted = file_data(&run->file, "loss");
    EXPECT_NEAR(loss, wanted[0], 1e-5 * fmax(1, fabs(wanted[0])));
    const StTensor *far = st_find(&run->file, "far");
    if (!EXPECT(far && far->shape[0] == run->model->tensor_count,
                "the model has %d tensors, PyTorch's does not", run->model->tensor_count))
        return;

    Judgement verdict = { 0 };
    step_outcomes(run, judge_float32, &verdict);
    const char *slash = strrchr(run->path, '/');
    printf("%s: loss %.6f (off by %.1e), %d tensors (%d by float64), worst %.1e %s\n",
           slash ? slash + 1 : run->path, loss, fabs(loss - wanted[0]), verdict.tensors,
           verdict.by_float64, verdict.worst, verdict.worst_name);
    fflush(stdout);
}

static inline void step_close(StepRun *run)
{
    Device *device = run->model->device;
    arenas_free(&run->old);
    device_free(device, run->labels);
    device_free(device, run->inputs);
    device_free(device, run->stats);
    device_free(device, run->scalars);
    device_free(device, run->velocity);
    st_close(&run->file);
}
