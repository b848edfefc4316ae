// test_replicas.c - training on several devices matches one device, and PyTorch.
//
// ctest: PROCESSORS 2 TIMEOUT 120 BACKENDS cpu cuda fake SANITIZERS asan tsan
//
// All replicas use the same device ("0,0,0"), so that the test needs only one GPU. The program
// itself refuses such a list.
#include "../02_data_parallel/replicas.c"
#include "step_reference.h"

// Skips the large networks under ThreadSanitizer, where they are slow and show nothing new.
#ifdef __SANITIZE_THREAD__
static const bool slow = true;
#else
static const bool slow = false;
#endif

static const OpsConfig ops_config = { .tf32 = false, .deterministic = true };

// --- a training run, on several devices or on one ------------------------------------------------

enum { SIDE = 32, CLASSES = 10 };

typedef struct Run {
    StepRun step;           // without a reference file
    Replicas *replicas;     // NULL: one model without replicas
    Ops *ops;
} Run;

static Replicas *replicas_of(int count)
{
    static const char *const devices[] = { NULL, "1", "0,0", "0,0,0", "0,0,0,0" };
    return replicas_open(&(ReplicasConfig){ devices[count] }, 1);
}

// count 0: without replicas, one model on one device.
static Run run_open(const char *arch, int count, int batch, int pass)
{
    Run run = { .replicas = count ? replicas_of(count) : NULL };
    Device *device = count ? replicas_device(run.replicas) : device_open(0, 1);
    run.ops = ops_new(device, &ops_config);
    Model *model = model_new(device, run.ops, &(ModelConfig){
        arch, strcmp(arch, "resnet18") == 0 ? 3 : 1, SIDE, SIDE, CLASSES, batch, pass });
    if (count)
        replicas_add(run.replicas, model, &ops_config);
    step_memory(&run.step, model, batch);
    model_init(model, 7);
    return run;
}

static void run_close(Run *run)
{
    Model *model = run->step.model;
    Device *device = model->device;
    if (run->replicas)
        replicas_close(run->replicas);
    step_close(&run->step);
    model_free(model);
    ops_free(run->ops);
    device_close(device);
}

// Makes a different batch for each number.
static void run_batch(Run *run, int number)
{
    const Model *model = run->step.model;
    size_t count = shape_count(model->input);
    float *images = xmalloc(count * sizeof *images);
    int32_t labels[64];
    for (size_t i = 0; i < count; i++)
        images[i] = 2 * uniform_of(philox(3, (uint64_t)number, i).v[0]) - 1;
    for (int i = 0; i < model->config.batch; i++)
        labels[i] = (int32_t)(philox(4, (uint64_t)number, (uint64_t)i).v[0] % CLASSES);
    send_to_device(model, run->step.images, images, count * sizeof *images);
    send_to_device(model, run->step.labels, labels, (size_t)model->config.batch * sizeof *labels);
    free(images);
}

// A training step with the first `rows` of a batch.
static void run_step(Run *run, int number, int rows)
{
    StepRun *s = &run->step;
    run_batch(run, number);
    s->rows = rows;
    if (!run->replicas) {
        step_take(s);
        return;
    }
    replicas_forward(run->replicas, s->images, rows, true);
    loss_cross_entropy(run->ops, rows, CLASSES, s->model->logits, s->labels, s->scalars, s->stats,
                       s->model->dlogits);
    replicas_backward(run->replicas);
    sgd_update(run->ops, s->model->param_count, s->model->params, s->model->grads, s->velocity,
               s->scalars);
}

// --- comparing -----------------------------------------------------------------------------------

// The largest difference, relative to the largest wanted value.
static double distance(const float *ours, const float *wanted, size_t count)
{
    double largest = 0, off = 0;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(ours[i]))
            return INFINITY;
        largest = fmax(largest, fabs(wanted[i]));
        off = fmax(off, fabs((double)ours[i] - wanted[i]));
    }
    return off > 0 ? off / largest : 0;
}

