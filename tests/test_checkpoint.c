// test_checkpoint.c - a training run to a file and back, and files that are not what they should.
#include "check.h"
#include "checkpoint.h"
#include "checkpoint/safetensors.h"
#include "test.h"
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static Device *device;
static Ops *ops;

static Model *new_model(const char *arch, int channels, int size, int classes)
{
    return model_new(device, ops,
                     &(ModelConfig){ .arch = arch,
                                     .channels = channels,
                                     .height = size,
                                     .width = size,
                                     .classes = classes,
                                     .batch = 2 });
}

// --- a run in the middle of its life -------------------------------------------------------------

typedef struct Run {
    Model *model;
    float *velocity;
    TrainState state;
} Run;

// Every number of it different, so that nothing can be mistaken for something else.
static Run new_run(const char *arch, int channels, int size, int classes, int seed)
{
    Run r = { .model = new_model(arch, channels, size, classes) };
    Model *m = r.model;
    model_init(m, seed);
    m->batches_seen = 100 + seed;
    r.velocity = device_alloc(device, m->param_count * sizeof(float));
    for (int i = 0; i < m->tensor_count; i++) { // on the CPU, device memory is memory
        const ModelTensor *t = &m->tensors[i];
        float *values = xmalloc((size_t)t->count * sizeof *values);
        for (int64_t j = 0; j < t->count; j++)
            values[j] = (float)(seed + 1) * 0.001f * (float)(i * 7 + j % 1000 + 1);
        if (t->kind == MODEL_BUFFER)
            model_import(m, t, m->buffers, values);
        else if (t->kind != MODEL_COUNTER)
            model_import(m, t, r.velocity, values);
        free(values);
    }
    r.state = (TrainState){ .seed = seed,
                            .epoch = 3,
                            .step = 17,
                            .global_step = 605,
                            .batch_size = 256,
                            .best_top1 = 61.25 + seed,
                            .loss_scale = 32768,
                            .clean_steps = 1723,
                            .skipped_steps = 1 + seed,
                            .ranks = 4,
                            .running = { .loss_sum = 1234.5678,
                                         .count = 4352,
                                         .correct1 = 1700,
                                         .correct5 = 3900,
                                         .not_finite = 0,
                                         .bad_gradients = 2 } };
    return r;
}

static void free_run(Run *r)
{
    device_free(device, r->velocity);
    model_free(r->model);
}

static bool same_floats(const float *a, const float *b, size_t count)
{
    return memcmp(a, b, count * sizeof *a) == 0;
}

static bool same_runs(const Run *a, const Run *b)
{
    return same_floats(a->model->params, b->model->params, a->model->param_count) &&
           same_floats(a->model->buffers, b->model->buffers, a->model->buffer_count) &&
           same_floats(a->velocity, b->velocity, a->model->param_count) &&
           (a->model->batches_seen == b->model->batches_seen || a->model->buffer_count == 0) &&
           memcmp(&a->state, &b->state, sizeof a->state) == 0;
}

static bool save(const Run *r, const char *path, Error *err)
{
    return checkpoint_save(path, r->model, r->velocity, &r->state, "cifar10", err);
}

static bool load(Run *r, const char *path, Error *err)
{
    return checkpoint_load(path, r->model, r->velocity, &r->state, err);
}

static bool load_weights(Run *r, const char *path, Error *err)
{
    return checkpoint_load(path, r->model, NULL, NULL, err);
}

static int files_in(const char *directory)
{
    int count = 0;
    DIR *dir = opendir(directory);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return count;
}

// --- there and back ------------------------------------------------------------------------------

static void round_trip_of(const char *arch, int channels, int size, int classes)
{
    const char *directory = test_path(arch), *path = test_path("round.safetensors");
    Error err = { "", "" };
    mkdir(directory, 0777);
    char inside[4200];
    snprintf(inside, sizeof inside, "%s/a.safetensors", directory);
    path = inside;
    Run a = new_run(arch, channels, size, classes, 1),
        b = new_run(arch, channels, size, classes, 2);
    EXPECT(!same_runs(&a, &b), "%s: two different runs are the same", arch);
    EXPECT(access(path, F_OK) != 0, "%s is there", path);
    EXPECT(save(&a, path, &err), "%s: %s", arch, err.text);
    EXPECT(save(&a, path, &err), "%s, again: %s", arch, err.text);
    EXPECT(access(path, F_OK) == 0, "%s is not there", path);
    EXPECT_EQ_INT(files_in(directory), 1);
    EXPECT(load(&b, path, &err), "%s: %s", arch, err.text);
    EXPECT(same_runs(&a, &b), "%s: what came back is not what was saved", arch);
    EXPECT(model_hash(a.model) == model_hash(b.model), "%s: another hash", arch);
    free_run(&b);

    b = new_run(arch, channels, size, classes, 3); // weights alone
    TrainState before = b.state;
    EXPECT(load_weights(&b, path, &err), "%s: %s", arch, err.text);
    EXPECT(model_hash(a.model) == model_hash(b.model), "%s: other weights", arch);
    EXPECT(same_floats(a.model->buffers, b.model->buffers, a.model->buffer_count),
           "%s: other buffers", arch);
    EXPECT(!same_floats(a.velocity, b.velocity, a.model->param_count), "%s: momentum came along",
           arch);
    EXPECT(memcmp(&b.state, &before, sizeof before) == 0, "%s: the state came along", arch);
    free_run(&a);
    free_run(&b);
}

