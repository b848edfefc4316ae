// test_checkpoint.c - saving and loading a training run, and refusing files that do not fit.
#include "check.h"
#include "checkpoint.h"
#include "checkpoint/safetensors.h"
#include "test_device.h"
#include <math.h>
#include <unistd.h>

// --- a run in the middle of training -------------------------------------------------------------

typedef struct Run {
    Model *model;
    Optim *optim;
    TrainState state;
} Run;

// Each seed, tensor and arena has its own numbers, so that a mix-up shows. A CPU "device" uses host memory, so the test
// can compare it directly.
static Run new_run(const char *arch, const char *optim, int seed)
{
    static OptimConfig configs[2];
    OptimConfig *config = &configs[strcmp(optim, "sgd") == 0];
    Run r = { .model = model_new(device, ops, &(ModelConfig){ arch, 1, 28, 28, 10, .batch = 2 }) };
    Model *m = r.model;
    *config = optim_defaults();
    config->name = optim;
    model_init(m, seed);
    r.optim = optim_new(config, m);
    for (int i = 0; i < m->tensor_count; i++) {
        const ModelTensor *t = &m->tensors[i];
        float *values = xmalloc((size_t)t->count * sizeof *values);
        for (int k = 0; k < r.optim->arena_count && t->kind != MODEL_COUNTER; k++) {
            for (int64_t j = 0; j < t->count; j++)
                values[j] = (float)(seed + 1 + 8 * k) * 0.001f * (float)(i * 7 + j % 1000 + 1);
            model_import(m, t, t->kind == MODEL_BUFFER ? m->buffers : r.optim->arenas[k].values, values);
        }
        free(values);
    }
    r.state = (TrainState){
        .seed = seed, .epoch = 3, .step = 17, .global_step = 605, .batch_size = 256,
        .best_top1 = 61.25 + seed, .loss_scale = 32768, .clean_steps = 1723, .skipped_steps = 1 + seed, .order = 7,
        .running = { .loss_sum = 1234.5678, .count = 4352, .correct1 = 1700, .correct5 = 3900 } };
    return r;
}

static void free_run(Run *r)
{
    optim_free(r->optim);
    model_free(r->model);
}

static bool same_floats(const float *a, const float *b, size_t count) { return memcmp(a, b, count * sizeof *a) == 0; }

static bool same_weights(const Run *a, const Run *b)
{
    return same_floats(a->model->params, b->model->params, a->model->param_count)
           && same_floats(a->model->buffers, b->model->buffers, a->model->buffer_count);
}

static bool same_rest(const Run *a, const Run *b)
{
    bool same = memcmp(&a->state, &b->state, sizeof a->state) == 0;
    for (int i = 0; i < a->optim->arena_count; i++)
        same = same && same_floats(a->optim->arenas[i].values, b->optim->arenas[i].values, a->model->param_count);
    return same;
}

static bool save(const Run *r, const char *path, Error *err)
{
    return checkpoint_save(path, r->model, r->optim, &r->state, err);
}

static bool load(Run *r, const char *path, bool whole, Error *err)
{
    return checkpoint_load(path, r->model, whole ? r->optim : NULL, whole ? &r->state : NULL, err);
}

TEST(round_trips)
{
    for (int i = 0; i < 3; i++) {
        const char *arch = i ? "convnet" : "lenet", *optim = i == 2 ? "adamw" : "sgd", *path = test_path("first.st");
        Error err = { "", "" };
        Run a = new_run(arch, optim, 1), b = new_run(arch, optim, 2);
        Run c = new_run(arch, i == 2 ? "sgd" : "adamw", 3), before = new_run(arch, i == 2 ? "sgd" : "adamw", 3);
        EXPECT(!same_weights(&a, &b) && !same_rest(&a, &b), "%s: two runs are the same", arch);
        EXPECT(save(&a, path, &err) && load(&b, path, true, &err), "%s: %s", arch, err.text);
        EXPECT(same_weights(&a, &b) && same_rest(&a, &b), "%s, %s: not the saved run", arch, optim);
        EXPECT(!load(&c, path, true, &err) && same_weights(&c, &before), "%s: another optimizer's", arch);
        EXPECT(load(&c, path, false, &err) && same_weights(&a, &c), "%s: %s", arch, err.text);     // --init
        EXPECT(same_rest(&c, &before), "%s: loading weights changed the rest", arch);
        free_run(&a);
        free_run(&b);
        free_run(&c);
        free_run(&before);
    }
}

