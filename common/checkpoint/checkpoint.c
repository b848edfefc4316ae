// checkpoint.c - saves and loads a training run. The file holds
//
//   layer1.0.conv1.weight, ...                 F32      parameters and running statistics
//   layer1.0.bn1.num_batches_tracked, ...      I64 []   of every normalisation
//   ddp.momentum.layer1.0.conv1.weight, ...    F32      of every parameter: the optimizer's arenas
//   ddp.epoch, ddp.running.loss_sum, ...       I64, F64 [1], see state_fields
//   __metadata__: format "pt", ddp.arch, ddp.dataset
#include "checkpoint.h"
#include "alive.h"
#include "base/replace_file.h"
#include "checkpoint/safetensors.h"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The numbers of a TrainState, and their valid ranges.
typedef struct StateField {
    const char *name;
    bool real;              // F64, else I64
    size_t offset;          // in TrainState
    double least, most;
    bool younger;           // not in old files; there it is 0
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

// Written so that a NaN is refused.
static bool check_field(const StateField *field, const TrainState *state, Error *err)
{
    const char *at = (const char *)state + field->offset;
    double value = field->real ? *(const double *)at : (double)*(const int64_t *)at;
    return (value >= field->least && value <= field->most)
           || error_set(err, "the file is damaged; take an earlier one",
                        "%s is %g, which is out of range", field->name, value);
}

static bool check_finite(const char *name, const float *values, int64_t count, const char *hint,
                         Error *err)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return error_set(err, hint, "%s: element %lld is not finite", name, (long long)i);
    return true;
}

// --- the contents --------------------------------------------------------------------------------

// An arena of the model or its optimizer, and the prefix of its tensors' names.
typedef struct Arena {
    char prefix[32];        // "", "ddp.momentum."
    bool buffers;           // holds the model's buffers; else a number for each parameter
    float *values;          // device
    size_t count;
} Arena;

// optim may be NULL.
static int list_arenas(const Model *model, const Optim *optim, Arena arenas[SNAPSHOT_ARENAS])
{
    int count = 0;
    arenas[count++] = (Arena){ "", false, model->params, model->param_count };
    if (model->buffer_count > 0)
        arenas[count++] = (Arena){ "", true, model->buffers, model->buffer_count };
    for (int i = 0; optim && i < optim->arena_count; i++) {
        Arena *a = &arenas[count++];
        *a = (Arena){ "", false, optim->arenas[i].values, model->param_count };
        snprintf(a->prefix, sizeof a->prefix, "ddp.%s.", optim->arenas[i].name);
    }
    return count;
}

static bool holds(const Arena *arena, const ModelTensor *t)
{
    return arena->buffers ? t->kind == MODEL_BUFFER
                          : t->kind == MODEL_WEIGHT || t->kind == MODEL_VECTOR;
}

typedef char TensorName[96];

static const char *tensor_name(const Arena *arena, const ModelTensor *t, TensorName out)
{
    snprintf(out, sizeof(TensorName), "%.31s%.60s", arena->prefix, t->name);
    return out;
}

void snapshot_take(Snapshot *s, const Model *model, const Optim *optim, const TrainState *state)
{
    Stream *stream = device_stream(model->device);
    Arena arenas[SNAPSHOT_ARENAS];
    int count = list_arenas(model, optim, arenas);
    for (int i = 0; i < count; i++) {
        size_t bytes = arenas[i].count * sizeof(float);
        if (!s->arenas[i])
            s->arenas[i] = host_alloc(bytes);
        copy_to_host(stream, s->arenas[i], arenas[i].values, bytes);
    }
    stream_sync(stream);
    s->model = model;
    s->optim = optim;
    s->batches_seen = model->batches_seen;
    s->state = *state;
}

void snapshot_free(Snapshot *s)
{
    for (int i = 0; i < SNAPSHOT_ARENAS; i++)
        host_free(s->arenas[i]);
    *s = (Snapshot){ 0 };
}

// --- saving --------------------------------------------------------------------------------------

// The tensors of a file to be written, and the memory that they point to.
typedef struct Contents {
    StTensor *tensors;
    TensorName *names;
    int count;
    float *floats;          // all tensors, in torch's layout
    size_t used;            // of these
} Contents;

// The caller keeps the name alive.
static void add_tensor(Contents *c, const char *name, const char *dtype, int ndim,
                       const int64_t *shape, const void *data, size_t bytes)
{
    StTensor *t = &c->tensors[c->count++];
    *t = (StTensor){ .name = name, .dtype = dtype, .ndim = ndim, .data = data, .bytes = bytes };
    if (ndim > 0)
        memcpy(t->shape, shape, (size_t)ndim * sizeof *shape);
}