TEST(round_trips)
{
    round_trip_of("lenet", 1, 28, 10);
    round_trip_of("convnet", 1, 28, 10);
    round_trip_of("resnet18", 3, 32, 10);
}

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

// The same state gives the same bytes.
TEST(files_are_deterministic)
{
    Error err = { "", "" };
    Run r = new_run("lenet", 1, 28, 10, 1);
    char first[4200];
    snprintf(first, sizeof first, "%s", test_path("one"));
    const char *second = test_path("two");
    EXPECT(save(&r, first, &err) && save(&r, second, &err), "%s", err.text);
    expect_same_files(first, second);
    free_run(&r);
}

// Nor does it change on its way through a run that has been something else.
TEST(saved_loaded_and_saved_again)
{
    Error err = { "", "" };
    char first[4200];
    snprintf(first, sizeof first, "%s", test_path("first"));
    const char *again = test_path("again");
    Run a = new_run("convnet", 1, 28, 10, 1), b = new_run("convnet", 1, 28, 10, 2);
    EXPECT(save(&a, first, &err) && load(&b, first, &err) && save(&b, again, &err), "%s", err.text);
    expect_same_files(first, again);
    EXPECT_EQ_INT(b.state.clean_steps, 1723);
    EXPECT_EQ_INT(b.state.skipped_steps, 2);
    EXPECT_NEAR(b.state.loss_scale, 32768, 0);
    free_run(&a);
    free_run(&b);
}

// As small and as large as it can become, and as odd as somebody asks for.
TEST(loss_scales)
{
    static const double scales[] = { 0x1p-24, 0.5, 1, 1000.1, 65536, 0x1p127 };
    Error err = { "", "" };
    const char *path = test_path("scale");
    Run a = new_run("lenet", 1, 28, 10, 1), b = new_run("lenet", 1, 28, 10, 2);
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++) {
        a.state.loss_scale = scales[i];
        EXPECT(save(&a, path, &err) && load(&b, path, &err), "%g: %s", scales[i], err.text);
        EXPECT(b.state.loss_scale == scales[i], "%g, not %g", b.state.loss_scale, scales[i]);
    }
    free_run(&a);
    free_run(&b);
}

// What PyTorch and its safetensors expect to see.
TEST(contents)
{
    Error err = { "", "" };
    StFile file;
    Run r = new_run("convnet", 1, 28, 10, 1);
    const char *path = test_path("contents");
    if (!EXPECT(save(&r, path, &err) && st_open(&file, path, &err), "%s", err.text))
        return;
    EXPECT_EQ_STR(st_metadata(&file, "format"), "pt");
    EXPECT_EQ_STR(st_metadata(&file, "ddp.arch"), "convnet");
    EXPECT_EQ_STR(st_metadata(&file, "ddp.dataset"), "cifar10");
    static const struct {
        const char *name, *dtype;
        int ndim;
        int64_t shape[4];
    } wanted[] = {
        { "conv1.weight", "F32", 4, { 16, 1, 5, 5 } },
        { "conv1.bias", "F32", 1, { 16 } },
        { "bn1.weight", "F32", 1, { 16 } },
        { "bn1.running_mean", "F32", 1, { 16 } },
        { "bn2.running_var", "F32", 1, { 32 } },
        { "bn1.num_batches_tracked", "I64", 0, { 0 } },
        { "fc.weight", "F32", 2, { 10, 1568 } },
        { "fc.bias", "F32", 1, { 10 } },
        { "ddp.momentum.conv2.weight", "F32", 4, { 32, 16, 5, 5 } },
        { "ddp.momentum.bn2.bias", "F32", 1, { 32 } },
        { "ddp.epoch", "I64", 1, { 1 } },
        { "ddp.step", "I64", 1, { 1 } },
        { "ddp.global_step", "I64", 1, { 1 } },
        { "ddp.seed", "I64", 1, { 1 } },
        { "ddp.batch_size", "I64", 1, { 1 } },
        { "ddp.best_top1", "F64", 1, { 1 } },
        { "ddp.loss_scale", "F64", 1, { 1 } },
        { "ddp.clean_steps", "I64", 1, { 1 } },
        { "ddp.skipped_steps", "I64", 1, { 1 } },
        { "ddp.running.loss_sum", "F64", 1, { 1 } },
        { "ddp.running.count", "I64", 1, { 1 } },
        { "ddp.running.correct1", "I64", 1, { 1 } },
        { "ddp.running.correct5", "I64", 1, { 1 } },
        { "ddp.running.not_finite", "I64", 1, { 1 } },
        { "ddp.running.bad_gradients", "I64", 1, { 1 } },
        { "ddp.ranks", "I64", 1, { 1 } },
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const StTensor *t = st_find(&file, wanted[i].name);
        if (!EXPECT(t != NULL, "%s is not there", wanted[i].name))
            continue;
        EXPECT(strcmp(t->dtype, wanted[i].dtype) == 0 && t->ndim == wanted[i].ndim &&
                   memcmp(t->shape, wanted[i].shape, sizeof wanted[i].shape) == 0,
               "%s is %s with %d dimensions", t->name, t->dtype, t->ndim);
    }
    // 10 parameters and their momentum, 4 running statistics, 2 counters, 16 numbers
    EXPECT_EQ_INT(file.count, 10 + 10 + 4 + 2 + 16);
    int64_t seen;
    memcpy(&seen, st_find(&file, "bn2.num_batches_tracked")->data, 8);
    EXPECT_EQ_INT(seen, 101);
    st_close(&file);
    free_run(&r);
}

