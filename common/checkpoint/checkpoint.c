// checkpoint.c - saves and loads a training run. The file holds
//
//   ddp.epoch, ddp.running.loss_sum, ...       I64, F64 [1], see list_state
//   layer1.0.bn1.num_batches_tracked, ...      I64 []   of every BatchNorm
//   layer1.0.conv1.weight, ...                 F32      parameters and running statistics
//   ddp.momentum.layer1.0.conv1.weight, ...    F32      of every parameter: the optimizer's arrays
//   (with AdamW: ddp.exp_avg.*, ddp.exp_avg_sq.*)
//   __metadata__: see list_metadata
#include "checkpoint.h"
#include "progress.h"
#include "output.h"
#include "trace.h"
#include "checkpoint/safetensors.h"

#include <errno.h>
#include <float.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// --- the list ------------------------------------------------------------------------------------

int run_arrays(const Model *model, const Optim *optim, Array list[RUN_ARRAYS])
{
    int n = 0;
    list[n++] = (Array){ model->params, model->param_count, "" };
    list[n++] = (Array){ model->buffers, model->buffer_count, "" };
    for (int i = 0; optim && i < optim->arena_count; i++)
        list[n++] = optim->arenas[i];
    return n;
}

// A tensor of the file. Its data are in host memory.
typedef struct Named {
    StTensor t;
    double least, most;         // the range allowed for the tensor's values
    const ModelTensor *tensor;  // the model's tensor, for its shape; NULL: a field of TrainState
    const Array *array;         // the device array that has the tensor's values, or NULL
    char name[96];              // storage for t.name, which is a constant for a field of TrainState
} Named;

enum { STATE_NUMBERS = 14 };

typedef struct Contents {
    Model *model;
    TrainState state;
    int64_t batches;            // num_batches_tracked, which PyTorch needs
    Array arrays[RUN_ARRAYS];
    int array_count;
    float *values;              // host memory: the values of all arrays' tensors
    Named *list;
    int count;
} Contents;

