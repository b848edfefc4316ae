// checkpoint.c - saves and loads a training run. The file holds
//
//   layer1.0.conv1.weight, ...                 F32      parameters and running statistics
//   layer1.0.bn1.num_batches_tracked, ...      I64 []   of every BatchNorm
//   ddp.momentum.layer1.0.conv1.weight, ...    F32      of every parameter: the optimizer's arenas
//   (AdamW: ddp.exp_avg., ddp.exp_avg_sq.)
//   ddp.epoch, ddp.running.loss_sum, ...       I64, F64 [1], see state_fields
//   __metadata__: format "pt", ddp.arch, ddp.dataset; of a gpt, ddp.vocabulary and ddp.heads
#include "checkpoint.h"
#include "progress.h"
#include "output.h"
#include "trace.h"
#include "checkpoint/safetensors.h"

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The numbers of a TrainState that are saved, and their valid ranges.
typedef struct StateField {
    const char *name;
    bool real;              // F64, else I64
    size_t offset;          // in TrainState
    double least, most;
    bool younger;           // an old file may lack it; then 0
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
    { "ddp.order", false, STATE(order), 0, 1e15, .younger = true },
};
enum { STATE_FIELDS = sizeof state_fields / sizeof *state_fields };

// --- a run in host memory, as the tensors of a file ----------------------------------------------

typedef struct Item {
    char name[96];
    void *value;                // in torch's layout, as in the file
    const StateField *field;    // a number of the TrainState, or NULL
    const ModelTensor *tensor;  // a tensor of the model, or NULL
    float *arena;               // the host's copy of its arena, or NULL
} Item;

typedef struct Arena {
    float *device, *host;       // the arena, and its copy
    float *torch;               // its tensors in torch's layout, one after the other
    size_t bytes;
} Arena;

typedef struct Contents {
    Model *model;
    TrainState state;
    int64_t batches_seen;
    Arena arenas[2 + OPTIM_ARENAS];
    int arena_count;
    StTensor *tensors;          // of the file
    Item *items;                // what each tensor holds
    int count;
} Contents;

static void add_item(Contents *c, const char *prefix, StTensor tensor, Item item)
{
    Item *i = &c->items[c->count];
    *i = item;
    snprintf(i->name, sizeof i->name, "%s%.60s", prefix, tensor.name);
    tensor.name = i->name;
    tensor.data = i->value;
    c->tensors[c->count++] = tensor;
}

static void add_arena(Contents *c, const char *prefix, bool buffers, float *device, size_t count)
{
    size_t bytes = count * sizeof(float);
    const Model *model = c->model;
    if (count == 0)
        return;
    Arena *a = &c->arenas[c->arena_count++];
    *a = (Arena){ device, host_alloc(bytes), xmalloc(bytes), bytes };
    memset(a->host, 0, bytes);
    float *torch = a->torch;
    for (const ModelTensor *t = model->tensors; t < model->tensors + model->tensor_count; t++) {
        if (t->kind == MODEL_COUNTER || buffers != (t->kind == MODEL_BUFFER))
            continue;
        StTensor of_file = { t->name, "F32", t->ndim, .bytes = (size_t)t->count * sizeof *torch };
        memcpy(of_file.shape, t->shape, sizeof t->shape);
        add_item(c, prefix, of_file, (Item){ .value = torch, .tensor = t, .arena = a->host });
        torch += t->count;
    }
}

// All tensors of a run, without their values. Without `optim` and `state`, only the model's.
static void contents_open(Contents *c, Model *model, const Optim *optim, bool state)
{
    size_t most = (size_t)((1 + OPTIM_ARENAS) * model->tensor_count + STATE_FIELDS);
    *c = (Contents){ .model = model, .tensors = xcalloc(most, sizeof *c->tensors),
                     .items = xcalloc(most, sizeof *c->items) };
    for (const StateField *f = state_fields; state && f < state_fields + STATE_FIELDS; f++)
        add_item(c, "",
                 (StTensor){ f->name, f->real ? "F64" : "I64", 1, .shape = { 1 }, .bytes = 8 },
                 (Item){ .value = (char *)&c->state + f->offset, .field = f });
    for (const ModelTensor *t = model->tensors; t < model->tensors + model->tensor_count; t++)
        if (t->kind == MODEL_COUNTER)
            add_item(c, "", (StTensor){ t->name, "I64", 0, .bytes = 8 },
                     (Item){ .value = &c->batches_seen, .tensor = t });
    add_arena(c, "", false, model->params, model->param_count);
    add_arena(c, "", true, model->buffers, model->buffer_count);
    for (int i = 0; optim && i < optim->arena_count; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "ddp.%s.", optim->arenas[i].name);
        add_arena(c, prefix, false, optim->arenas[i].values, model->param_count);
    }
}

