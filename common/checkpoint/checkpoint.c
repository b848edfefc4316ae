// checkpoint.c - a training run to and from a file. What stands in it:
//
//   layer1.0.conv1.weight, ...                 F32      parameters and running statistics
//   layer1.0.bn1.num_batches_tracked, ...      I64 []   of every normalisation, all equal
//   ddp.momentum.layer1.0.conv1.weight, ...    F32      of every parameter
//   ddp.epoch, ddp.running.loss_sum, ...       I64, F64 [1], see state_fields
//   __metadata__: format "pt", ddp.arch, ddp.dataset
#include "checkpoint.h"
#include "alive.h"
#include "base/replace_file.h"
#include "checkpoint/safetensors.h"
#include <float.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOMENTUM "ddp.momentum."

// The numbers of a TrainState, and what they may be. A file that is outside was not written by a
// healthy run.
typedef struct StateField {
    const char *name;
    bool real;              // F64, else I64
    size_t offset;          // in TrainState
    double least, most;
    bool younger;           // than some files: where it is not there, it is 0
} StateField;

#define STATE(member) offsetof(TrainState, member)
static const StateField state_fields[] = {
    { "ddp.seed", false, STATE(seed), 0, 1e15 },
    { "ddp.epoch", false, STATE(epoch), 0, 1e9 },
    { "ddp.step", false, STATE(step), 0, 1e9 },
    { "ddp.global_step", false, STATE(global_step), 0, 1e15 },
    { "ddp.batch_size", false, STATE(batch_size), 1, 1e9 },
    { "ddp.best_top1", true, STATE(best_top1), -1, 100 },
    { "ddp.loss_scale", true, STATE(loss_scale), FLT_MIN, FLT_MAX },
    { "ddp.clean_steps", false, STATE(clean_steps), 0, 1e9, .younger = true },
    { "ddp.skipped_steps", false, STATE(skipped_steps), 0, 1e9, .younger = true },
    { "ddp.running.loss_sum", true, STATE(running.loss_sum), 0, DBL_MAX },
    { "ddp.running.count", false, STATE(running.count), 0, 1e15 },
    { "ddp.running.correct1", false, STATE(running.correct1), 0, 1e15 },
    { "ddp.running.correct5", false, STATE(running.correct5), 0, 1e15 },
    { "ddp.running.not_finite", false, STATE(running.not_finite), 0, 1e15 },
    { "ddp.running.bad_gradients", false, STATE(running.bad_gradients), 0, 1e15, .younger = true },
    { "ddp.ranks", false, STATE(ranks), 0, 1e6, .younger = true },
};
enum { STATE_FIELDS = sizeof state_fields / sizeof *state_fields };

// Not >, <: so that a NaN is refused.
static bool check_field(const StateField *field, const TrainState *state, Error *err)
{
    const char *at = (const char *)state + field->offset;
    double value = field->real ? *(const double *)at : (double)*(const int64_t *)at;
    return (value >= field->least && value <= field->most)
           || error_set(err, "the file is damaged; take an earlier one",
                        "%s is %g, which no healthy run has", field->name, value);
}

static bool is_parameter(const ModelTensor *t)
{
    return t->kind == MODEL_WEIGHT || t->kind == MODEL_VECTOR;
}

// The name of a tensor's momentum, or of the tensor itself.
typedef char TensorName[80];

static const char *tensor_name(const char *prefix, const ModelTensor *t, TensorName out)
{
    snprintf(out, sizeof(TensorName), "%s%s", prefix, t->name);
    return out;
}

// The index of the first number that is infinite or not a number, or -1. Bytes may lie anywhere.
static int64_t find_not_finite(const void *bytes, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, (const char *)bytes + i * (int64_t)sizeof value, sizeof value);
        if (!isfinite(value))
            return i;
    }
    return -1;
}

static bool check_finite(const char *name, const void *bytes, int64_t count, const char *hint,
                         Error *err)
{
    alive_beat();
    int64_t i = find_not_finite(bytes, count);
    return i < 0 || error_set(err, hint, "%s: element %lld is not finite", name, (long long)i);
}

// --- saving: a snapshot --------------------------------------------------------------------------

void snapshot_reserve(Snapshot *s, const Model *model)
{
    s->params = host_alloc(model->param_count * sizeof *s->params);
    s->velocity = host_alloc(model->param_count * sizeof *s->velocity);
    if (model->buffer_count > 0)
        s->buffers = host_alloc(model->buffer_count * sizeof *s->buffers);
}