// --- files that do not fit -----------------------------------------------------------------------

static const float infinite[16] = { 0, 0, INFINITY };
static const double zero = 0;
static const int64_t minus_one = -1;

typedef struct Edit {
    const char *name;           // of the tensor that is changed; "ddp." means all of the state and the optimizer
    const char *dtype;          // NULL: unchanged. The same holds for data
    int64_t rows;               // 0: unchanged, -1: tensor missing
    const void *data;
    bool weights;               // refused also (or accepted only) if only the weights are loaded
} Edit;

static const Edit refused[] = {
    { "bn2.running_var", NULL, -1, NULL, true },
    { "ddp.momentum.fc.bias", NULL, -1, NULL, false },
    { "ddp.batch_size", NULL, -1, NULL, false },
    { "bn1.weight", "I32", 0, NULL, true },
    { "bn1.weight", NULL, 15, NULL, true },
    { "bn1.running_var", NULL, 0, infinite, true },
    { "ddp.epoch", NULL, 0, &minus_one, false },
    { "ddp.loss_scale", NULL, 0, &zero, false },
};
static const Edit accepted[] = {
    { "ddp.", NULL, -1, NULL, true },               // as from PyTorch
    { "bn1.num_batches_tracked", NULL, -1, NULL },  // as from a PyTorch that does not count batches
    { "ddp.order", NULL, -1, NULL },                // as from an earlier version
};

// The file of a run of arch, with this change, and with `more` tensors.
static const char *edited(const char *arch, const Edit *edit, int more)
{
    const char *path = test_path("edited.st");
    Error err;
    StFile file;
    StTensor tensors[80];
    int count = 0, changed = 0;
    Run r = new_run(arch, "sgd", 1);
    if (!save(&r, path, &err) || !st_open(&file, path, &err))
        FAIL_ERROR(&err);
    free_run(&r);
    for (int i = 0; i < file.count; i++) {
        StTensor t = file.tensors[i];
        bool all = edit && strcmp(edit->name, "ddp.") == 0;
        if (edit && (all ? strncmp(t.name, "ddp.", 4) : strcmp(t.name, edit->name)) == 0) {
            changed++;
            if (edit->rows < 0)
                continue;
            t.dtype = edit->dtype ? edit->dtype : t.dtype;
            t.data = edit->data ? edit->data : t.data;
            t.bytes = edit->rows > 0 ? t.bytes / (size_t)t.shape[0] * (size_t)edit->rows : t.bytes;
            t.shape[0] = edit->rows > 0 ? edit->rows : t.shape[0];
        }
        tensors[count++] = t;
    }
    EXPECT(!edit || changed > 0, "there is no %s", edit ? edit->name : "");
    if (more > 0)
        tensors[count++] = (StTensor){ .name = "fc2.weight", .dtype = "F32", .ndim = 1, .data = "" };
    if (!st_write(path, tensors, count, (const char *const[][2]){ { "ddp.arch", arch } }, 1, &err))
        FAIL_ERROR(&err);
    st_close(&file);
    return path;
}

static void expect_refused(const char *path, bool whole, const char *says)
{
    Error err = { "", "" };
    Run r = new_run("convnet", "sgd", 5), untouched = new_run("convnet", "sgd", 5);
    EXPECT(!load(&r, path, whole, &err) && strstr(err.text, path) && strstr(err.text, says), "%s: the error is '%s'",
           says, err.text);
    EXPECT(same_weights(&r, &untouched) && same_rest(&r, &untouched), "a refused file changed the run (%s)", says);
    free_run(&r);
    free_run(&untouched);
}

TEST(a_wrong_tensor)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        for (int whole = refused[i].weights ? 0 : 1; whole < 2; whole++)
            expect_refused(edited("convnet", &refused[i], 0), whole, refused[i].name);
    expect_refused(edited("convnet", NULL, 1), false, " that a convnet does not have");
    expect_refused(edited("lenet", NULL, 0), false, "ddp.arch is 'lenet', but must be 'convnet'");
}

TEST(a_missing_tensor)
{
    Run a = new_run("convnet", "sgd", 1);
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        Error err = { "", "" };
        bool whole = !accepted[i].weights;
        Run b = new_run("convnet", "sgd", 2);
        EXPECT(load(&b, edited("convnet", &accepted[i], 0), whole, &err) && same_weights(&a, &b), "%s", err.text);
        EXPECT(!whole || (b.state.seed == 1 && b.state.order == (i == 2 ? 0 : 7)), "the state");
        free_run(&b);
    }
    free_run(&a);
}