static void contents_close(Contents *c)
{
    for (Arena *a = c->arenas; a < c->arenas + c->arena_count; a++) {
        free(a->torch);
        host_free(a->host);
    }
    free(c->items);
    free(c->tensors);
}

static bool check_item(const Item *item, const char *hint, Error *err)
{
    const StateField *f = item->field;
    if (f) {
        double value = f->real ? *(double *)item->value : (double)*(int64_t *)item->value;
        return (value >= f->least && value <= f->most)
               || error_set(err, hint, "%s is %g, which is out of range", f->name, value);
    }
    for (int64_t i = 0; item->arena && i < item->tensor->count; i++)
        if (!isfinite(((float *)item->value)[i]))
            return error_set(err, hint, "%s: element %lld is not finite", item->name, (long long)i);
    return true;
}

// --- saving --------------------------------------------------------------------------------------

// Copies the run to the host. False: a number is not finite or out of range, and the caller keeps
// the previous file.
static bool contents_read(Contents *c, const TrainState *state, Error *err)
{
    static const char diverged[] =
        "the run has diverged: try a smaller --lr or a --warmup; the previous checkpoint is kept";
    Stream *stream = device_stream(c->model->device);
    for (const Arena *a = c->arenas; a < c->arenas + c->arena_count; a++)
        copy_to_host(stream, a->host, a->device, a->bytes);
    stream_sync(stream);
    c->state = *state;
    c->batches_seen = c->model->batches_seen;
    for (const Item *item = c->items; item < c->items + c->count; item++) {
        progress_beat();
        if (item->arena)
            model_export(c->model, item->tensor, item->arena, item->value);
        if (!check_item(item, diverged, err))
            return false;
    }
    return true;
}

bool checkpoint_save(const char *path, Model *model, const Optim *optim, const TrainState *state,
                     const char *dataset, Error *err)
{
    const ModelConfig *config = &model->config;
    char heads[16];
    snprintf(heads, sizeof heads, "%d", config->gpt.heads);
    const char *const metadata[][2] = {
        { "format", "pt" }, { "ddp.arch", config->arch }, { "ddp.dataset", dataset },
        { "ddp.vocabulary", config->vocabulary }, { "ddp.heads", heads },
    };
    Error inner;
    Contents c;
    trace_begin("save");
    contents_open(&c, model, optim, true);
    bool ok = contents_read(&c, state, &inner)
              ? st_write(path, c.tensors, c.count, metadata, model->per_row > 1 ? 5 : 3, err)
              : error_set(err, inner.hint, "%.200s: not saved: %.280s", path, inner.text);
    contents_close(&c);
    trace_end();
    return ok;
}

// --- loading -------------------------------------------------------------------------------------

static bool misfit(const StFile *file, const Model *model, Error *err)
{
    const char *arch = st_metadata(file, "ddp.arch"), *dataset = st_metadata(file, "ddp.dataset");
    if (!arch || !dataset)
        snprintf(err->hint, sizeof err->hint, "the file was not made for this %s with %d classes",
                 model->config.arch, model->config.classes);
    else
        snprintf(err->hint, sizeof err->hint,
                 "the file holds a %.40s trained on %.40s; use the same --arch%s and --data", arch,
                 dataset, model->per_row > 1 ? ", --layers, --width, --block" : "");
    return false;
}

// "F32 (64, 3, 7, 7)"
typedef char TypeText[ST_MAX_DIMS * 22 + 16];
static const char *type_text(const StTensor *t, TypeText out)
{
    size_t n = (size_t)snprintf(out, sizeof(TypeText), "%.10s (", t->dtype);
    for (int i = 0; i < t->ndim; i++)
        n += (size_t)snprintf(out + n, sizeof(TypeText) - n, "%s%lld", i ? ", " : "",
                              (long long)t->shape[i]);
    snprintf(out + n, sizeof(TypeText) - n, ")");
    return out;
}