void snapshot_take(Snapshot *s, const Model *model, const float *velocity, const TrainState *state)
{
    Stream *stream = device_stream(model->device);
    if (!s->params)
        snapshot_reserve(s, model);
    copy_to_host(stream, s->params, model->params, model->param_count * sizeof *s->params);
    copy_to_host(stream, s->velocity, velocity, model->param_count * sizeof *s->velocity);
    if (model->buffer_count > 0)
        copy_to_host(stream, s->buffers, model->buffers, model->buffer_count * sizeof *s->buffers);
    stream_sync(stream);
    s->model = model;
    s->batches_seen = model->batches_seen;
    s->state = *state;
}

void snapshot_free(Snapshot *s)
{
    host_free(s->buffers);
    host_free(s->velocity);
    host_free(s->params);
    *s = (Snapshot){ 0 };
}

// --- saving: the file ----------------------------------------------------------------------------

// The tensors of a file in the making, and the memory that they point to.
typedef struct Contents {
    StTensor *tensors;
    TensorName *names;
    int count;
    float *blocks[3];       // parameters, buffers, momentum, in torch's layout
} Contents;

static StTensor *contents_add(Contents *c, const char *name, const char *dtype, int ndim,
                              const int64_t *shape, const void *data, size_t bytes)
{
    StTensor *t = &c->tensors[c->count];
    snprintf(c->names[c->count++], sizeof(TensorName), "%s", name);
    *t = (StTensor){ .name = c->names[c->count - 1], .ndim = ndim, .data = data, .bytes = bytes };
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    if (ndim > 0)
        memcpy(t->shape, shape, (size_t)ndim * sizeof *shape);
    return t;
}

static const char diverged[] =
    "the run has diverged: a smaller --lr or a --warmup may help; what was saved before is whole";

// Adds every tensor of an arena's copy in host memory: the buffers', or (momentum too) the
// parameters'. What is not finite is refused: the file before this one is worth more.
static bool add_arena(Contents *c, const Model *model, const float *host, ModelKind kind,
                      const char *prefix, float **block, Error *err)
{
    bool buffers = kind == MODEL_BUFFER;
    size_t torch_floats = 0, at = 0;
    for (int i = 0; i < model->tensor_count; i++)
        if (buffers ? model->tensors[i].kind == MODEL_BUFFER : is_parameter(&model->tensors[i]))
            torch_floats += (size_t)model->tensors[i].count;
    if (torch_floats == 0)
        return true;
    *block = xmalloc(torch_floats * sizeof **block);
    bool ok = true;
    for (int i = 0; i < model->tensor_count && ok; i++) {
        const ModelTensor *t = &model->tensors[i];
        if (!(buffers ? t->kind == MODEL_BUFFER : is_parameter(t)))
            continue;
        TensorName name;
        float *torch = *block + at;
        at += (size_t)t->count;
        alive_beat();
        model_export(model, t, host, torch);
        contents_add(c, tensor_name(prefix, t, name), "F32", t->ndim, t->shape, torch,
                     (size_t)t->count * sizeof *torch);
        ok = check_finite(name, torch, t->count, diverged, err);
    }
    return ok;
}

static bool add_state(Contents *c, const TrainState *state, Error *err)
{
    static const int64_t one = 1;
    for (int i = 0; i < STATE_FIELDS; i++) {
        const StateField *field = &state_fields[i];
        if (!check_field(field, state, err))
            return false;
        contents_add(c, field->name, field->real ? "F64" : "I64", 1, &one,
                     (const char *)state + field->offset, 8);
    }
    return true;
}