// --- files that do not fit -----------------------------------------------------------------------

// A file in hand: tensors may be changed, left out and added before it is written again.
typedef struct Edit {
    StFile file;
    StTensor tensors[64];
    int count;
    char arch[16];
} Edit;

static void edit_begin(Edit *e, const char *path)
{
    Error err;
    if (!st_open(&e->file, path, &err))
        FAIL_ERROR(&err);
    e->count = e->file.count;
    memcpy(e->tensors, e->file.tensors, (size_t)e->count * sizeof *e->tensors);
    snprintf(e->arch, sizeof e->arch, "%s", st_metadata(&e->file, "ddp.arch"));
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

// Writes it, without metadata if there is no arch, and lets the file go.
static const char *edit_end(Edit *e)
{
    static char path[4200];
    Error err;
    const char *const metadata[][2] = { { "format", "pt" }, { "ddp.arch", e->arch } };
    snprintf(path, sizeof path, "%s", test_path("edited.safetensors"));
    if (!st_write(path, e->tensors, e->count, metadata, e->arch[0] ? 2 : 1, &err))
        FAIL_ERROR(&err);
    st_close(&e->file);
    return path;
}

// Loading must fail with these words, and change nothing.
static void expect_refused(const char *path, const char *arch, int channels, int classes,
                           bool whole, const char *says, const char *hint)
{
    Error err = { "", "" };
    Run r = new_run(arch, channels, 28, classes, 5),
        untouched = new_run(arch, channels, 28, classes, 5);
    bool ok = whole ? load(&r, path, &err) : load_weights(&r, path, &err);
    EXPECT(!ok, "loaded what should say '%s'", says);
    EXPECT(strstr(err.text, says) != NULL, "says '%s', not '%s'", err.text, says);
    EXPECT(strncmp(err.text, path, strlen(path)) == 0, "does not name the file: %s", err.text);
    EXPECT(strstr(err.hint, hint) != NULL, "the hint is '%s', not '%s'", err.hint, hint);
    EXPECT(same_runs(&r, &untouched), "changed by a file that was refused (%s)", says);
    free_run(&r);
    free_run(&untouched);
}

// Saves a run and keeps it open in e.
static void begin_with(Edit *e, const char *arch, int channels, int classes)
{
    Error err;
    Run r = new_run(arch, channels, 28, classes, 1);
    const char *path = test_path("begin.safetensors");
    if (!save(&r, path, &err))
        FAIL_ERROR(&err);
    free_run(&r);
    edit_begin(e, path);
}

TEST(another_model)
{
    Edit e;
    begin_with(&e, "lenet", 1, 10);
    expect_refused(edit_end(&e), "convnet", 1, 10, false,
                   "tensor conv1.weight is F32 (6, 1, 5, 5), and must be "
                   "F32 (16, 1, 5, 5)",
                   "this file holds a lenet with 10 classes; use --arch lenet");
    begin_with(&e, "lenet", 1, 100);
    expect_refused(edit_end(&e), "lenet", 1, 10, true,
                   "tensor fc3.weight is F32 (100, 84), and must be F32 (10, 84)",
                   "this file holds a lenet with 100 classes, but the data set has 10");
    begin_with(&e, "lenet", 3, 10);
    expect_refused(edit_end(&e), "lenet", 1, 10, true, "tensor conv1.weight is F32 (6, 3, 5, 5)",
                   "for images with 3 channels, but these have 1");
    begin_with(&e, "convnet", 1, 10);
    e.arch[0] = '\0'; // nobody says what it is; its tensors do
    expect_refused(edit_end(&e), "lenet", 1, 10, false, "conv1.weight", "use --arch convnet");
    Run r = new_run("lenet", 1, 28, 10, 1);
    Error err;
    const char *path = test_path("dataset.safetensors");
    EXPECT(checkpoint_save(path, r.model, r.velocity, &r.state, "mnist", &err), "%s", err.text);
    expect_refused(path, "lenet", 1, 26, true, "fc3.weight",
                   "trained on mnist, but the data set has 26");
    free_run(&r);
}

TEST(names_missing_and_too_many)
{
    Edit e;
    begin_with(&e, "convnet", 1, 10);
    edit_remove(&e, "bn2.running_var");
    expect_refused(edit_end(&e), "convnet", 1, 10, true, "tensor bn2.running_var is not there",
                   "not made for");
    begin_with(&e, "convnet", 1, 10);
    e.tensors[e.count++] =
        (StTensor){ .name = "fc2.weight", .dtype = "F32", .ndim = 1, .shape = { 0 } };
    expect_refused(edit_end(&e), "convnet", 1, 10, false,
                   "tensor fc2.weight has no place in a convnet", "");
    begin_with(&e, "convnet", 1, 10);
    edit_remove(&e, "ddp.momentum.fc.bias");
    expect_refused(edit_end(&e), "convnet", 1, 10, true, "tensor ddp.momentum.fc.bias is not there",
                   "--init");
    static const char *const numbers[] = { "ddp.seed",
                                           "ddp.epoch",
                                           "ddp.step",
                                           "ddp.global_step",
                                           "ddp.batch_size",
                                           "ddp.best_top1",
                                           "ddp.loss_scale",
                                           "ddp.running.loss_sum",
                                           "ddp.running.count",
                                           "ddp.running.correct1",
                                           "ddp.running.correct5",
                                           "ddp.running.not_finite" };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char says[64];
        begin_with(&e, "lenet", 1, 10);
        edit_remove(&e, numbers[i]);
        snprintf(says, sizeof says, "tensor %s is not there", numbers[i]);
        expect_refused(edit_end(&e), "lenet", 1, 10, true, says, "--init");
    }
}