static bool check_type(const StTensor *there, const StTensor *wanted, const StFile *file,
                       const Model *model, Error *err)
{
    TypeText is, must_be;
    if (there && strcmp(type_text(there, is), type_text(wanted, must_be)) == 0)
        return true;
    if (there)
        error_set(err, "", "tensor %s is %s, but must be %s", wanted->name, is, must_be);
    else
        error_set(err, "", "tensor %s is missing", wanted->name);
    if (strncmp(wanted->name, "ddp.", 4) != 0)
        return misfit(file, model, err);
    snprintf(err->hint, sizeof err->hint, "the file's training state is incomplete, or that of a "
             "different --optim; start a new run from its weights with --init");
    return false;
}

// Files of old PyTorch versions lack num_batches_tracked. Files of old versions of ddp.c lack the
// `younger` fields. What is missing becomes 0.
static bool import_contents(const Contents *c, const StFile *file, Error *err)
{
    for (int i = 0; i < c->count; i++) {
        const Item *item = &c->items[i];
        const StTensor *there = st_find(file, item->name);
        bool optional = item->field ? item->field->younger : !item->arena;
        progress_beat();
        if (!there && optional)
            continue;
        if (!check_type(there, &c->tensors[i], file, c->model, err))
            return false;
        memcpy(item->value, there->data, there->bytes);
        if (!check_item(item, "the run had diverged when this was saved, or the file is damaged; "
                        "take an earlier file", err))
            return false;
        if (item->arena)
            model_import(c->model, item->tensor, item->arena, item->value);
    }
    return true;
}

// Compares what the shapes of a gpt's tensors do not show: heads, and which characters the tokens
// are. A file that PyTorch wrote does not contain these.
static bool check_text(const StFile *file, const Model *model, Error *err)
{
    const char *heads = st_metadata(file, "ddp.heads");
    const char *vocabulary = st_metadata(file, "ddp.vocabulary");
    if (model->per_row > 1 && vocabulary && strcmp(vocabulary, model->config.vocabulary) != 0)
        return error_set(err, "use the same --data as in that training",
                         "its model was trained on a text with different characters");
    if (model->per_row > 1 && heads && atoi(heads) != model->config.gpt.heads)
        return error_set(err, "use the same --heads", "its model was trained with --heads %.10s, "
                         "not %d", heads, model->config.gpt.heads);
    return true;
}

// Fails if the file has tensors (other than ddp.*) that the model does not have. Without this check
// a resnet34's file would load into a resnet18: the file has all of a resnet18's tensors.
static bool check_no_others(const Contents *c, const StFile *file, Error *err)
{
    for (int i = 0; i < file->count; i++) {
        const char *name = file->tensors[i].name;
        bool known = strncmp(name, "ddp.", 4) == 0;
        for (int j = 0; j < c->count && !known; j++)
            known = strcmp(c->items[j].name, name) == 0;
        if (!known) {
            error_set(err, "", "tensor %.100s is not part of a %s", name, c->model->config.arch);
            return misfit(file, c->model, err);
        }
    }
    return true;
}

static void contents_write(const Contents *c, TrainState *state)
{
    Stream *stream = device_stream(c->model->device);
    for (const Arena *a = c->arenas; a < c->arenas + c->arena_count; a++)
        copy_to_device(stream, a->device, a->host, a->bytes);
    stream_sync(stream);
    c->model->batches_seen = c->batches_seen;
    if (state)
        *state = c->state;
}

bool checkpoint_load(const char *path, Model *model, Optim *optim, TrainState *state, Error *err)
{
    StFile file;
    Contents c;
    Error inner;
    if (!st_open(&file, path, err))
        return false;
    contents_open(&c, model, optim, state != NULL);
    bool ok = (check_text(&file, model, &inner) && import_contents(&c, &file, &inner)
               && check_no_others(&c, &file, &inner))
              || error_set(err, inner.hint, "%.200s: %.300s", path, inner.text);
    if (ok)
        contents_write(&c, state);
    contents_close(&c);
    st_close(&file);
    return ok;
}

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && st.st_size > 0;
}

static bool same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_ino == of_b.st_ino &&
           of_a.st_dev == of_b.st_dev;
}

bool checkpoint_claim(const char *save, const char *from, Error *err)
{
    char best[PATH_MAX];
    PROGRESS_DOING("opening", save);
    if (!output_claim(save, err))
        return false;
    snprintf(best, sizeof best, "%s.best", save);
    if (from && same_file(save, from))
        return true;
    if (is_file(save))
        WARN("--resume auto would continue it instead",
             "%.300s: this run will overwrite this checkpoint", save);
    if (is_file(best))
        WARN("rename it to keep it", "%.300s: this run will overwrite this checkpoint", best);
    return true;
}