// Refuses numbers that are not finite, to keep the previous file.
static bool add_arena(Contents *c, const Model *model, const Arena *arena, const float *host,
                      Error *err)
{
    static const char diverged[] =
        "the run has diverged: try a smaller --lr or a --warmup; the previous checkpoint is kept";
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        if (!holds(arena, t))
            continue;
        const char *name = tensor_name(arena, t, c->names[c->count]);
        float *torch = c->floats + c->used;
        c->used += (size_t)t->count;
        alive_beat();
        model_export(model, t, host, torch);
        if (!check_finite(name, torch, t->count, diverged, err))
            return false;
        add_tensor(c, name, "F32", t->ndim, t->shape, torch, (size_t)t->count * sizeof *torch);
    }
    return true;
}

static bool add_state(Contents *c, const TrainState *state, Error *err)
{
    static const int64_t one = 1;
    for (int i = 0; i < STATE_FIELDS; i++) {
        const StateField *field = &state_fields[i];
        if (!check_field(field, state, err))
            return false;
        add_tensor(c, field->name, field->real ? "F64" : "I64", 1, &one,
                   (const char *)state + field->offset, 8);
    }
    return true;
}

static bool add_everything(Contents *c, const Snapshot *s, Error *err)
{
    const Model *model = s->model;
    Arena arenas[SNAPSHOT_ARENAS];
    int count = list_arenas(model, s->optim, arenas);
    size_t floats = 0, tensors = (size_t)((1 + count) * model->tensor_count + STATE_FIELDS);
    for (int i = 0; i < count; i++)
        floats += arenas[i].count;
    *c = (Contents){ .tensors = xcalloc(tensors, sizeof *c->tensors),
                     .names = xcalloc(tensors, sizeof *c->names),
                     .floats = xmalloc(floats * sizeof *c->floats) };
    for (int i = 0; i < model->tensor_count; i++)
        if (model->tensors[i].kind == MODEL_COUNTER)
            add_tensor(c, model->tensors[i].name, "I64", 0, NULL, &s->batches_seen, 8);
    for (int i = 0; i < count; i++)
        if (!add_arena(c, model, &arenas[i], s->arenas[i], err))
            return false;
    return add_state(c, &s->state, err);
}

bool snapshot_write(const Snapshot *s, const char *path, const char *dataset, Error *err)
{
    const char *const metadata[][2] = {
        { "format", "pt" }, { "ddp.arch", s->model->config.arch }, { "ddp.dataset", dataset },
    };
    Contents c;
    Error inner;
    bool ok = add_everything(&c, s, &inner)
              ? st_write(path, c.tensors, c.count, metadata, 3, err)
              : error_set(err, inner.hint, "%.200s: not saved: %.280s", path, inner.text);
    free(c.floats);
    free(c.names);
    free(c.tensors);
    return ok;
}

bool checkpoint_save(const char *path, const Model *model, const Optim *optim,
                     const TrainState *state, const char *dataset, Error *err)
{
    Snapshot s = { 0 };
    snapshot_take(&s, model, optim, state);
    bool ok = snapshot_write(&s, path, dataset, err);
    snapshot_free(&s);
    return ok;
}

// --- loading -------------------------------------------------------------------------------------

static const char weights_only[] =
    "the file's training state is incomplete; start a new run from its weights with --init";

// The hint if a file does not fit the model.
static bool misfit(const StFile *file, const Model *model, Error *err)
{
    const char *arch = st_metadata(file, "ddp.arch"), *dataset = st_metadata(file, "ddp.dataset");
    if (!arch || !dataset)
        snprintf(err->hint, sizeof err->hint, "the file was not made for a %s with %d classes",
                 model->config.arch, model->config.classes);
    else
        snprintf(err->hint, sizeof err->hint,
                 "the file holds a %.40s trained on %.40s; use that --arch and --data", arch,
                 dataset);
    return false;
}

// "F32 (64, 3, 7, 7)"
typedef char TypeText[ST_MAX_DIMS * 22 + 16];
static const char *type_text(const char *dtype, int ndim, const int64_t *shape, TypeText out)
{
    size_t n = (size_t)snprintf(out, sizeof(TypeText), "%.10s (", dtype);
    for (int i = 0; i < ndim; i++)
        n += (size_t)snprintf(out + n, sizeof(TypeText) - n, "%s%lld", i ? ", " : "",
                              (long long)shape[i]);
    snprintf(out + n, sizeof(TypeText) - n, ")");
    return out;
}