// As from a program that did not count them yet.
TEST(a_number_that_is_younger)
{
    Edit e;
    Error err = { "", "" };
    begin_with(&e, "lenet", 1, 10);
    edit_remove(&e, "ddp.running.bad_gradients");
    edit_remove(&e, "ddp.ranks");
    edit_remove(&e, "ddp.clean_steps");
    edit_remove(&e, "ddp.skipped_steps");
    Run r = new_run("lenet", 1, 28, 10, 5);
    EXPECT(load(&r, edit_end(&e), &err), "%s", err.text);
    EXPECT_EQ_INT(r.state.running.count, 4352);
    EXPECT_EQ_INT(r.state.running.bad_gradients, 0);
    EXPECT_EQ_INT(r.state.ranks, 0);
    EXPECT_EQ_INT(r.state.clean_steps, 0);
    EXPECT_EQ_INT(r.state.skipped_steps, 0);
    EXPECT_NEAR(r.state.loss_scale, 32768, 0);

    begin_with(&e, "lenet", 1, 10);     // and the other one is what it was
    edit_remove(&e, "ddp.clean_steps");
    EXPECT(load(&r, edit_end(&e), &err), "%s", err.text);
    EXPECT_EQ_INT(r.state.clean_steps, 0);
    EXPECT_EQ_INT(r.state.skipped_steps, 2);
    free_run(&r);

    static const char *const damaged[][2] = {
        { "ddp.running.bad_gradients", "ddp.running.bad_gradientt" },
        { "ddp.clean_steps", "ddp.clean_stepz" },
        { "ddp.skipped_steps", "ddp.skipped_steps." },
    };
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        begin_with(&e, "lenet", 1, 10);
        edit_find(&e, damaged[i][0])->name = damaged[i][1];
        expect_refused(edit_end(&e), "lenet", 1, 10, true,
                       "16 tensors are called ddp.*, but only 15", "--init");
    }
}

