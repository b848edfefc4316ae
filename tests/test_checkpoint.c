// test_checkpoint.c - saving and loading a training run, and refusing files that do not fit.
#include "check.h"
#include "checkpoint.h"
#include "checkpoint/safetensors.h"
#include "test_device.h"
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

// --- a run in the middle of training -------------------------------------------------------------

typedef struct Run {
    Model *model;
    Optim *optim;
    TrainState state;
} Run;

static OptimConfig config;

// The buffers and the optimizer's numbers differ for each tensor, so that a mix-up shows.
static Run new_run(const char *arch, int channels, int classes, int seed)
{
    int size = channels == 3 ? 32 : 28;
    Run r = { .model = model_new(device, ops,
                                 &(ModelConfig){ arch, channels, size, size, classes, .batch = 2 }) };
    Model *m = r.model;
    model_init(m, seed);
    m->batches_seen = 100 + seed;
    r.optim = optim_new(&config, m);
    for (int i = 0; i < m->tensor_count; i++) { // the CPU backend's device memory is host memory
        const ModelTensor *t = &m->tensors[i];
        float *values = xmalloc((size_t)t->count * sizeof *values);
        for (int k = 0; k < r.optim->arena_count; k++) {
            for (int64_t j = 0; j < t->count; j++)
                values[j] = (float)(seed + 1 + 8 * k) * 0.001f * (float)(i * 7 + j % 1000 + 1);
            if (t->kind == MODEL_BUFFER)
                model_import(m, t, m->buffers, values);
            else if (t->kind != MODEL_COUNTER)
                model_import(m, t, r.optim->arenas[k].values, values);
        }
        free(values);
    }
    r.state = (TrainState){
        .seed = seed, .epoch = 3, .step = 17, .global_step = 605, .batch_size = 256,
        .best_top1 = 61.25 + seed, .loss_scale = 32768, .clean_steps = 1723,
        .skipped_steps = 1 + seed, .order = 7,
        .running = { .loss_sum = 1234.5678, .count = 4352, .correct1 = 1700, .correct5 = 3900 } };
    return r;
}

static void free_run(Run *r)
{
    optim_free(r->optim);
    model_free(r->model);
}

static bool same_floats(const float *a, const float *b, size_t count)
{
    return memcmp(a, b, count * sizeof *a) == 0;
}

static bool same_weights(const Run *a, const Run *b)
{
    return same_floats(a->model->params, b->model->params, a->model->param_count)
           && same_floats(a->model->buffers, b->model->buffers, a->model->buffer_count)
           && (a->model->batches_seen == b->model->batches_seen || a->model->buffer_count == 0);
}

static bool same_momentum(const Run *a, const Run *b)
{
    bool same = true;
    for (int k = 0; k < a->optim->arena_count; k++)
        same = same && same_floats(a->optim->arenas[k].values, b->optim->arenas[k].values,
                                   a->model->param_count);
    return same;
}

static bool same_runs(const Run *a, const Run *b)
{
    return same_weights(a, b) && same_momentum(a, b)
           && memcmp(&a->state, &b->state, sizeof a->state) == 0;
}

static bool save(const Run *r, const char *path, Error *err)
{
    return checkpoint_save(path, r->model, r->optim, &r->state, "cifar10", err);
}

static bool load(Run *r, const char *path, Error *err)
{
    return checkpoint_load(path, r->model, r->optim, &r->state, err);
}

static bool load_weights(Run *r, const char *path, Error *err)
{
    return checkpoint_load(path, r->model, NULL, NULL, err);
}

// --- round trips ---------------------------------------------------------------------------------

static void expect_same_files(const char *path, const char *other)
{
    Error err = { "", "" };
    StFile one, two;
    if (!EXPECT(st_open(&one, path, &err) && st_open(&two, other, &err), "%s", err.text))
        return;
    EXPECT(one.size == two.size && memcmp(one.bytes, two.bytes, one.size) == 0, "different files");
    st_close(&one);
    st_close(&two);
}

static void round_trip_of(const char *arch, int channels)
{
    const char *path = test_path("first.st"), *again = test_path("again.st");
    Error err = { "", "" };
    Run a = new_run(arch, channels, 10, 1), b = new_run(arch, channels, 10, 2);
    EXPECT(!same_weights(&a, &b) && !same_momentum(&a, &b), "%s: two runs are the same", arch);
    EXPECT(save(&a, path, &err) && load(&b, path, &err), "%s: %s", arch, err.text);
    EXPECT(same_runs(&a, &b), "%s: the loaded run is not the saved one", arch);
    EXPECT(save(&b, again, &err), "%s: %s", arch, err.text);
    expect_same_files(path, again);
    free_run(&b);

    b = new_run(arch, channels, 10, 3);
    TrainState before = b.state;
    EXPECT(load_weights(&b, path, &err) && same_weights(&a, &b), "%s: %s", arch, err.text);
    EXPECT(!same_momentum(&a, &b), "%s: loading weights changed the momentum", arch);
    EXPECT(memcmp(&b.state, &before, sizeof before) == 0, "%s: and the state", arch);
    free_run(&a);
    free_run(&b);
}