bool snapshot_write(const Snapshot *s, const char *path, const char *dataset, Error *err)
{
    const Model *model = s->model;
    const char *const metadata[][2] = {
        { "format", "pt" }, { "ddp.arch", model->config.arch }, { "ddp.dataset", dataset },
    };
    size_t most = 2 * (size_t)model->tensor_count + STATE_FIELDS;
    Contents c = { .tensors = xcalloc(most, sizeof(StTensor)),
                   .names = xcalloc(most, sizeof(TensorName)) };
    for (int i = 0; i < model->tensor_count; i++)
        if (model->tensors[i].kind == MODEL_COUNTER)
            contents_add(&c, model->tensors[i].name, "I64", 0, NULL, &s->batches_seen, 8);
    bool ok = add_arena(&c, model, s->params, MODEL_WEIGHT, "", &c.blocks[0], err)
              && add_arena(&c, model, s->buffers, MODEL_BUFFER, "", &c.blocks[1], err)
              && add_arena(&c, model, s->velocity, MODEL_WEIGHT, MOMENTUM, &c.blocks[2], err)
              && add_state(&c, &s->state, err);
    if (!ok) {
        Error inner = *err;
        error_set(err, inner.hint, "%.200s: not saved: %.280s", path, inner.text);
    }
    ok = ok && st_write(path, c.tensors, c.count, metadata, 3, err);
    for (int i = 0; i < 3; i++)
        free(c.blocks[i]);
    free(c.names);
    free(c.tensors);
    return ok;
}

bool checkpoint_save(const char *path, const Model *model, const float *velocity,
                     const TrainState *state, const char *dataset, Error *err)
{
    Snapshot s = { 0 };
    snapshot_take(&s, model, velocity, state);
    bool ok = snapshot_write(&s, path, dataset, err);
    snapshot_free(&s);
    return ok;
}

// --- loading: what a file that does not fit may be -----------------------------------------------

// The network that a file holds, by its own word or by what is in it; NULL when it is none of ours.
static const char *arch_of(const StFile *file)
{
    const char *arch = st_metadata(file, "ddp.arch");
    if (arch)
        return arch;
    if (st_find(file, "layer1.0.conv3.weight"))
        return st_find(file, "layer3.6.conv1.weight") ? NULL : "resnet50";
    if (st_find(file, "layer1.0.conv2.weight"))
        return st_find(file, "layer1.2.conv1.weight") ? NULL : "resnet18";
    if (st_find(file, "fc3.weight"))
        return "lenet";
    return st_find(file, "bn2.weight") ? "convnet" : NULL;
}

// One dimension of a tensor, or 0.
static int64_t dimension_of(const StFile *file, const char *name, int dimension)
{
    const StTensor *t = st_find(file, name);
    return t && t->ndim > dimension ? t->shape[dimension] : 0;
}

// What to say to somebody whose model is not the file's.
static bool misfit(const StFile *file, const Model *model, Error *err)
{
    const ModelConfig *c = &model->config;
    const char *arch = arch_of(file), *dataset = st_metadata(file, "ddp.dataset");
    int64_t classes = dimension_of(file, "fc.weight", 0);
    int64_t channels = dimension_of(file, "conv1.weight", 1);
    char from[64] = "";
    if (classes == 0)
        classes = dimension_of(file, "fc3.weight", 0);
    if (dataset)
        snprintf(from, sizeof from, " trained on %.40s", dataset);
    if (arch && strcmp(arch, c->arch) != 0)
        snprintf(err->hint, sizeof err->hint,
                 "this file holds a %.40s with %lld classes%s; use --arch %.40s",
                 arch, (long long)classes, from, arch);
    else if (arch && classes && classes != c->classes)
        snprintf(err->hint, sizeof err->hint,
                 "this file holds a %.40s with %lld classes%s, but the data set has %d: choose the "
                 "one it was trained on with --data",
                 arch, (long long)classes, from, c->classes);
    else if (arch && channels && channels != c->channels)
        snprintf(
            err->hint, sizeof err->hint,
            "this file holds a %.40s for images with %lld channels%s, but these have %d: choose "
            "the ones it was trained on with --data",
            arch, (long long)channels, from, c->channels);
    else
        snprintf(err->hint, sizeof err->hint, "this file was not made for a %s", c->arch);
    return false;
}

// --- loading: checks, before anything changes ----------------------------------------------------

// "(64, 3, 7, 7)"
typedef char ShapeText[ST_MAX_DIMS * 22 + 4];
static const char *shape_text(int ndim, const int64_t *shape, ShapeText out)
{
    size_t n = (size_t)snprintf(out, sizeof(ShapeText), "(");
    for (int i = 0; i < ndim; i++)
        n += (size_t)snprintf(out + n, sizeof(ShapeText) - n, "%s%lld", i ? ", " : "",
                              (long long)shape[i]);
    snprintf(out + n, sizeof(ShapeText) - n, ")");
    return out;
}