TEST(only_weights)
{
    Edit e;
    Error err = { "", "" };
    begin_with(&e, "convnet", 1, 10);
    edit_remove(&e, "ddp.");
    const char *path = edit_end(&e);
    expect_refused(path, "convnet", 1, 10, true, "ddp.momentum.", "--init");
    Run r = new_run("convnet", 1, 28, 10, 5);
    EXPECT(load_weights(&r, path, &err), "%s", err.text);
    EXPECT_EQ_INT(r.model->batches_seen, 101);

    begin_with(&e, "convnet", 1, 10); // as from a PyTorch that did not count batches yet
    edit_remove(&e, "ddp.");
    edit_remove(&e, "bn1.num");
    edit_remove(&e, "bn2.num");
    EXPECT(load_weights(&r, edit_end(&e), &err), "%s", err.text);
    EXPECT_EQ_INT(r.model->batches_seen, 0);
    free_run(&r);
}

static const float bad_floats[16] = { 0, 0, 0, NAN }, infinite[16] = { INFINITY };

TEST(types_and_values)
{
    Edit e;
    begin_with(&e, "convnet", 1, 10);
    memcpy(edit_find(&e, "bn1.weight")->dtype, "I32", 4);
    expect_refused(edit_end(&e), "convnet", 1, 10, false,
                   "bn1.weight is I32 (16), and must be F32 (16)", "");
    begin_with(&e, "convnet", 1, 10);
    edit_find(&e, "bn1.weight")->data = bad_floats;
    expect_refused(edit_end(&e), "convnet", 1, 10, false, "bn1.weight: element 3 is not finite",
                   "diverged");
    begin_with(&e, "convnet", 1, 10);
    edit_find(&e, "bn1.running_var")->data = infinite;
    expect_refused(edit_end(&e), "convnet", 1, 10, false,
                   "bn1.running_var: element 0 is not finite", "");
    begin_with(&e, "convnet", 1, 10);
    edit_find(&e, "ddp.momentum.bn1.weight")->data = infinite;
    expect_refused(edit_end(&e), "convnet", 1, 10, true, "ddp.momentum.bn1.weight: element 0",
                   "--init");
    begin_with(&e, "convnet", 1, 10);
    edit_find(&e, "bn2.num_batches_tracked")->data = &(int64_t){ 7 };
    expect_refused(edit_end(&e), "convnet", 1, 10, false,
                   "bn2.num_batches_tracked is 7, but others are 101", "");
    begin_with(&e, "convnet", 1, 10);
    StTensor *t = edit_find(&e, "bn1.weight");
    t->ndim = 2, t->shape[0] = 4, t->shape[1] = 4;
    expect_refused(edit_end(&e), "convnet", 1, 10, false, "is F32 (4, 4), and must be F32 (16)",
                   "");
    begin_with(&e, "convnet", 1, 10);
    memcpy(edit_find(&e, "ddp.epoch")->dtype, "F64", 4);
    expect_refused(edit_end(&e), "convnet", 1, 10, true, "ddp.epoch is 8 bytes of F64", "");
    begin_with(&e, "convnet", 1, 10);
    t = edit_find(&e, "ddp.epoch");
    t->bytes = t->shape[0] = 0;
    expect_refused(edit_end(&e), "convnet", 1, 10, true, "ddp.epoch is 0 bytes of I64", "");
    begin_with(&e, "convnet", 1, 10);
    memcpy(edit_find(&e, "ddp.clean_steps")->dtype, "F64", 4);
    expect_refused(edit_end(&e), "convnet", 1, 10, true, "ddp.clean_steps is 8 bytes of F64", "");
    begin_with(&e, "convnet", 1, 10);
    t = edit_find(&e, "ddp.skipped_steps");
    t->bytes = t->shape[0] = 0;
    expect_refused(edit_end(&e), "convnet", 1, 10, true, "ddp.skipped_steps is 0 bytes of I64", "");
}