TEST(a_different_optimizer)
{
    static const char *const names[] = { "sgd", "adamw" };
    static const char *const arenas[] = { "tensor ddp.momentum.", "tensor ddp.exp_avg." };
    const char *path = test_path("optimizer.st");
    for (int i = 0; i < 2; i++) {
        Error err = { "", "" };
        config.name = names[i];
        round_trip_of("convnet", 1);
        Run a = new_run("convnet", 1, 10, 1);
        EXPECT_EQ_INT(a.optim->arena_count, 1 + i);
        EXPECT(save(&a, path, &err), "%s", err.text);
        config.name = names[1 - i];
        Run b = new_run("convnet", 1, 10, 2);
        EXPECT(!load(&b, path, &err) && strstr(err.text, arenas[1 - i])
                   && strstr(err.hint, "a different --optim"), "%s: %s", err.text, err.hint);
        EXPECT(!same_weights(&a, &b), "%s: a refused file changed the weights", names[i]);
        EXPECT(load_weights(&b, path, &err) && same_weights(&a, &b), "%s", err.text);
        free_run(&a);
        free_run(&b);
    }
    config.name = "sgd";
}

TEST(round_trips)
{
    round_trip_of("lenet", 1);
    round_trip_of("convnet", 1);
    round_trip_of("resnet18", 3);
}

// Names, types and shapes are PyTorch's.
TEST(contents)
{
    static const struct {
        const char *name, *dtype;
        int ndim;
        int64_t shape[4];
    } wanted[] = {
        { "conv1.weight", "F32", 4, { 16, 1, 5, 5 } },
        { "bn1.running_mean", "F32", 1, { 16 } },
        { "bn1.num_batches_tracked", "I64", 0, { 0 } },
        { "fc.weight", "F32", 2, { 10, 1568 } },
        { "ddp.momentum.conv2.weight", "F32", 4, { 32, 16, 5, 5 } },
        { "ddp.momentum.bn2.bias", "F32", 1, { 32 } },
        { "ddp.epoch", "I64", 1, { 1 } },
        { "ddp.best_top1", "F64", 1, { 1 } },
        { "ddp.running.loss_sum", "F64", 1, { 1 } },
    };
    Error err = { "", "" };
    StFile file;
    Run r = new_run("convnet", 1, 10, 1);
    const char *path = test_path("contents.st");
    if (!EXPECT(save(&r, path, &err) && st_open(&file, path, &err), "%s", err.text))
        return;
    EXPECT_EQ_STR(st_metadata(&file, "format"), "pt");
    EXPECT_EQ_STR(st_metadata(&file, "ddp.arch"), "convnet");
    EXPECT_EQ_STR(st_metadata(&file, "ddp.dataset"), "cifar10");
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const StTensor *t = st_find(&file, wanted[i].name);
        EXPECT(t && strcmp(t->dtype, wanted[i].dtype) == 0 && t->ndim == wanted[i].ndim
                   && memcmp(t->shape, wanted[i].shape, sizeof wanted[i].shape) == 0,
               "%s", wanted[i].name);
    }
    // 10 parameters and their momentum, 4 running statistics, 2 counters, 14 numbers
    EXPECT_EQ_INT(file.count, 10 + 10 + 4 + 2 + 14);
    st_close(&file);
    free_run(&r);
}

// --- files that do not fit -----------------------------------------------------------------------

typedef struct Edit {
    StFile file;
    StTensor tensors[64];
    int count;
    char arch[16];
} Edit;

static void edit_begin(Edit *e, const char *arch, int channels, int classes)
{
    Error err;
    Run r = new_run(arch, channels, classes, 1);
    const char *path = test_path("begin.st");
    if (!save(&r, path, &err) || !st_open(&e->file, path, &err))
        FAIL_ERROR(&err);
    free_run(&r);
    e->count = e->file.count;
    memcpy(e->tensors, e->file.tensors, (size_t)e->count * sizeof *e->tensors);
    snprintf(e->arch, sizeof e->arch, "%s", arch);
}