// A tensor of this name with the type and shape of `like`. Fills err's text, not its hint.
static bool check_shape(const StFile *file, const char *name, const ModelTensor *like, Error *err)
{
    ShapeText there, wanted;
    const char *dtype = like->kind == MODEL_COUNTER ? "I64" : "F32";
    const StTensor *t = st_find(file, name);
    if (t == NULL)
        return error_set(err, "", "tensor %s is not there", name);
    bool same = t->ndim == like->ndim && strcmp(t->dtype, dtype) == 0;
    for (int i = 0; i < like->ndim && same; i++)
        same = t->shape[i] == like->shape[i];
    return same || error_set(err, "", "tensor %s is %s %s, and must be %s %s", name, t->dtype,
                             shape_text(t->ndim, t->shape, there), dtype,
                             shape_text(like->ndim, like->shape, wanted));
}

static int64_t read_int64(const StTensor *t)
{
    int64_t value;
    memcpy(&value, t->data, sizeof value);
    return value;
}

// Counters agree with each other. Weights that are older than counters have none: then they are 0,
// as in PyTorch, unless a run is to be resumed.
static bool check_counter(const StFile *file, const Model *model, const ModelTensor *like,
                          bool resuming, int64_t *counter, Error *err)
{
    const StTensor *t = st_find(file, like->name);
    if (t == NULL && !resuming)
        return true;
    if (!check_shape(file, like->name, like, err))
        return misfit(file, model, err);
    int64_t value = read_int64(t);
    if (value < 0 || (*counter >= 0 && value != *counter))
        return error_set(err, "the file was not written by a healthy run",
                         "tensor %s is %lld, but others are %lld", like->name, (long long)value,
                         (long long)*counter);
    *counter = value;
    return true;
}

// A tensor that the model does not know is the sign of a larger one: a resnet34 has all that a
// resnet18 has.
static bool check_no_others(const StFile *file, const Model *model, Error *err)
{
    for (int i = 0; i < file->count; i++) {
        const char *name = file->tensors[i].name;
        bool known = strncmp(name, "ddp.", 4) == 0;
        for (int j = 0; j < model->tensor_count && !known; j++)
            known = strcmp(model->tensors[j].name, name) == 0;
        if (!known) {
            error_set(err, "", "tensor %.100s has no place in a %s", name, model->config.arch);
            return misfit(file, model, err);
        }
    }
    return true;
}

static bool check_model(const StFile *file, const Model *model, bool resuming, int64_t *counter,
                        Error *err)
{
    *counter = -1;
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        if (t->kind == MODEL_COUNTER) {
            if (!check_counter(file, model, t, resuming, counter, err))
                return false;
            continue;
        }
        if (!check_shape(file, t->name, t, err))
            return misfit(file, model, err);
        if (!check_finite(t->name, st_find(file, t->name)->data, t->count,
                          "the run had diverged when this was saved; take an earlier file", err))
            return false;
    }
    return check_no_others(file, model, err);
}

static const char weights_only[] =
    "the file holds no whole training state; start a new run from its weights with --init";

static bool check_momentum(const StFile *file, const Model *model, Error *err)
{
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        TensorName name;
        if (!is_parameter(t))
            continue;
        if (!check_shape(file, tensor_name(MOMENTUM, t, name), t, err)) {
            snprintf(err->hint, sizeof err->hint, "%s", weights_only);
            return false;
        }
        if (!check_finite(name, st_find(file, name)->data, t->count, weights_only, err))
            return false;
    }
    return true;
}

// How many of a TrainState's numbers are in a file, by these names or others.
static int count_numbers(const StFile *file)
{
    int count = 0;
    for (int i = 0; i < file->count; i++) {
        const char *name = file->tensors[i].name;
        count += strncmp(name, "ddp.", 4) == 0 && strncmp(name, MOMENTUM, strlen(MOMENTUM)) != 0;
    }
    return count;
}

// A number may be missing because the file is older than it; not because its name is damaged.
static bool check_missing(const StFile *file, int missing, Error *err)
{
    int count = count_numbers(file), wanted = STATE_FIELDS - missing;
    return missing == 0 || count == wanted
           || error_set(err, weights_only, "%d tensors are called ddp.*, but only %d of them are "
                        "known", count, wanted);
}