TEST(states_that_no_run_has)
{
    static const struct {
        const char *name;
        int64_t integer;
        double real;
    } wrong[] = {
        { "ddp.seed", -1, 0 },
        { "ddp.epoch", -1, 0 },
        { "ddp.epoch", INT64_MAX, 0 },
        { "ddp.step", -1, 0 },
        { "ddp.step", (int64_t)1 << 40, 0 },
        { "ddp.global_step", INT64_MIN, 0 },
        { "ddp.batch_size", 0, 0 },
        { "ddp.best_top1", 0, NAN },
        { "ddp.best_top1", 0, 101 },
        { "ddp.best_top1", 0, -2 },
        { "ddp.loss_scale", 0, 0 },
        { "ddp.loss_scale", 0, -1 },
        { "ddp.loss_scale", 0, INFINITY },
        { "ddp.loss_scale", 0, NAN },
        { "ddp.clean_steps", -1, 0 },
        { "ddp.clean_steps", INT64_MAX, 0 },
        { "ddp.skipped_steps", -1, 0 },
        { "ddp.skipped_steps", (int64_t)1 << 31, 0 },
        { "ddp.running.loss_sum", 0, NAN },
        { "ddp.running.loss_sum", 0, INFINITY },
        { "ddp.running.loss_sum", 0, -1 },
        { "ddp.running.count", -1, 0 },
        { "ddp.running.not_finite", -1, 0 },
        { "ddp.running.bad_gradients", -1, 0 },
        { "ddp.ranks", -1, 0 },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Edit e;
        begin_with(&e, "lenet", 1, 10);
        StTensor *t = edit_find(&e, wrong[i].name);
        t->data =
            t->dtype[0] == 'F' ? (const void *)&wrong[i].real : (const void *)&wrong[i].integer;
        expect_refused(edit_end(&e), "lenet", 1, 10, true, "which no healthy run has", "");
    }
    Edit e;
    begin_with(&e, "lenet", 1, 10);
    edit_find(&e, "ddp.running.correct5")->data = &(int64_t){ 5000 };
    expect_refused(edit_end(&e), "lenet", 1, 10, true, "more hits than images", "");
}

// --- going on ------------------------------------------------------------------------------------

typedef struct Continued {
    bool ok;
    TrainState state;           // what it goes on from
    Error err;
    char said[1024];            // on stderr
} Continued;

// A run of `ranks` (0: one process) with this global batch and epochs of `steps` goes on from what
// `saved_ranks` have left after step 6 of 10 (or 0: at the beginning) of epoch 4, global batch 256.
static Continued go_on_with(CheckpointConfig config, int saved_ranks, int step, int batch,
                            int steps)
{
    Continued c = { .state = { .seed = 7, .epoch = 3, .step = step, .global_step = 30 + step,
                               .batch_size = 256, .ranks = saved_ranks,
                               .running.count = 256 * step } };
    TrainState run = { .seed = 7, .batch_size = batch };
    const char *path = test_path("said");
    int kept = dup(STDERR_FILENO), fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDERR_FILENO);
    c.ok = checkpoint_continues(&config, "net", &c.state, &run, steps, &c.err);
    dup2(kept, STDERR_FILENO);
    if (pread(fd, c.said, sizeof c.said - 1, 0) < 0)
        FAIL("", "%s", path);
    close(fd);
    close(kept);
    return c;
}

static Continued go_on(int saved_ranks, int step, int ranks, int batch, int steps)
{
    return go_on_with((CheckpointConfig){ .ranks = ranks }, saved_ranks, step, batch, steps);
}

// It goes on exactly where it was, and says this (NULL: nothing).
static void expect_there(Continued c, const char *says)
{
    EXPECT(c.ok && c.state.epoch == 3 && c.state.running.count == 256 * c.state.step,
           "epoch %lld, step %lld, %s", (long long)c.state.epoch, (long long)c.state.step,
           c.err.text);
    EXPECT(says ? strstr(c.said, says) != NULL : !c.said[0], "said: %s", c.said);
}

static void expect_next_epoch(Continued c, const char *says, const char *hint)
{
    EXPECT(c.ok && c.state.epoch == 4 && c.state.step == 0 && c.state.running.count == 0,
           "epoch %lld, step %lld, %s", (long long)c.state.epoch, (long long)c.state.step,
           c.err.text);
    EXPECT_EQ_INT(c.state.global_step, 36);
    EXPECT(strstr(c.said, says) && strstr(c.said, "; the rest of epoch 4 is left out"), "said: %s",
           c.said);
    EXPECT(strstr(c.said, hint) != NULL, "said: %s", c.said);
}

static void expect_not(Continued c, const char *says)
{
    EXPECT(!c.ok && strstr(c.err.text, says), "says %s", c.err.text);
    EXPECT(c.state.epoch == 3 && !c.said[0], "said: %s", c.said);
}

TEST(goes_on_with_as_many)
{
    expect_there(go_on(0, 6, 0, 256, 10), NULL);
    expect_there(go_on(4, 6, 4, 256, 10), NULL);
    expect_there(go_on(4, 0, 4, 128, 20), NULL);
    expect_there(go_on(4, 6, 0, 256, 10), NULL);        // one process asks for no ranks
    expect_there(go_on(0, 6, 2, 256, 10), NULL);        // an older file, and nothing changes
    expect_not(go_on(0, 6, 0, 128, 20), "in the middle of an epoch of batches of 256, not 128");
    expect_not(go_on(4, 6, 4, 128, 20), "in the middle of an epoch of batches of 256, not 128");
    expect_not(go_on(4, 6, 4, 256, 6), "after step 6 of an epoch, which now has 6");
    expect_not(go_on(0, 6, 2, 256, 6), "after step 6 of an epoch, which now has 6");
}

