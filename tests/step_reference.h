// step_reference.h - compares one training step with PyTorch's.
//
// Two runs of a deep network diverge within a few steps, even two of PyTorch's with different numbers of threads. So
// whole runs cannot be compared. A single step can: from the same weights, momentum and batch, our step must give
// PyTorch's loss, gradients and updates. tools/reference makes the files of PyTorch's results; reference.py there
// documents them.
//
//   StepRun run;
//   step_open(&run, "resnet18-1.step.safetensors");
//   ModelConfig config = step_config(&run, rows);    // rows: the model's largest batch
//   Model *model = model_new(device, ops, &config);
//   step_begin(&run, model, first, rows);            // makes the state and these rows of the batch
//   double loss = step_take(&run, 1, NULL, NULL, NULL);
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

#include <math.h>

static const StepSettings step_recipe = { .lr = 0.01f, .momentum = 0.9f, .weight_decay = 1e-4f,
                                          .nesterov = 1 };

typedef struct StepRun {
    const char *name;           // of the file
    StFile file;
    int batch;                  // rows of PyTorch's batch
    Model *model;
    int rows, targets;          // this process's rows, and labels
    float *velocity;            // device
    Scalars *scalars;           // device
    Stats *stats;               // device
    void *inputs;               // device: `rows` samples
    int32_t *labels;            // device
    float *old_params, *old_buffers;    // before the step
} StepRun;

// --- files ---------------------------------------------------------------------------------------

static inline const char *reference_path(const char *name)
{
    static char path[4096];
    const char *source = getenv("SRC");
    snprintf(path, sizeof path, "%s/tests/reference/%s", source ? source : ".", name);
    return path;
}