TEST(a_diverged_run_is_not_saved)
{
    Error err = { "", "" };
    const char *path = test_path("well.st");
    Run r = new_run("lenet", "sgd", 1), back = new_run("lenet", "sgd", 2);
    EXPECT(save(&r, path, &err), "%s", err.text);
    float *velocity = r.optim->arenas[0].values, good = velocity[0];
    velocity[0] = NAN;
    EXPECT(!save(&r, path, &err) && strstr(err.text, "well.st: not saved: ddp.momentum.fc3."), "%s", err.text);
    velocity[0] = good;
    EXPECT(load(&back, path, true, &err) && same_weights(&r, &back) && same_rest(&r, &back), "%s", err.text);
    free_run(&r);
    free_run(&back);
}

// --- resuming ------------------------------------------------------------------------------------

// Saved with seed 7 after `step` steps of epoch 4 with a global batch of 256. `batch`, `steps`: the resumed run's
// global batch, and its steps per epoch.
static const struct {
    int step, batch, steps, seed;
    int next;                   // the step of epoch 4 at which it resumes; -1: refused
    int saved_order, order;     // 0: the file does not give it
} continued[] = {
    { 6, 256, 6, 7, 6 },        // the epoch is trained, but not evaluated
    { 0, 256, 10, 8, -1 },
    { 6, 256, 10, 8, -1 },
    { 6, 128, 20, 7, 0 },       // begins the epoch again
    { 6, 256, 10, 7, 6, .saved_order = 1, .order = 1 },
    { 6, 256, 10, 7, 6, .saved_order = 0, .order = 1 },
    { 0, 256, 10, 7, 0, .saved_order = 1, .order = 2 },
    { 6, 256, 10, 7, -1, .saved_order = 1, .order = 2 },
    { 6, 128, 20, 7, 0, .saved_order = 1, .order = 2 },
};

TEST(resuming)
{
    for (int i = 0; i < (int)(sizeof continued / sizeof *continued); i++) {
        TrainState saved = { .seed = 7, .epoch = 3, .step = continued[i].step, .batch_size = 256,
                             .order = continued[i].saved_order, .best_top1 = 60, .running.count = 99 };
        TrainState run = { .seed = continued[i].seed, .batch_size = continued[i].batch, .order = continued[i].order };
        Error err = { "", "" };
        bool ok = checkpoint_continue("net", NULL, &saved, &run, continued[i].steps, &err);
        EXPECT(ok == (continued[i].next >= 0), "case %d: %s", i, err.text);
        EXPECT(!ok || (saved.epoch == 3 && saved.step == continued[i].next && saved.best_top1 == 60
                       && saved.running.count == (run.batch_size == 256 ? 99 : 0)), "case %d: step %d", i,
               (int)saved.step);
    }
}

// best_top1 is the score of the .best file beside the checkpoint that this run saves.
TEST(the_best_score_belongs_to_a_file)
{
    const char *mine = test_file("mine", "weights", 7), *other = test_file("other", "weights", 7);
    for (int best = 0; best < 2; best++) {      // is there a mine.best?
        const struct { const char *save; double wanted; } cases[] = { { mine, best ? 60 : -1 }, { other, -1 },
                                                                      { NULL, 60 } };
        for (int i = 0; i < 3; i++) {
            TrainState saved = { .batch_size = 1, .best_top1 = 60 }, run = { .batch_size = 1 };
            Error err;
            EXPECT(checkpoint_continue(mine, cases[i].save, &saved, &run, 1, &err), "%s", err.text);
            EXPECT(saved.best_top1 == cases[i].wanted, "case %d, %d: %g", best, i, saved.best_top1);
        }
        test_file("mine.best", "", 0);
        test_file("other.best", "", 0);
    }
    TrainState saved = { .batch_size = 1, .best_top1 = 60 }, run = saved;
    Error err;
    EXPECT(checkpoint_continue(test_path("mine.best"), test_path("mine"), &saved, &run, 1, &err), "%s", err.text);
    EXPECT(saved.best_top1 == 60, "from the best itself: %g", saved.best_top1);
}

TEST_MAIN_ON_DEVICE(1, 0)