#define NUMBER(dtype, member, ...)                                                                 \
    { { "ddp." #member, dtype, 1, { 1 }, &c->state.member, sizeof(int64_t) }, __VA_ARGS__ }

static void list_state(Contents *c)
{
    const Named numbers[STATE_NUMBERS] = {
        NUMBER("I64", seed, 0, 1e15),
        NUMBER("I64", epoch, 0, 1e9),
        NUMBER("I64", step, 0, 1e9),
        NUMBER("I64", global_step, 0, 1e15),
        NUMBER("I64", batch_size, 1, 1e9),
        NUMBER("F64", best_top1, -1, 100),
        NUMBER("F64", loss_scale, FLT_MIN, FLT_MAX),
        NUMBER("I64", clean_steps, 0, 1e9),
        NUMBER("I64", skipped_steps, 0, 1e9),
        NUMBER("F64", running.loss_sum, 0, DBL_MAX),
        NUMBER("I64", running.count, 0, 1e15),
        NUMBER("I64", running.correct1, 0, 1e15),
        NUMBER("I64", running.correct5, 0, 1e15),
        NUMBER("I64", order, 0, 1e15),
    };
    memcpy(c->list, numbers, sizeof numbers);
    c->count = STATE_NUMBERS;
}

static void list_tensor(Contents *c, const ModelTensor *t, const Array *array, void *value)
{
    Named *n = &c->list[c->count++];
    size_t bytes = (size_t)t->count * (array ? sizeof(float) : sizeof c->batches);
    *n = (Named){ { n->name, array ? "F32" : "I64", t->ndim, .data = value, .bytes = bytes },
                  -FLT_MAX, FLT_MAX, t, array };
    memcpy(n->t.shape, t->shape, sizeof t->shape);
    snprintf(n->name, sizeof n->name, "%s%s", array ? array->name : "", t->name);
}

// Lists a run's tensors and allocates their values. optim NULL, state false: only the model's.
static void contents_open(Contents *c, Model *model, const Optim *optim, bool state)
{
    const ModelTensor *end = model->tensors + model->tensor_count;
    size_t floats = 0;
    *c = (Contents){ .model = model };
    c->array_count = run_arrays(model, optim, c->arrays);
    c->list = xcalloc((size_t)(STATE_NUMBERS + c->array_count * model->tensor_count),
                      sizeof *c->list);
    if (state)
        list_state(c);
    for (const ModelTensor *t = model->tensors; t < end; t++)
        if (t->kind == MODEL_COUNTER)
            list_tensor(c, t, NULL, &c->batches);
    for (int i = 0; i < c->array_count; i++)
        floats += c->arrays[i].count;
    float *value = c->values = xmalloc(floats * sizeof *value);
    for (const Array *a = c->arrays; a < c->arrays + c->array_count; a++)
        for (const ModelTensor *t = model->tensors; t < end; t++)
            if (t->kind != MODEL_COUNTER
                && (t->kind == MODEL_BUFFER) == (a->values == model->buffers)) {
                list_tensor(c, t, a, value);
                value += t->count;
            }
}

static void contents_close(Contents *c)
{
    free(c->list);
    free(c->values);
}

// Copies all arrays from the device to the list, or back.
static void move_arrays(Contents *c, bool to_list)
{
    Stream *stream = device_stream(c->model->device);
    for (const Array *a = c->arrays; a < c->arrays + c->array_count; a++) {
        size_t bytes = a->count * sizeof(float);
        float *host = host_alloc(bytes);
        copy_to_host(stream, host, a->values, bytes);
        stream_sync(stream);
        for (const Named *n = c->list; n < c->list + c->count; n++) {
            if (n->array == a && to_list)
                model_export(c->model, n->tensor, host, (float *)n->t.data);
            else if (n->array == a)
                model_import(c->model, n->tensor, host, n->t.data);
            progress_beat();
        }
        if (!to_list)
            copy_to_device(stream, a->values, host, bytes);
        stream_sync(stream);
        host_free(host);
    }
}

// Are all of the tensor's values in its range? NaN never is.
static bool check_numbers(const Named *n, const char *hint, Error *err)
{
    int64_t count = n->tensor ? n->tensor->count : 1;
    const bool integers = n->t.dtype[0] == 'I';
    for (int64_t i = 0; i < count; i++) {
        double x = n->array   ? ((const float *)n->t.data)[i]
                   : integers ? (double)((const int64_t *)n->t.data)[i]
                              : ((const double *)n->t.data)[i];
        if (!(x >= n->least && x <= n->most))
            return error_set(err, hint, "%s[%lld] is %g, which is out of range", n->t.name,
                             (long long)i, x);
    }
    progress_beat();
    return true;
}

// --- saving --------------------------------------------------------------------------------------

enum { METADATA = 4 };
typedef struct Metadata {
    const char *list[METADATA][2];
    char heads[16];
} Metadata;

// Returns how many entries apply. The last two are for a gpt: its tensors' shapes do not show them.
static int list_metadata(Metadata *m, const ModelConfig *config)
{
    snprintf(m->heads, sizeof m->heads, "%d", config->gpt.heads);
    memcpy(m->list, (const char *[METADATA][2]){
        { "format", "pt" }, { "ddp.arch", config->arch },
        { "ddp.vocabulary", config->vocabulary }, { "ddp.heads", m->heads } }, sizeof m->list);
    return config->per_row > 1 ? METADATA : METADATA - 2;
}

bool checkpoint_save(const char *path, Model *model, const Optim *optim, const TrainState *state,
                     Error *err)
{
    static const char diverged[] =
        "the run has diverged: try a smaller --lr or a --warmup; the previous checkpoint is kept";
    Error inner;
    Contents c;
    Metadata metadata;
    bool ok = true;
    trace_begin("save");
    contents_open(&c, model, optim, true);
    c.state = *state;
    c.batches = state->global_step;
    move_arrays(&c, true);
    StTensor *tensors = xcalloc((size_t)c.count, sizeof *tensors);
    for (int i = 0; i < c.count && ok; i++) {
        tensors[i] = c.list[i].t;
        ok = check_numbers(&c.list[i], diverged, &inner);
    }
    int lines = list_metadata(&metadata, &model->config);
    ok = ok ? st_write(path, tensors, c.count, metadata.list, lines, err)
            : error_set(err, inner.hint, "%.200s: not saved: %.280s", path, inner.text);
    free(tensors);
    contents_close(&c);
    trace_end();
    return ok;
}

// --- loading -------------------------------------------------------------------------------------

// Writes a tensor's type and shape: "F32 (64, 3, 7, 7)".
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

// Older files lack some fields of TrainState, and files of old PyTorch versions lack
// num_batches_tracked. A field or counter that is missing is 0, if its range has 0.
static bool read_named(const Named *n, const StFile *file, Error *err)
{
    TypeText is, must_be;
    const StTensor *there = st_find(file, n->t.name);
    if (!there)
        return (!n->array && n->least <= 0)
               || error_set(err, "", "tensor %s is missing", n->t.name);
    if (strcmp(type_text(there, is), type_text(&n->t, must_be)) != 0)
        return error_set(err, "", "tensor %s is %s, but must be %s", n->t.name, is, must_be);
    memcpy((void *)n->t.data, there->data, there->bytes);
    return check_numbers(n, "the run had diverged when this was saved, or the file is damaged; "
                         "take an earlier file", err);
}

// Apart from ddp.*, the file may have only the list's tensors: a resnet34's file has all of a
// resnet18's, and more. An architecture, vocabulary or heads in its metadata must be this model's.
static bool read_list(const Contents *c, const StFile *file, Error *err)
{
    Metadata mine;
    int others = 0;
    for (int i = list_metadata(&mine, &c->model->config) - 1; i > 0; i--) {
        const char *key = mine.list[i][0], *wanted = mine.list[i][1];
        const char *there = st_metadata(file, key);
        if (there && wanted && strcmp(there, wanted) != 0)
            return error_set(err, "", "its %s is '%.99s', but must be '%.99s'", key, there, wanted);
    }
    for (int i = 0; i < file->count; i++)
        others += strncmp(file->tensors[i].name, "ddp.", 4) != 0;
    for (const Named *n = c->list; n < c->list + c->count; n++) {
        if (!read_named(n, file, err))
            return false;
        others -= strncmp(n->t.name, "ddp.", 4) != 0 && st_find(file, n->t.name);
    }
    return others == 0 || error_set(err, "", "it has %d tensor%s that a %s does not have", others,
                                    others == 1 ? "" : "s", c->model->config.arch);
}

bool checkpoint_load(const char *path, Model *model, Optim *optim, TrainState *state, Error *err)
{
    static const char misfit[] = "use the options of the run that saved it (--arch, --data, "
                                 "--optim, --block, ...); with --init, only the network must match";
    StFile file;
    Contents c;
    Error inner;
    if (!st_open(&file, path, err))
        return false;
    contents_open(&c, model, optim, state != NULL);
    bool ok = read_list(&c, &file, &inner);
    if (ok)
        move_arrays(&c, false);
    else
        error_set(err, inner.hint[0] ? inner.hint : misfit, "%.200s: %.300s", path, inner.text);
    if (ok && state)
        *state = c.state;
    contents_close(&c);
    st_close(&file);
    return ok;
}

static bool same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_ino == of_b.st_ino &&
           of_a.st_dev == of_b.st_dev;
}

static void warn_if_replaced(const char *path, const char *hint)
{
    struct stat st;
    if (stat(path, &st) == 0 && st.st_size > 0)
        WARN(hint, "%.300s: this run will overwrite this checkpoint", path);
}

bool checkpoint_claim(const char *save, const char *from, Error *err)
{
    char best[PATH_MAX];
    snprintf(best, sizeof best, "%s.best", save);
    PROGRESS_DOING("opening", save);
    if (!output_claim(save, err))
        return false;
    if (from && same_file(save, from))
        return true;                    // only a better model replaces its .best
    warn_if_replaced(save, "to continue from it, use --resume auto; to keep it, rename it");
    if (!from || !same_file(best, from))
        warn_if_replaced(best, "to keep it, rename it");
    return true;
}

// --- continuing ----------------------------------------------------------------------------------

bool checkpoint_continue(const char *path, const char *save, TrainState *saved,
                         const TrainState *run, int64_t steps_per_epoch, Error *err)
{
    char best[PATH_MAX], again[48] = "";
    snprintf(best, sizeof best, "%s.best", save ? save : "");
    if (saved->seed != run->seed)
        return error_set(err,
                         "use the same --seed, or start a new run from the weights with --init",
                         "%.300s was trained with --seed %lld, not %lld", path,
                         (long long)saved->seed, (long long)run->seed);
    if (saved->batch_size != run->batch_size) {     // then steps have different samples
        if (saved->step > 0)
            snprintf(again, sizeof again, ", so epoch %lld begins again",
                     (long long)saved->epoch + 1);
        WARN("adapt the learning rate (from 03 on: --lr-scale), or choose -b so that the global "
             "batch stays the same", "%.300s: the global batch was %lld and is now %lld%s", path,
             (long long)saved->batch_size, (long long)run->batch_size, again);
        saved->step = 0;
        saved->running = (Stats){ 0 };
    }
    if (saved->step > steps_per_epoch
        || (saved->step > 0 && saved->order != 0 && saved->order != run->order))
        return error_set(err, "use the same --data, --train-samples and --shuffle until the "
                         "epoch is over",
                         "%.300s was saved in an epoch with different samples, or with the "
                         "same samples in a different order", path);
    if (save && !same_file(best, path) && !(same_file(save, path) && access(best, F_OK) == 0))
        saved->best_top1 = -1;  // the score belongs to a different .best, or to one that is gone
    saved->batch_size = run->batch_size;
    saved->order = run->order;
    return true;
}

// --- options -------------------------------------------------------------------------------------

static void check_options(Args *args, void *config)
{
    const CheckpointConfig *c = config;
    if (c->evaluate && !c->resume && !c->init)
        args_reject(args, "evaluate", "needs weights; give --resume FILE or --init FILE");
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
          "save after each epoch (FILE.best: after the best)", .first = true },
        { "save-every", 0, ARG_INT, &c->save_every, "STEPS",
          "also save every STEPS steps (0: off)", .min = 0, .max = 1e9,
          .needs = "save" },
        { "resume", 0, ARG_STRING, &c->resume, "FILE",
          "resume from FILE (auto: --save's file, if it exists)",
          .local = true, .first = true },
        { "init", 0, ARG_STRING, &c->init, "FILE",
          "start from the weights in FILE, a checkpoint of --save or torchvision", .local = true },
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
    const char *from = c->resume;
    PROGRESS_DOING("looking for", from ? from : "");
    if (from && strcmp(from, "auto") == 0)
        from = access(c->save, F_OK) != 0 && errno == ENOENT ? NULL : c->save;
    const char *source = from ? from : c->init;
    CHECK(own_rank() > 0 || !source || access(source, R_OK) == 0,
          "check the path, and that you may read the file", "cannot open %.200s: %s", source,
          strerror(errno));
    return from;
}