static bool read_state(const StFile *file, TrainState *state, Error *err)
{
    int missing = 0;
    *state = (TrainState){ 0 };
    for (int i = 0; i < STATE_FIELDS; i++) {
        const StateField *field = &state_fields[i];
        const char *dtype = field->real ? "F64" : "I64";
        const StTensor *t = st_find(file, field->name);
        if (t == NULL && field->younger) {
            missing++;
            continue;
        }
        if (t == NULL)
            return error_set(err, weights_only, "tensor %s is not there", field->name);
        if (strcmp(t->dtype, dtype) != 0 || t->bytes != 8)
            return error_set(err, weights_only, "tensor %s is %zu bytes of %s, and must be one %s",
                             field->name, t->bytes, t->dtype, dtype);
        memcpy((char *)state + field->offset, t->data, 8);
        if (!check_field(field, state, err))
            return false;
    }
    if (!check_missing(file, missing, err))
        return false;
    const Stats *s = &state->running;
    return (s->correct1 <= s->count && s->correct5 <= s->count)
           || error_set(err, "the file is damaged; take an earlier one",
                        "ddp.running counts more hits than images");
}

// --- loading: the change -------------------------------------------------------------------------

// All tensors of one arena from the file to the device. Bytes between tensors become zeros.
static void load_arena(const StFile *file, const Model *model, ModelKind kind, const char *prefix,
                       float *arena)
{
    bool buffers = kind == MODEL_BUFFER;
    size_t floats = buffers ? model->buffer_count : model->param_count;
    if (floats == 0)
        return;
    float *host = xcalloc(floats, sizeof *host);
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        TensorName name;
        if (!(buffers ? t->kind == MODEL_BUFFER : is_parameter(t)))
            continue;
        const StTensor *from = st_find(file, tensor_name(prefix, t, name));
        alive_beat();
        float *torch = xmalloc(from->bytes); // a file's tensors need not be aligned
        memcpy(torch, from->data, from->bytes);
        model_import(model, t, host, torch);
        free(torch);
    }
    copy_to_device(device_stream(model->device), arena, host, floats * sizeof *host);
    stream_sync(device_stream(model->device));
    free(host);
}

bool checkpoint_load(const char *path, Model *model, float *velocity, TrainState *state, Error *err)
{
    StFile file;
    TrainState read;
    int64_t counter;
    if (!st_open(&file, path, err))
        return false;
    bool ok = check_model(&file, model, state != NULL, &counter, err)
              && (!velocity || check_momentum(&file, model, err))
              && (!state || read_state(&file, &read, err));
    if (ok) {
        load_arena(&file, model, MODEL_WEIGHT, "", model->params);
        load_arena(&file, model, MODEL_BUFFER, "", model->buffers);
        model->batches_seen = counter < 0 ? 0 : counter;
        if (velocity)
            load_arena(&file, model, MODEL_WEIGHT, MOMENTUM, velocity);
        if (state)
            *state = read;
    } else {
        Error inner = *err;
        error_set(err, inner.hint, "%.200s: %.300s", path, inner.text);
    }
    st_close(&file);
    return ok;
}

bool checkpoint_probe(const char *path, Error *err)
{
    char best[4096];
    if (snprintf(best, sizeof best, "%s.best", path) >= (int)sizeof best)
        return error_set(err, "", "%.80s...: the path is too long", path);
    return replace_file_probe(path, err) && replace_file_probe(best, err);
}

// --- going on ------------------------------------------------------------------------------------

// What another number of ranks changes. left_out: the rest of the epoch that was under way.
static void say_ranks(const CheckpointConfig *config, const char *path, const TrainState *saved,
                      const TrainState *run, bool left_out)
{
    char before[32] = "unknown", rest[96] = "", hint[160], keep[64] = "", rate[80] = "";
    bool same = saved->batch_size == run->batch_size;
    int ranks = config->ranks;
    if (saved->ranks > 0)
        snprintf(before, sizeof before, "%lld", (long long)saved->ranks);
    if (left_out)
        snprintf(rest, sizeof rest,
                 "; the rest of epoch %lld is left out, it cannot be shared out anew",
                 (long long)saved->epoch + 1);
    if (saved->batch_size % ranks == 0)
        snprintf(keep, sizeof keep, "; -b %lld would keep the global batch",
                 (long long)saved->batch_size / ranks);
    snprintf(hint, sizeof hint,
             "--lr-scale linear lets the learning rate follow the number of ranks%s", keep);
    if (config->lr_follows)
        snprintf(rate, sizeof rate, "; the learning rate is %d times --lr now (--lr-scale)", ranks);
    else
        snprintf(rate, sizeof rate, "%s", !same ? "; the learning rate stays that of --lr, per step"
                                          : left_out ? "" : ": goes on as before");
    WARN(same || config->lr_follows ? "" : hint,
         "%.300s: ranks %s -> %d, global batch %lld -> %lld%s%s", path, before, ranks,
         (long long)saved->batch_size, (long long)run->batch_size, rest, rate);
}