// The largest distance of any tensor. arena: of the run's model, on its device; wanted: of like's
// model, on the host. Compares in torch's layout, since the arena's may depend on the batch size.
static double arena_distance(const Run *run, const float *arena, const Run *like,
                             const float *wanted)
{
    double worst = 0;
    float *host = arena_copy(run->step.model, arena, run->step.model->param_count);
    for (int i = 0; i < run->step.model->tensor_count; i++) {
        const ModelTensor *t = &run->step.model->tensors[i];
        if (t->kind == MODEL_COUNTER || t->kind == MODEL_BUFFER)
            continue;
        size_t bytes = (size_t)t->count * sizeof(float);
        float *a = xmalloc(bytes), *b = xmalloc(bytes);
        model_export(run->step.model, t, host, a);
        model_export(like->step.model, &like->step.model->tensors[i], wanted, b);
        worst = fmax(worst, distance(a, b, (size_t)t->count));
        free(b);
        free(a);
    }
    free(host);
    return worst;
}

// --- tests ---------------------------------------------------------------------------------------

static const struct {
    int devices, batch, rows;
} cuts[] = {
    { 1, 8, 8 }, { 2, 8, 8 }, { 2, 7, 7 }, { 3, 8, 8 }, { 3, 9, 4 }, { 4, 8, 5 }, { 4, 7, 7 },
    { 4, 8, 1 }, { 4, 3, 3 }, { 3, 2, 2 },
};

// Without BatchNorm the split of a batch does not matter. The second step shows whether the other
// devices get the weights that the optimizer updated on the first device.
TEST(gradients_match_the_whole_batch)
{
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        int rows = cuts[i].rows, devices = cuts[i].devices;
        Run many = run_open("lenet", devices, cuts[i].batch,
                            (cuts[i].batch + devices - 1) / devices);
        Run one = run_open("lenet", 0, cuts[i].batch, 0);
        const Model *parts = many.step.model, *whole = one.step.model;
        for (int step = 0; step < 2; step++) {
            run_step(&many, step, rows);
            run_step(&one, step, rows);
            size_t count = (size_t)rows * CLASSES;
            float *logits = arena_copy(parts, parts->logits, count);
            float *wanted = arena_copy(whole, whole->logits, count);
            float *grads = arena_copy(whole, whole->grads, whole->param_count);
            double off = distance(logits, wanted, count);
            double grads_off = arena_distance(&many, parts->grads, &one, grads);
            EXPECT(off <= 1e-5 && grads_off <= 1e-5, "%d rows on %d, step %d: logits off by %g, "
                   "gradients by %g", rows, devices, step, off, grads_off);
            free(grads);
            free(wanted);
            free(logits);
        }
        run_close(&one);
        run_close(&many);
    }
}

// Evaluation on all devices uses the first device's weights and running statistics.
TEST(evaluation_is_the_same_on_every_device)
{
    Run many = run_open("convnet", 3, 8, 3), one = run_open("convnet", 0, 8, 3);
    const Model *first = many.step.model, *other = one.step.model;
    run_step(&many, 0, 8);
    run_step(&many, 1, 8);
    for (int i = 0; i < 2; i++) {
        float *arena = i ? other->buffers : other->params;
        size_t count = i ? other->buffer_count : other->param_count;
        float *host = arena_copy(first, i ? first->buffers : first->params, count);
        send_to_device(other, arena, host, count * sizeof *host);
        free(host);
    }
    Shape image = other->input;
    image.n = 1;
    run_batch(&many, 2);
    run_batch(&one, 2);
    float *before = arena_copy(first, first->buffers, first->buffer_count);
    replicas_forward(many.replicas, many.step.images, 8, false);
    float *logits = arena_copy(first, first->logits, 8 * CLASSES);
    for (int row = 0; row < 8; row++) {
        const float *from = (float *)one.step.images + row * shape_count(image);
        model_forward(one.step.model, from, 1, false);
        float *wanted = arena_copy(other, other->logits, CLASSES);
        double off = distance(logits + row * CLASSES, wanted, CLASSES);
        EXPECT(off <= 1e-5, "row %d: logits off by %g", row, off);
        free(wanted);
    }
    float *after = arena_copy(first, first->buffers, first->buffer_count);
    EXPECT(memcmp(before, after, first->buffer_count * sizeof *after) == 0,
           "the evaluation changed the running statistics");
    free(after);
    free(logits);
    free(before);
    run_close(&one);
    run_close(&many);
}