static StTensor *edit_find(Edit *e, const char *name)
{
    for (int i = 0; i < e->count; i++)
        if (strcmp(e->tensors[i].name, name) == 0)
            return &e->tensors[i];
    FAIL("", "no tensor %s", name);
}

static void edit_remove(Edit *e, const char *prefix)
{
    int kept = 0;
    for (int i = 0; i < e->count; i++)
        if (strncmp(e->tensors[i].name, prefix, strlen(prefix)) != 0)
            e->tensors[kept++] = e->tensors[i];
    e->count = kept;
}

static const char *edit_end(Edit *e)
{
    static char path[4200];
    Error err;
    const char *const metadata[][2] = { { "ddp.arch", e->arch }, { "ddp.dataset", "cifar10" } };
    snprintf(path, sizeof path, "%s", test_path("edited.st"));
    if (!st_write(path, e->tensors, e->count, metadata, 2, &err))
        FAIL_ERROR(&err);
    st_close(&e->file);
    return path;
}

static void expect_refused(const char *path, const char *arch, bool whole, const char *says,
                           const char *hint)
{
    Error err = { "", "" };
    Run r = new_run(arch, 1, 10, 5), untouched = new_run(arch, 1, 10, 5);
    bool ok = whole ? load(&r, path, &err) : load_weights(&r, path, &err);
    EXPECT(!ok, "loaded, wanted the error '%s'", says);
    EXPECT(strstr(err.text, says) != NULL, "the error is '%s', not '%s'", err.text, says);
    EXPECT(strncmp(err.text, path, strlen(path)) == 0, "does not name the file: %s", err.text);
    EXPECT(strstr(err.hint, hint) != NULL, "the hint is '%s', not '%s'", err.hint, hint);
    EXPECT(same_runs(&r, &untouched), "a refused file changed the run (%s)", says);
    free_run(&r);
    free_run(&untouched);
}

TEST(a_different_model)
{
    Edit e;
    edit_begin(&e, "lenet", 1, 10);
    expect_refused(edit_end(&e), "convnet", false, "tensor conv1.weight is F32 (6, 1, 5, 5), but "
                   "must be F32 (16, 1, 5, 5)", "a lenet trained on cifar10; use the same --arch");
    edit_begin(&e, "lenet", 1, 100);
    expect_refused(edit_end(&e), "lenet", true,
                   "tensor fc3.weight is F32 (100, 84), but must be F32 (10, 84)", "--data");
    edit_begin(&e, "convnet", 1, 10);
    e.tensors[e.count++] = (StTensor){ .name = "fc2.weight", .dtype = "F32", .ndim = 1 };
    expect_refused(edit_end(&e), "convnet", false, "tensor fc2.weight is not part of a convnet",
                   "");
    expect_refused(test_path("nobody.st"), "lenet", true, "open: No such file", "path");
}

static const float not_a_number[16] = { 0, 0, 0, NAN }, infinite[16] = { INFINITY };
static const double nan_real = NAN, over_100 = 101, zero = 0;
static const int64_t minus_one = -1;

static const struct {
    const char *name, *dtype;   // dtype, data: NULL: unchanged
    int64_t rows;               // 0: unchanged, -1: tensor missing
    const void *data;
    bool weights;               // refused even when only the weights are loaded
    const char *says, *hint;
} wrong[] = {
    { "bn2.running_var", NULL, -1, NULL, true, "tensor bn2.running_var is missing", "--arch" },
    { "ddp.momentum.fc.bias", NULL, -1, NULL, false, "is missing", "--init" },
    { "ddp.seed", NULL, -1, NULL, false, "tensor ddp.seed is missing", "--init" },
    { "bn1.weight", "I32", 0, NULL, true, "is I32 (16), but must be F32 (16)", "" },
    { "bn1.weight", NULL, 15, NULL, true, "is F32 (15), but must be F32 (16)", "" },
    { "ddp.epoch", "F64", 0, NULL, false, "is F64 (1), but must be I64 (1)", "--init" },
    { "bn1.weight", NULL, 0, not_a_number, true, "bn1.weight: element 3 is not", "diverged" },
    { "bn1.running_var", NULL, 0, infinite, true, "bn1.running_var: element 0", "diverged" },
    { "ddp.momentum.bn1.weight", NULL, 0, infinite, false, "element 0 is not", "diverged" },
    { "ddp.epoch", NULL, 0, &minus_one, false, "ddp.epoch is -1, which is out of", "" },
    { "ddp.best_top1", NULL, 0, &nan_real, false, "which is out of range", "" },
    { "ddp.best_top1", NULL, 0, &over_100, false, "which is out of range", "" },
    { "ddp.loss_scale", NULL, 0, &zero, false, "which is out of range", "" },
};