// --- continuing ----------------------------------------------------------------------------------

// With another global batch, a step means other samples, so the epoch begins again.
static void begin_again(const char *path, TrainState *saved, const TrainState *run)
{
    char again[64] = "";
    if (saved->step > 0)
        snprintf(again, sizeof again, ": epoch %lld begins again", (long long)saved->epoch + 1);
    WARN("adapt the learning rate (from 03 on: --lr-scale), or choose -b so that the global batch "
         "stays the same",
         "%.300s: global batch %lld -> %lld%s", path, (long long)saved->batch_size,
         (long long)run->batch_size, again);
    saved->step = 0;
    saved->running = (Stats){ 0 };
}

// Is the .best of `save` that of the run which is in `from`?
static bool has_best(const char *save, const char *from)
{
    char best[PATH_MAX];
    snprintf(best, sizeof best, "%s.best", save);
    return same_file(save, from) && is_file(best);
}

bool checkpoint_continue(const char *path, const char *save, TrainState *saved,
                         const TrainState *run, int64_t steps_per_epoch, Error *err)
{
    if (saved->seed != run->seed)
        return error_set(err,
                         "use the same --seed, or start a new run from the weights with --init",
                         "%.300s was trained with --seed %lld, not %lld", path,
                         (long long)saved->seed, (long long)run->seed);
    if (saved->batch_size != run->batch_size)
        begin_again(path, saved, run);
    if (saved->step > 0 && saved->order != 0 && saved->order != run->order)
        return error_set(err, "use the same --data, --train-samples and --shuffle until the "
                         "epoch is over",
                         "%.300s was saved in an epoch with different samples, or with the "
                         "same samples in a different order", path);
    if (saved->step > steps_per_epoch)
        return error_set(err, "use the same --data and --train-samples until the epoch is over",
                         "%.300s was saved after step %lld of an epoch that now has only %lld "
                         "steps", path, (long long)saved->step, (long long)steps_per_epoch);
    if (save && !has_best(save, path))
        saved->best_top1 = -1;
    saved->batch_size = run->batch_size;
    saved->order = run->order;
    return true;
}

// --- options -------------------------------------------------------------------------------------

static void check_options(Args *args, void *config)
{
    const CheckpointConfig *c = config;
    if (c->evaluate && !c->resume && !c->init)
        args_reject(args, "evaluate", "needs weights: --resume FILE or --init FILE");
    if (c->resume && c->init)
        args_reject(args, "resume", "cannot be combined with --init: both load weights");
    if (c->resume && strcmp(c->resume, "auto") == 0 && !c->save)
        args_reject(args, "resume", "auto needs --save FILE, the file to resume from");
    if (c->evaluate && c->save && !(c->resume && strcmp(c->resume, "auto") == 0))
        args_reject(args, "save", "has no effect with --evaluate");
}

void checkpoint_options(Args *args, CheckpointConfig *c)
{
    args_add(args, ARGS_ROWS(
        { "save", 0, ARG_STRING, &c->save, "FILE",
          "save after each epoch; the best is FILE.best", .first = true },
        { "save-every", 0, ARG_INT, &c->save_every, "STEPS",
          "also save every STEPS steps (0: off)", .min = 0, .max = 1e9,
          .needs = "save" },
        { "resume", 0, ARG_STRING, &c->resume, "FILE",
          "resume from FILE (auto: from --save's, if it exists)",
          .local = true, .first = true },
        { "init", 0, ARG_STRING, &c->init, "FILE",
          "begin with the weights in this file, ours or torchvision's", .local = true },
        { "evaluate", 'e', ARG_FLAG, &c->evaluate, NULL,
          "only evaluate the weights of --resume or --init", .first = true }));
    args_check(args, check_options, c);
}

bool checkpoint_due(const CheckpointConfig *c, const TrainState *state)
{
    return c->save_every > 0 && state->global_step % c->save_every == 0;
}

const char *checkpoint_find(const CheckpointConfig *c)
{
    const char *start = getenv("TORCHELASTIC_RESTART_COUNT"), *from = c->resume;
    PROGRESS_DOING("looking for", from ? from : "");
    if (from && strcmp(from, "auto") == 0)
        from = access(c->save, F_OK) != 0 && errno == ENOENT ? NULL : c->save;
    if (!from && !c->evaluate && start && atoi(start) > 0)
        WARN("--save FILE --save-every N --resume auto continues from the last checkpoint",
             "restart %s: no checkpoint is resumed, so training begins again at epoch 1", start);
    return from;
}