TEST(goes_on_with_other_ranks)
{
    static const char same[] = "ranks 4 -> 2, global batch 256 -> 256: goes on as before";
    static const char other[] = "ranks 4 -> 2, global batch 256 -> 128; the learning rate";
    expect_next_epoch(go_on(4, 6, 2, 128, 20), "net: ranks 4 -> 2, global batch 256 -> 128",
                      "hint: --lr-scale linear lets the learning rate follow the number of ranks; "
                      "-b 128 would keep the global batch");
    expect_next_epoch(go_on(4, 6, 3, 192, 14), "ranks 4 -> 3", "number of ranks\n");
    expect_next_epoch(go_on(0, 6, 2, 128, 20), "ranks unknown -> 2", "--lr-scale linear");
    expect_next_epoch(go_on(4, 6, 2, 256, 6), "global batch 256 -> 256", "");
    expect_there(go_on(4, 6, 2, 256, 10), same);
    expect_there(go_on(4, 0, 2, 128, 20), other);
    expect_there(go_on(4, 0, 2, 256, 10), same);
}

// Nobody who has given it is told to give it, or that all is as before.
TEST(goes_on_with_lr_scale)
{
    static const char says[] = "; the learning rate is 2 times --lr now (--lr-scale)\n";
    const CheckpointConfig config = { .ranks = 2, .lr_follows = true };
    Continued all[] = { go_on_with(config, 4, 6, 128, 20), go_on_with(config, 4, 0, 128, 20),
                        go_on_with(config, 4, 6, 256, 10) };
    expect_next_epoch(all[0], says, "global batch 256 -> 128");
    expect_there(all[1], says);
    expect_there(all[2], says);
    for (int i = 0; i < 3; i++)
        EXPECT(!strstr(all[i].said, "hint") && !strstr(all[i].said, "before"), "said: %s",
               all[i].said);
}

// The seed decides the order of samples, in the middle of an epoch and in the next one.
TEST(continues_with_the_same_seed)
{
    const TrainState run = { .seed = 8, .batch_size = 256 };
    for (int step = 0; step < 2; step++) {
        Error err = { "", "" };
        TrainState saved = { .seed = 7, .epoch = 3, .step = step, .batch_size = 256 };
        EXPECT(!checkpoint_continues(&(CheckpointConfig){ 0 }, "net", &saved, &run, 10, &err),
               "step %d: accepted", step);
        EXPECT(strstr(err.text, "--seed 7, not 8") != NULL, "says %s", err.text);
    }
}

// A run that has diverged does not overwrite the file of the time when it was well.
TEST(what_is_not_saved)
{
    Error err = { "", "" };
    const char *directory = test_path("sick");
    char path[4200];
    mkdir(directory, 0777);
    snprintf(path, sizeof path, "%s/a.safetensors", directory);
    Run r = new_run("lenet", 1, 28, 10, 1), back = new_run("lenet", 1, 28, 10, 2);
    EXPECT(save(&r, path, &err), "%s", err.text);
    const ModelTensor *t = &r.model->tensors[r.model->tensor_count - 1];
    float good = r.velocity[t->offset];
    r.velocity[t->offset] = NAN;
    EXPECT(!save(&r, path, &err), "saved a NaN");
    EXPECT(strstr(err.text, "not saved: ddp.momentum.fc3.bias: element 0 is not finite") != NULL,
           "says %s", err.text);
    r.velocity[t->offset] = good;
    r.state.running.loss_sum = INFINITY;
    EXPECT(!save(&r, path, &err), "saved an infinite loss");
    EXPECT(strstr(err.text, "ddp.running.loss_sum is inf") != NULL, "says %s", err.text);
    r.state.running.loss_sum = 1234.5678;
    r.state.loss_scale = INFINITY;
    EXPECT(!save(&r, path, &err), "saved an infinite loss scale");
    EXPECT(strstr(err.text, "ddp.loss_scale is inf") != NULL, "says %s", err.text);
    r.state.loss_scale = 32768;
    EXPECT(load(&back, path, &err), "%s", err.text);
    EXPECT(same_runs(&r, &back), "the file is not the one before");
    EXPECT_EQ_INT(files_in(directory), 1);
    free_run(&r);
    free_run(&back);
}

// --- damaged files -------------------------------------------------------------------------------

static void write_bytes(const char *path, const unsigned char *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size)
        FAIL("", "%s", path);
    close(fd);
}