TEST(a_wrong_tensor)
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Edit e;
        edit_begin(&e, "convnet", 1, 10);
        StTensor *t = edit_find(&e, wrong[i].name);
        if (wrong[i].dtype)
            t->dtype = wrong[i].dtype;
        if (wrong[i].data)
            t->data = wrong[i].data;
        if (wrong[i].rows > 0) {
            t->bytes = t->bytes / (size_t)t->shape[0] * (size_t)wrong[i].rows;
            t->shape[0] = wrong[i].rows;
        } else if (wrong[i].rows < 0) {
            edit_remove(&e, wrong[i].name);
        }
        expect_refused(edit_end(&e), "convnet", !wrong[i].weights, wrong[i].says, wrong[i].hint);
    }
}

TEST(only_weights)
{
    Edit e;
    Error err = { "", "" };
    edit_begin(&e, "convnet", 1, 10);
    edit_remove(&e, "ddp.");
    const char *path = edit_end(&e);
    expect_refused(path, "convnet", true, "ddp.seed is missing", "--init");
    Run r = new_run("convnet", 1, 10, 5);
    EXPECT(load_weights(&r, path, &err), "%s", err.text);
    EXPECT_EQ_INT(r.model->batches_seen, 101);

    edit_begin(&e, "convnet", 1, 10); // as from a PyTorch that does not count batches
    edit_remove(&e, "ddp.");
    edit_remove(&e, "bn1.num");
    edit_remove(&e, "bn2.num");
    EXPECT(load_weights(&r, edit_end(&e), &err), "%s", err.text);
    EXPECT_EQ_INT(r.model->batches_seen, 0);

    edit_begin(&e, "convnet", 1, 10); // as from an earlier version, without this number
    edit_remove(&e, "ddp.order");
    EXPECT(load(&r, edit_end(&e), &err), "%s", err.text);
    EXPECT(r.state.running.count == 4352 && r.state.order == 0, "a number that the file lacks");
    free_run(&r);
}

// The header's length need not be a multiple of 8.
TEST(unaligned_data)
{
    Error err = { "", "" };
    StFile file;
    uint64_t header;
    Run a = new_run("lenet", 1, 10, 1), b = new_run("lenet", 1, 10, 2);
    const char *path = test_path("odd.st");
    if (!EXPECT(save(&a, path, &err) && st_open(&file, path, &err), "%s", err.text))
        return;
    memcpy(&header, file.bytes, 8);
    size_t longer = (size_t)header + 1;
    FILE *out = fopen(path, "w");
    fwrite(&longer, 8, 1, out);
    fwrite(file.bytes + 8, 1, header, out);
    fputc(' ', out);
    fwrite(file.bytes + 8 + header, 1, file.size - 8 - header, out);
    fclose(out);
    EXPECT(load(&b, path, &err) && same_runs(&a, &b), "%s", err.text);
    st_close(&file);
    free_run(&a);
    free_run(&b);
}

TEST(a_diverged_run_is_not_saved)
{
    Error err = { "", "" };
    const char *path = test_path("well.st");
    Run r = new_run("lenet", 1, 10, 1), back = new_run("lenet", 1, 10, 2);
    EXPECT(save(&r, path, &err), "%s", err.text);
    float *velocity = r.optim->arenas[0].values, good = velocity[0];
    velocity[0] = NAN;
    EXPECT(!save(&r, path, &err) && strstr(err.text, "well.st: not saved: ddp.momentum.fc3.")
               && strstr(err.text, "is not finite"), "error: %s", err.text);
    velocity[0] = good;
    r.state.loss_scale = INFINITY;
    EXPECT(!save(&r, path, &err) && strstr(err.text, "ddp.loss_scale is inf"), "%s", err.text);
    r.state.loss_scale = 32768;
    EXPECT(load(&back, path, &err) && same_runs(&r, &back), "%s", err.text);
    free_run(&r);
    free_run(&back);
}

// --- resuming ------------------------------------------------------------------------------------