static inline StFile file_open(const char *name)
{
    StFile file;
    Error err;
    if (!st_open(&file, reference_path(name), &err))
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

static inline void send_to_device(const Model *model, void *to, const void *host, size_t bytes)
{
    copy_to_device(device_stream(model->device), to, host, bytes);
    stream_sync(device_stream(model->device));
}

// images: (rows, channels, height, width)
static inline void images_set(StepRun *run, const float *images)
{
    Model *model = run->model;
    Shape s = model->input;
    int channels = model->config.channels, pixels = s.h * s.w;
    s.n = run->rows;
    float *host = xcalloc(shape_count(s), sizeof(float));
    for (int n = 0; n < s.n; n++)
        for (int c = 0; c < channels; c++)
            for (int p = 0; p < pixels; p++)
                host[(n * pixels + p) * s.c + c] = *images++;
    float *wide = device_alloc(model->device, shape_count(s) * sizeof(float));
    send_to_device(model, wide, host, shape_count(s) * sizeof(float));
    values_narrow(device_stream(model->device), s.type, shape_count(s), wide, 1, run->inputs);
    stream_sync(device_stream(model->device));
    device_free(model->device, wide);
    free(host);
}

// --- generated states and batches: bit-identical to those of reference.py ------------------------

enum { STREAM_IMAGES = 1 << 20, STREAM_NOISE, STREAM_LABELS };

// `count` multiples of 2^-15 in [-1, 1): eight from each Philox call, of each word the low half first.
static inline float *numbers_make(uint64_t seed, uint64_t stream, int64_t count)
{
    float *out = xmalloc((size_t)count * sizeof *out);
    for (int64_t i = 0; i < count; i += 8) {
        Philox bits = philox(seed, stream, (uint64_t)i / 8);
        for (int j = 0; j < 8 && i + j < count; j++) {
            int half = bits.v[j / 2] >> 16 * (j % 2) & 0xffff;
            out[i + j] = (float)(half - 32768) * 0x1p-15f;
        }
    }
    return out;
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
    for (const ModelTensor *t = model->tensors; t < model->tensors + model->tensor_count; t++) {
        if (t->kind == MODEL_COUNTER)
            continue;
        uint64_t stream = 2 * (uint64_t)tensor_rank(model, t);
        float *u = numbers_make(seed, stream, t->count), *v = numbers_make(seed, stream + 1, t->count);
        numbers_shape(t, u);
        model_import(model, t, t->kind == MODEL_BUFFER ? buffers : params, u);
        for (int64_t j = 0; j < t->count; j++)
            v[j] *= (t->kind == MODEL_WEIGHT ? weight_scale(t) : 1) / 64;
        if (t->kind != MODEL_BUFFER)
            model_import(model, t, velocity, v);
        free(u);
        free(v);
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
    float *blocks = numbers_make(seed, STREAM_IMAGES, (int64_t)planes * (h / 8) * (w / 8));
    float *images = numbers_make(seed, STREAM_NOISE, (int64_t)planes * h * w);
    int32_t *labels = xmalloc((size_t)run->rows * sizeof *labels);
    for (int i = 0; i < planes * h * w; i++) {
        int x = i % w, y = i / w % h, p = i / (w * h);
        images[i] = blocks[(p * (h / 8) + y / 8) * (w / 8) + x / 8] + images[i] / 2;
    }
    for (int n = 0; n < run->rows; n++)
        labels[n] = (int32_t)(philox(seed, STREAM_LABELS, (uint64_t)(first + n)).v[0] % (uint32_t)config->classes);
    images_set(run, images + (size_t)first * config->channels * h * w);
    send_to_device(run->model, run->labels, labels, (size_t)run->rows * sizeof *labels);
    free(labels);
    free(images);
    free(blocks);
}

// --- comparing -----------------------------------------------------------------------------------

// A step's effect on one tensor: kind "grad.", "update." or "stat.".
typedef struct Outcome {
    const StFile *file;
    const char *kind;
    int place;                  // in the tables of amp.safetensors
    const ModelTensor *tensor;
    const float *ours;
} Outcome;

typedef void (*Judge)(void *arg, const Outcome *outcome);

// Returns a tensor of the arena `new` in torch's layout. With `old`, returns the tensor's change since that arena.
static inline float *exported(const Model *model, const ModelTensor *tensor, const float *old, const float *new)
{
    float *before = xmalloc((size_t)tensor->count * sizeof(float));
    float *out = xmalloc((size_t)tensor->count * sizeof(float));
    if (old)
        model_export(model, tensor, old, before);
    model_export(model, tensor, new, out);
    for (int64_t i = 0; i < tensor->count && old; i++)
        out[i] -= before[i];
    free(before);
    return out;
}

static inline void step_outcomes(const StepRun *run, Judge judge, void *arg)
{
    static const char *const kinds[] = { "grad.", "update.", "stat." };
    const Model *model = run->model;
    float *params = arena_copy(model, model->params, model->param_count);
    float *buffers = arena_copy(model, model->buffers, model->buffer_count);
    float *grads = grads_copy(model);
    for (const ModelTensor *t = model->tensors; t < model->tensors + model->tensor_count; t++) {
        bool stat = t->kind == MODEL_BUFFER;
        for (int k = stat ? 2 : 0; k < (stat ? 3 : 2) && t->kind != MODEL_COUNTER; k++) {
            float *ours = k == 0   ? exported(model, t, NULL, grads)
                          : k == 1 ? exported(model, t, run->old_params, params)
                                   : exported(model, t, run->old_buffers, buffers);
            judge(arg, &(Outcome){ &run->file, kinds[k], 3 * tensor_rank(model, t) + k, t, ours });
            free(ours);
        }
    }
    free(grads);
    free(buffers);
    free(params);
}

typedef struct Judgement {
    double worst;               // distance / largest entry
    char worst_name[80];
    int tensors;
} Judgement;

// A tensor's distance from PyTorch's may be at most 1e-3 of PyTorch's largest entry. An update is the difference of two
// f32 numbers, of which the largest are 2 to 4: rounding them may add 2^-22.
static inline void judge_float32(void *arg, const Outcome *o)
{
    Judgement *verdict = arg;
    const StTensor *wanted = file_find(o->file, o->kind, o->tensor->name);
    const StTensor *index = file_find(o->file, "index.", o->tensor->name);
    if (!EXPECT(wanted && wanted->shape[0] == (index ? index->shape[0] : o->tensor->count), "%s%s", o->kind,
                o->tensor->name))
        return;
    double largest = 0, off = 0;
    bool finite = true;
    for (int64_t i = 0; i < wanted->shape[0]; i++) {
        double ours = o->ours[index ? ((const int32_t *)index->data)[i] : i];
        double theirs = ((const float *)wanted->data)[i];
        finite = finite && isfinite(ours);
        largest = fmax(largest, fabs(theirs));
        off = fmax(off, fabs(ours - theirs));
    }
    EXPECT(finite && off <= 1e-3 * largest + (o->kind[0] == 'u' ? 0x1p-22 : 0),
           "%s%s: largest entry %.3g, off by %.3g", o->kind, o->tensor->name, largest, off);
    verdict->tensors++;
    if (off > verdict->worst * largest) {
        verdict->worst = off / largest;
        snprintf(verdict->worst_name, sizeof verdict->worst_name, "%s%s", o->kind, o->tensor->name);
    }
}

// --- what tests call -----------------------------------------------------------------------------

static inline void step_open(StepRun *run, const char *name)
{
    *run = (StepRun){ .name = name, .file = file_open(name) };
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
    Device *device = model->device;
    Shape input = model->input;
    input.n = rows;
    run->model = model;
    run->rows = rows;
    run->targets = rows * model->per_row;
    run->velocity = device_alloc(device, model->param_count * sizeof(float));
    run->scalars = scalars_new(device);
    run->stats = device_alloc(device, sizeof(Stats));
    run->inputs = device_alloc(device, shape_bytes(input));
    run->labels = device_alloc(device, (size_t)run->targets * sizeof(int32_t));
}

// Makes weights, buffers, momentum, and rows [first, first + rows) of the batch.
static inline void step_begin(StepRun *run, Model *model, int first, int rows)
{
    uint64_t seed = (uint64_t)file_int(&run->file, "seed");
    step_memory(run, model, rows);
    state_make(run, seed);
    batch_make(run, seed, first);
    run->old_params = arena_copy(model, model->params, model->param_count);
    run->old_buffers = arena_copy(model, model->buffers, model->buffer_count);
    model_cast_weights(model);
}

// The mean loss of this process's rows.
static inline double step_loss(const StepRun *run)
{
    Stats stats;
    copy_to_host(device_stream(run->model->device), &stats, run->stats, sizeof stats);
    stream_sync(device_stream(run->model->device));
    return stats.batch_loss_sum / (double)stats.batch_count;
}

// Takes the step with this loss scale, and returns the mean loss of this process's rows. Passes `ready` and `arg` to
// model_backward. Calls wait(arg) before the update, unless `wait` is NULL.
static inline double step_take(StepRun *run, float loss_scale, GradReady ready, void (*wait)(void *arg), void *arg)
{
    Model *model = run->model;
    Scalars scalars = { .set = step_recipe, .scale.value = loss_scale };
    send_to_device(model, run->scalars, &scalars, sizeof scalars);
    model_forward(model, run->inputs, run->rows, true);
    loss_cross_entropy(model->ops, run->targets, model->config.classes, model->logits, run->labels,
                       run->scalars, run->stats, model->dlogits);
    model_backward(model, ready, arg);
    if (wait)
        wait(arg);
    gradients_unscale(model->ops, model->grad_count, model->grads, run->scalars);
    gradients_check(model->ops, model->grad_count, model->grads, run->scalars, run->stats);
    sgd_update(model->ops, model->param_count, model->grad_count, model->params, model->grads,
               run->velocity, run->scalars);
    model_cast_weights(model);
    return step_loss(run);
}

static inline void step_compare(StepRun *run, double loss)
{
    double wanted = *(const double *)file_data(&run->file, "loss");
    Judgement verdict = { 0 };
    EXPECT_NEAR(loss, wanted, 1e-5 * fmax(1, fabs(wanted)));
    step_outcomes(run, judge_float32, &verdict);
    printf("%s: loss %.6f (off by %.1e), %d tensors, worst %.1e %s\n", run->name, loss, fabs(loss - wanted),
           verdict.tensors, verdict.worst, verdict.worst_name);
    fflush(stdout);
}

static inline void step_close(StepRun *run)
{
    Device *device = run->model->device;
    free(run->old_params);
    free(run->old_buffers);
    device_free(device, run->labels);
    device_free(device, run->inputs);
    device_free(device, run->stats);
    device_free(device, run->scalars);
    device_free(device, run->velocity);
    st_close(&run->file);
}