// At every 997th offset, and around the end of the header.
TEST(truncations)
{
    Edit e;
    begin_with(&e, "lenet", 1, 10);
    uint64_t header;
    memcpy(&header, e.file.bytes, 8);
    const char *path = test_path("cut.safetensors");
    Run r = new_run("lenet", 1, 28, 10, 5), untouched = new_run("lenet", 1, 28, 10, 5);
    int loaded = 0;
    for (size_t size = 0; size < e.file.size; size += size < 16                  ? 1
                                                      : size + 997 < e.file.size ? 997
                                                                                 : 1) {
        Error err = { "", "" };
        write_bytes(path, e.file.bytes, size);
        loaded += load(&r, path, &err) || !err.text[0];
    }
    for (size_t size = (size_t)header; size < header + 24; size++) {
        Error err = { "", "" };
        write_bytes(path, e.file.bytes, size);
        loaded += load(&r, path, &err) || !err.text[0];
    }
    EXPECT_EQ_INT(loaded, 0);
    EXPECT(same_runs(&r, &untouched), "changed");
    st_close(&e.file);
    free_run(&r);
    free_run(&untouched);
}

// A bit of every byte of the length and the header: either refused, with nothing changed, or
// harmless, which is: exactly the run that was saved (the bit was in a word that does not matter).
TEST(flipped_bits_of_the_header)
{
    Edit e;
    Error err = { "", "" };
    begin_with(&e, "lenet", 1, 10);
    uint64_t header;
    memcpy(&header, e.file.bytes, 8);
    const char *path = test_path("flipped.safetensors");
    write_bytes(path, e.file.bytes, e.file.size);
    int fd = open(path, O_RDWR), loaded = 0, harmful = 0;
    Run r = new_run("lenet", 1, 28, 10, 5), good = new_run("lenet", 1, 28, 10, 5);
    EXPECT(load(&good, path, &err), "%s", err.text);
    Run before = new_run("lenet", 1, 28, 10, 5);
    for (off_t at = 0; at < (off_t)header + 8; at++) {
        unsigned char bad =
            e.file.bytes[at] ^ (unsigned char)(1 << (at * 5 % 8)); // another bit each time
        if (pwrite(fd, &bad, 1, at) != 1)
            FAIL("", "pwrite");
        if (load(&r, path, &err)) {
            loaded++;
            harmful += !same_runs(&r, &good);
            load(&before, path, &err);
        } else {
            harmful += !same_runs(&r, &before);
        }
        if (pwrite(fd, &e.file.bytes[at], 1, at) != 1)
            FAIL("", "pwrite");
    }
    close(fd);
    EXPECT_EQ_INT(harmful, 0);
    EXPECT(loaded > 0 && loaded < 200, "%d of %d loaded", loaded, (int)header + 8);
    st_close(&e.file);
    free_run(&r);
    free_run(&good);
    free_run(&before);
}

// The data of a tensor may begin anywhere: the header's length need not be a multiple of 8.
TEST(unaligned_data)
{
    Edit e;
    Error err = { "", "" };
    begin_with(&e, "lenet", 1, 10);
    uint64_t header;
    memcpy(&header, e.file.bytes, 8);
    size_t size = e.file.size + 1;
    unsigned char *bytes = xmalloc(size);
    memcpy(bytes, e.file.bytes, 8 + header);
    bytes[8 + header] = ' ';
    memcpy(bytes + 9 + header, e.file.bytes + 8 + header, e.file.size - 8 - header);
    header++;
    memcpy(bytes, &header, 8);
    const char *path = test_path("odd.safetensors");
    write_bytes(path, bytes, size);
    Run a = new_run("lenet", 1, 28, 10, 1), b = new_run("lenet", 1, 28, 10, 2);
    EXPECT(load(&b, path, &err), "%s", err.text);
    EXPECT(same_runs(&a, &b), "other numbers");
    free(bytes);
    st_close(&e.file);
    free_run(&a);
    free_run(&b);
}

TEST(no_file)
{
    char path[4200];
    snprintf(path, sizeof path, "%s", test_path("nobody"));
    expect_refused(path, "lenet", 1, 10, true, "nobody: open: No such file", "");
    expect_refused(test_path(""), "lenet", 1, 10, true, "not a regular file but a directory", "");
    EXPECT(access(path, F_OK) != 0, "nobody is there");
}

int main(void)
{
    device = device_open(0, 1);
    ops = ops_new(device, &(OpsConfig){ 0 });
    round_trips();
    files_are_deterministic();
    saved_loaded_and_saved_again();
    loss_scales();
    contents();
    another_model();
    names_missing_and_too_many();
    a_number_that_is_younger();
    only_weights();
    types_and_values();
    states_that_no_run_has();
    goes_on_with_as_many();
    goes_on_with_other_ranks();
    goes_on_with_lr_scale();
    continues_with_the_same_seed();
    what_is_not_saved();
    truncations();
    flipped_bits_of_the_header();
    unaligned_data();
    no_file();
    ops_free(ops);
    device_close(device);
    return test_done();
}