// The tensor of this name, type and shape. NULL: it is missing or different.
static const StTensor *find(const StFile *file, const char *name, const char *dtype, int ndim,
                            const int64_t *shape, Error *err)
{
    TypeText there, wanted;
    const StTensor *t = st_find(file, name);
    if (t == NULL) {
        error_set(err, weights_only, "tensor %s is missing", name);
        return NULL;
    }
    bool same = t->ndim == ndim && strcmp(t->dtype, dtype) == 0;
    for (int i = 0; i < ndim && same; i++)
        same = t->shape[i] == shape[i];
    if (same)
        return t;
    error_set(err, weights_only, "tensor %s is %s, but must be %s", name,
              type_text(t->dtype, t->ndim, t->shape, there), type_text(dtype, ndim, shape, wanted));
    return NULL;
}

// From the file to host memory, which has the arena's layout and is zero before.
static bool read_arena(const StFile *file, const Model *model, const Arena *arena, float *host,
                       Error *err)
{
    for (int i = 0; i < model->tensor_count; i++) {
        const ModelTensor *t = &model->tensors[i];
        TensorName name;
        if (!holds(arena, t))
            continue;
        const StTensor *from =
            find(file, tensor_name(arena, t, name), "F32", t->ndim, t->shape, err);
        if (!from)
            return arena->prefix[0] ? false : misfit(file, model, err);
        alive_beat();
        float *torch = xmalloc(from->bytes);    // a file's tensors need not be aligned
        memcpy(torch, from->data, from->bytes);
        bool ok = check_finite(name, torch, t->count, "the run had diverged when this was saved; "
                               "take an earlier file", err);
        if (ok)
            model_import(model, t, host, torch);
        free(torch);
        if (!ok)
            return false;
    }
    return true;
}

// A tensor that the model does not have means that the file's model is larger: a resnet34 has all
// tensors of a resnet18.
static bool check_no_others(const StFile *file, const Model *model, Error *err)
{
    for (int i = 0; i < file->count; i++) {
        const char *name = file->tensors[i].name;
        bool known = strncmp(name, "ddp.", 4) == 0;
        for (int j = 0; j < model->tensor_count && !known; j++)
            known = strcmp(model->tensors[j].name, name) == 0;
        if (!known) {
            error_set(err, "", "tensor %.100s is not part of a %s", name, model->config.arch);
            return misfit(file, model, err);
        }
    }
    return true;
}

// The batches that the normalisations have seen, equal in all of them. 0 in files of an old PyTorch
// that did not count.
static bool read_batches_seen(const StFile *file, const Model *model, int64_t *seen, Error *err)
{
    *seen = 0;
    for (int i = 0; i < model->tensor_count; i++) {
        const char *name = model->tensors[i].name;
        if (model->tensors[i].kind != MODEL_COUNTER || !st_find(file, name))
            continue;
        const StTensor *t = find(file, name, "I64", 0, NULL, err);
        if (!t)
            return misfit(file, model, err);
        memcpy(seen, t->data, sizeof *seen);
    }
    return true;
}

static bool read_state(const StFile *file, TrainState *state, Error *err)
{
    static const int64_t one = 1;
    *state = (TrainState){ 0 };
    for (int i = 0; i < STATE_FIELDS; i++) {
        const StateField *field = &state_fields[i];
        if (field->younger && !st_find(file, field->name))
            continue;
        const StTensor *t = find(file, field->name, field->real ? "F64" : "I64", 1, &one, err);
        if (!t)
            return false;
        memcpy((char *)state + field->offset, t->data, 8);
        if (!check_field(field, state, err))
            return false;
    }
    return true;
}

// Reads and checks a file's contents. If state is not NULL, the file must have a training state.
static bool snapshot_read(Snapshot *s, const StFile *file, const Model *model, const Optim *optim,
                          bool state, Error *err)
{
    Arena arenas[SNAPSHOT_ARENAS];
    int count = list_arenas(model, optim, arenas);
    if (!read_batches_seen(file, model, &s->batches_seen, err)
        || (state && !read_state(file, &s->state, err)))
        return false;
    for (int i = 0; i < count; i++) {
        s->arenas[i] = host_alloc(arenas[i].count * sizeof(float));
        memset(s->arenas[i], 0, arenas[i].count * sizeof(float));
        if (!read_arena(file, model, &arenas[i], s->arenas[i], err))
            return false;
    }
    return check_no_others(file, model, err);
}