static void leave_epoch(TrainState *saved)
{
    saved->epoch++;
    saved->step = 0;
    saved->running = (Stats){ 0 };
}

// Was it saved by another number of ranks, as far as is known? Files that are older than that
// number give themselves away by their batch only.
static bool other_ranks(int ranks, const TrainState *saved, const TrainState *run)
{
    if (ranks == 0)
        return false;
    return saved->ranks > 0 ? saved->ranks != ranks : saved->batch_size != run->batch_size;
}

// With as many images in a step as before, the rest of an epoch is the same, whoever trains it.
bool checkpoint_continues(const CheckpointConfig *config, const char *path, TrainState *saved,
                          const TrainState *run, int64_t steps_per_epoch, Error *err)
{
    bool same_batch = saved->batch_size == run->batch_size;
    bool fits = saved->step == 0 || (same_batch && saved->step < steps_per_epoch);
    if (saved->seed != run->seed)
        return error_set(err, "use the same --seed, or start anew from the weights with --init",
                         "%.300s was trained with --seed %lld, not %lld", path,
                         (long long)saved->seed, (long long)run->seed);
    if (other_ranks(config->ranks, saved, run)) {
        say_ranks(config, path, saved, run, !fits);
        if (!fits)
            leave_epoch(saved);
        return true;
    }
    if (saved->step > 0 && !same_batch)
        return error_set(err, "use the same --batch-size until the epoch is over",
                         "%.300s stopped in the middle of an epoch of batches of %lld, not %lld",
                         path, (long long)saved->batch_size, (long long)run->batch_size);
    return fits || error_set(err, "use the same --data and --train-samples until the epoch is over",
                             "%.300s stopped after step %lld of an epoch, which now has %lld", path,
                             (long long)saved->step, (long long)steps_per_epoch);
}

// --- options -------------------------------------------------------------------------------------

void checkpoint_options(Args *args, CheckpointConfig *c)
{
    args_add(args, ARGS_ROWS(
        { "save", 0, ARG_STRING, &c->save, "FILE", "checkpoint each epoch; the best in FILE.best",
          .own = true },
        { "resume", 0, ARG_STRING, &c->resume, "FILE",
          "go on from it; auto: from --save's, if it is there", .own = true },
        { "init", 0, ARG_STRING, &c->init, "FILE", "weights to begin with (torchvision's too)",
          .own = true },
        { "evaluate", 'e', ARG_FLAG, &c->evaluate, NULL,
          "only evaluate what --resume or --init gives" }));
}

static const char *resumed_file(const CheckpointConfig *c)
{
    if (!c->resume || strcmp(c->resume, "auto") != 0)
        return c->resume;
    return access(c->save, F_OK) != 0 && errno == ENOENT ? NULL : c->save;
}

// optim.c's --lr-scale linear, where there is one.
static bool lr_follows(const Args *args)
{
    for (int i = 0; i < args->count; i++)
        if (strcmp(args->rows[i].name, "lr-scale") == 0)
            return strcmp(*(const char *const *)args->rows[i].value, "linear") == 0;
    return false;
}

void checkpoint_check_options(const Args *args, CheckpointConfig *c)
{
    if (c->evaluate && !c->resume && !c->init)
        args_reject(args, "evaluate", "needs --resume FILE or --init FILE: whose weights?");
    if (c->resume && c->init)
        args_reject(args, "resume", "does not go with --init: one of them gives the weights");
    if (c->resume && strcmp(c->resume, "auto") == 0 && !c->save)
        args_reject(args, "resume", "auto needs --save FILE: that is the file to go on from");
    if (args_given(args, "save-every") && !c->save)     // saver.c's, where there is one
        args_reject(args, "save-every", "needs --save FILE: where to?");
    c->lr_follows = lr_follows(args);
    c->from = resumed_file(c);
}

const char *checkpoint_to_resume(const CheckpointConfig *c) { return c->from; }