// Saved after `step` steps of epoch 4 with a global batch of 256. `batch`, `steps`: the resumed run's global batch, and
// its steps per epoch.
static const struct {
    int step, batch, steps, seed;
    int next;                   // the step of epoch 4 at which it resumes; -1: refused
    const char *says;           // the error or warning; NULL: none
    int saved_order, order;     // 0: the file does not give it
} continued[] = {
    { 6, 256, 10, 7, 6, NULL },
    { 6, 256, 6, 7, 6, NULL },              // the epoch is trained, but not evaluated
    { 6, 256, 5, 7, -1, "after step 6 of an epoch that now has only 5" },
    { 0, 256, 10, 8, -1, "--seed 7, not 8" },
    { 6, 256, 10, 8, -1, "--seed 7, not 8" },
    { 6, 128, 20, 7, 0, "net: global batch 256 -> 128: epoch 4 begins again\nhint: adapt the learning rate" },
    { 6, 1024, 3, 7, 0, "net: global batch 256 -> 1024: epoch 4 begins again\n" },
    { 0, 128, 20, 7, 0, "net: global batch 256 -> 128\n" },
    { 6, 256, 10, 7, 6, NULL, .saved_order = 1, .order = 1 },
    { 6, 256, 10, 7, 6, NULL, .saved_order = 0, .order = 1 },
    { 0, 256, 10, 7, 0, NULL, .saved_order = 1, .order = 2 },
    { 6, 256, 10, 7, -1, "an epoch with different samples", .saved_order = 1, .order = 2 },
    { 6, 128, 20, 7, 0, "epoch 4 begins again", .saved_order = 1, .order = 2 },
};

// checkpoint_continue; what it prints goes to `said`.
static bool continues(const char *path, const char *save, TrainState *saved, const TrainState *run, int steps,
                      char said[1024], Error *err)
{
    const char *out = test_path("said");
    int kept = dup(STDERR_FILENO), fd = open(out, O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDERR_FILENO);
    bool ok = checkpoint_continue(path, save, saved, run, steps, err);
    dup2(kept, STDERR_FILENO);
    close(kept);
    memset(said, 0, 1024);
    if (pread(fd, said, 1023, 0) < 0)
        FAIL("", "%s", out);
    close(fd);
    return ok;
}

static void continue_run(int i)
{
    TrainState saved = { .seed = 7, .epoch = 3, .step = continued[i].step, .batch_size = 256,
                         .order = continued[i].saved_order, .best_top1 = 60, .running.count = 99 };
    TrainState run = { .seed = continued[i].seed, .batch_size = continued[i].batch, .order = continued[i].order };
    Error err = { "", "" };
    char said[1024];
    bool ok = continues("net", NULL, &saved, &run, continued[i].steps, said, &err);
    bool again = ok && run.batch_size != 256;
    EXPECT(ok == (continued[i].next >= 0), "case %d: %s", i, err.text);
    EXPECT(continued[i].says ? strstr(ok ? said : err.text, continued[i].says) != NULL : !said[0],
           "case %d: printed: %s%s", i, said, err.text);
    EXPECT(saved.epoch == 3 && saved.step == (ok ? continued[i].next : continued[i].step)
               && saved.running.count == (again ? 0 : 99) && saved.best_top1 == 60, "case %d: epoch %lld, step %lld", i,
           (long long)saved.epoch, (long long)saved.step);
}

// best_top1 is the score of the .best beside the file that this run saves.
TEST(the_best_score_belongs_to_a_file)
{
    static const struct { const char *save; bool best; double wanted; } cases[] = {
        { "mine", true, 60 }, { "mine", false, -1 }, { "other", true, -1 }, { "other", false, -1 }, { NULL, false, 60 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char mine[256], save[256] = "", best[300], said[1024];
        TrainState saved = { .batch_size = 1, .best_top1 = 60 }, run = { .batch_size = 1 };
        Error err;
        snprintf(mine, sizeof mine, "%s", test_path("mine"));
        if (cases[i].save)
            snprintf(save, sizeof save, "%s", test_path(cases[i].save));
        snprintf(best, sizeof best, "%s.best", save);
        const char *files[] = { mine, save, best };
        for (int k = 0; k < (cases[i].best ? 3 : cases[i].save ? 2 : 1); k++) {
            FILE *file = fopen(files[k], "w");
            fputs("weights", file);
            fclose(file);
        }
        EXPECT(continues(mine, cases[i].save ? save : NULL, &saved, &run, 1, said, &err), "%s", err.text);
        EXPECT(saved.best_top1 == cases[i].wanted, "case %zu: %g", i, saved.best_top1);
        unlink(best);
    }
}

TEST(resuming)
{
    for (int i = 0; i < (int)(sizeof continued / sizeof *continued); i++)
        continue_run(i);
}

int main(void)
{
    config = optim_defaults();
    test_open_device(1, (OpsConfig){ 0 });
    test_all();
    test_close_device();
    return test_done();
}