// The opposite of snapshot_take.
static void snapshot_restore(const Snapshot *s, Model *model, const Optim *optim, TrainState *state)
{
    Stream *stream = device_stream(model->device);
    Arena arenas[SNAPSHOT_ARENAS];
    int count = list_arenas(model, optim, arenas);
    for (int i = 0; i < count; i++)
        copy_to_device(stream, arenas[i].values, s->arenas[i], arenas[i].count * sizeof(float));
    stream_sync(stream);
    model->batches_seen = s->batches_seen;
    if (state)
        *state = s->state;
}

bool checkpoint_load(const char *path, Model *model, Optim *optim, TrainState *state, Error *err)
{
    StFile file;
    Snapshot s = { 0 };
    Error inner;
    if (!st_open(&file, path, err))
        return false;
    bool ok = snapshot_read(&s, &file, model, optim, state != NULL, &inner)
              || error_set(err, inner.hint, "%.200s: %.300s", path, inner.text);
    if (ok)
        snapshot_restore(&s, model, optim, state);
    snapshot_free(&s);
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

// --- continuing ----------------------------------------------------------------------------------

// Warns of the effects of a different number of ranks. left_out: skips the rest of the epoch.
static void warn_of_ranks(int ranks, const char *path, const TrainState *saved,
                          const TrainState *run, bool left_out)
{
    bool same = saved->batch_size == run->batch_size;
    char rest[64] = "";
    if (left_out)
        snprintf(rest, sizeof rest, "; the rest of epoch %lld is skipped",
                 (long long)saved->epoch + 1);
    WARN(same ? "" : "check the learning rate (see --lr-scale), or choose -b to keep the "
                     "global batch",
         "%.300s: ranks %lld -> %d, global batch %lld -> %lld%s", path,
         (long long)(saved->ranks > 0 ? saved->ranks : 1), ranks, (long long)saved->batch_size,
         (long long)run->batch_size, rest);
}

// If the global batch is the same, the rest of an epoch is the same for any number of ranks.
// In old files without ddp.ranks, only the global batch shows that their number has changed.
bool checkpoint_continues(const CheckpointConfig *config, const char *path, TrainState *saved,
                          const TrainState *run, int64_t steps_per_epoch, Error *err)
{
    bool same_batch = saved->batch_size == run->batch_size;
    bool fits = saved->step == 0 || (same_batch && saved->step < steps_per_epoch);
    bool same_ranks = saved->ranks > 0 ? saved->ranks == config->ranks : same_batch;
    if (saved->seed != run->seed)
        return error_set(err, "use the same --seed, or start a new run from the weights with --init",
                         "%.300s was trained with --seed %lld, not %lld", path,
                         (long long)saved->seed, (long long)run->seed);
    if (config->ranks > 0 && !same_ranks) {
        warn_of_ranks(config->ranks, path, saved, run, !fits);
        if (!fits) {
            saved->epoch++;
            saved->step = 0;
            saved->running = (Stats){ 0 };
        }
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
          "resume from it; auto: from --save's, if it exists", .own = true },
        { "init", 0, ARG_STRING, &c->init, "FILE", "initial weights (also torchvision's)",
          .own = true },
        { "evaluate", 'e', ARG_FLAG, &c->evaluate, NULL,
          "only evaluate the weights of --resume or --init" }));
}

static const char *resumed_file(const CheckpointConfig *c)
{
    if (!c->resume || strcmp(c->resume, "auto") != 0)
        return c->resume;
    return access(c->save, F_OK) != 0 && errno == ENOENT ? NULL : c->save;
}

void checkpoint_check_options(const Args *args, CheckpointConfig *c)
{
    if (c->evaluate && !c->resume && !c->init)
        args_reject(args, "evaluate", "needs weights: --resume FILE or --init FILE");
    if (c->resume && c->init)
        args_reject(args, "resume", "cannot be combined with --init: both load weights");
    if (c->resume && strcmp(c->resume, "auto") == 0 && !c->save)
        args_reject(args, "resume", "auto needs --save FILE: the file to resume from");
    if (args_given(args, "save-every") && !c->save)     // saver.c's option, in steps that have it
        args_reject(args, "save-every", "needs --save FILE");
    c->from = resumed_file(c);
}

const char *checkpoint_to_resume(const CheckpointConfig *c) { return c->from; }