TEST(two_runs_are_bit_identical)
{
    uint64_t hashes[2];
    for (int i = 0; i < 2; i++) {
        Run run = run_open("convnet", 3, 8, 3);
        for (int step = 0; step < 20; step++)
            run_step(&run, step, 8 - 3 * (step % 3));
        hashes[i] = model_hash(run.step.model);
        run_close(&run);
    }
    EXPECT(hashes[0] == hashes[1], "%016llx and %016llx", (unsigned long long)hashes[0],
           (unsigned long long)hashes[1]);
}

// Each phase of each training step is timed once. An evaluation is not timed, nor the time between
// it and the next training step.
TEST(only_training_steps_are_timed)
{
    Run run = run_open("lenet", 2, 8, 4);
    const Replicas *r = run.replicas;
    Log *log = log_new(&(LogConfig){ .print_freq = 1 }, false);
    for (int round = 0; round < 2; round++) {
        for (int step = 0; step < 20; step++) {
            run_step(&run, step, step == 19 ? 3 : 8);
            if (step == 9 || step == 19)
                replicas_forward(run.replicas, run.step.images, 8, false);
        }
        for (int i = 0; i < PHASES; i++)
            EXPECT_EQ_INT(r->times[i], i == BETWEEN ? 18 : 20);
        replicas_report(run.replicas, log);
        for (int i = 0; i < PHASES; i++)
            EXPECT(r->times[i] == 0 && r->ns[i] == 0, "phase %d was not reset", i);
    }
    log_free(log);
    run_close(&run);
}

// Two devices must match two PyTorch processes, each with half of the batch and its own statistics.
TEST(steps_match_pytorch)
{
    for (int i = 1; i <= 5; i++) {
        StepRun run;
        char name[64];
        snprintf(name, sizeof name, "resnet18-ranks2-%d.step.safetensors", i);
        step_open(&run, reference_path(name));
        Replicas *replicas = replicas_of(file_int(&run.file, "ranks"));
        Device *device = replicas_device(replicas);
        Ops *ops = ops_new(device, &ops_config);
        ModelConfig config = step_config(&run, run.batch);
        config.pass = replicas_chunk(replicas, run.batch);
        Model *model = model_new(device, ops, &config);
        replicas_add(replicas, model, &ops_config);
        step_begin(&run, model, 0, run.batch);

        replicas_forward(replicas, run.images, run.batch, true);
        loss_cross_entropy(ops, run.batch, config.classes, model->logits, run.labels, run.scalars,
                           run.stats, model->dlogits);
        replicas_backward(replicas);
        sgd_update(ops, model->param_count, model->params, model->grads, run.velocity, run.scalars);
        step_compare(&run, step_loss(&run));

        replicas_close(replicas);
        step_close(&run);
        model_free(model);
        ops_free(ops);
        device_close(device);
    }
}

int main(void)
{
    if (strcmp(device_backend, "cuda") == 0 && device_count() == 0)
        TEST_SKIP("no GPU here");
    gradients_match_the_whole_batch();
    evaluation_is_the_same_on_every_device();
    two_runs_are_bit_identical();
    only_training_steps_are_timed();
    if (!slow)
        steps_match_pytorch();
    return test_done();
}
