// train.c - trains a network: an image classifier or a language model.
//
// Read it from the bottom up: main parses the options; run() sets everything up; train() goes
// through the epochs; train_epoch() goes through the batches; train_step() handles one batch.
#include "args.h"
#include "check.h"
#include "checkpoint.h"
#include "data.h"
#include "device.h"
#include "interrupt.h"
#include "log.h"
#include "model.h"
#include "ops.h"
#include "optim.h"
#include "trace.h"
#include "broadcast.h"
#include "ddp.h"
#include "sampler.h"
#include "spawn.h"

#include <stdlib.h>

// ==== Options ====================================================================================

typedef struct Config {
    SpawnConfig spawn;
    CommConfig comm;
    double bucket_mb;
    bool sync_bn;
    const char *arch;
    GptConfig gpt;
    int epochs, batch_size, max_steps, threads;
    int64_t seed;
    bool shuffle;
    CheckpointConfig checkpoint;
    DataConfig data;
    OptimConfig optim;
    OpsConfig ops;
    LogConfig log;
} Config;

// Adds this file's options, with their defaults. parse also calls other files' functions like this.
static void train_options(Args *args, Config *c)
{
    c->epochs = 5;
    c->batch_size = 256;
    c->shuffle = true;
    c->bucket_mb = 4;
    args_add(args, ARGS_ROWS(
        { "epochs", 0, ARG_INT, &c->epochs, "N", "passes over the data", 1, 1e6, .first = true },
        { "batch-size", 'b', ARG_INT, &c->batch_size, "N", "samples in a rank's batch", 1, 65536,
          .first = true },
        { "max-steps", 0, ARG_INT, &c->max_steps, "N", "end after N steps (0: never)", 0, 1e9,
          .first = true },
        { "threads", 0, ARG_INT, &c->threads, "N",
          "CPU threads (0: OMP_NUM_THREADS, else a share of cores)", .max = 1024, .local = true },
        { "seed", 0, ARG_INT64, &c->seed, "N", "seed of all random numbers", 0, 1e15 },
        { "shuffle", 0, ARG_FLAG, &c->shuffle, NULL, "read samples in a new order each epoch" },
        { "bucket-mb", 0, ARG_DOUBLE, &c->bucket_mb, "MIB",
          "size of one gradient message (./ddp run naive: all in one)", 0.001, 65536 },
        { "sync-bn", 0, ARG_FLAG, &c->sync_bn, NULL, "BatchNorm over all ranks' batches",
          .needs = "arch=convnet|resnet18|resnet50" }));
}

static void parse(Args *args, Config *c, int argc, char **argv)
{
    model_options(args, &c->arch, &c->gpt);
    data_options(args, &c->data);
    train_options(args, c);
    checkpoint_options(args, &c->checkpoint);
    optim_options(args, &c->optim);
    ops_options(args, &c->ops);
    log_options(args, &c->log);
    spawn_options(args, &c->spawn);
    comm_options(args, &c->comm);
    optim_scale_options(args, &c->optim);
    args->summary = "Trains a network: an image classifier or a language model.";
    args_parse(args, argc, argv);
}

// ==== A training run =============================================================================

typedef struct Job {
    const Args *args;
    const Config *config;
    const char *from;       // the checkpoint to resume from, or NULL
    const char *save;       // the file that this process saves to, or NULL
    Data data;
    Log *log;
    Device *device;
    Ops *ops;
    Model *model;
    Optim *optim;           // SGD or AdamW, with its state for each parameter
    Scalars *scalars;       // device memory: the step's settings, such as the learning rate
    Stats *train_stats;     // device memory: sums over the current epoch
    Stats *test_stats;      // device memory: sums over the test set
    Loader *train, *test;
    const Batch *batch;     // the current batch
    Replay *replay;         // recordings of train_step
    TrainState state;       // how far the run has come; saved in checkpoints
    World world;            // this process's rank, and the number of ranks
    Comm *comm, *norms;     // comm: gradients, state, hashes; norms: for --sync-bn, or NULL
    Sampler sampler;
    Ddp *ddp;
} Job;

// ---- Choosing samples ---------------------------------------------------------------------------

static int samples_per_epoch(const Job *job) { return sampler_share(&job->sampler); }
static int global_batch(const Job *job) { return job->config->batch_size * job->world.size; }

// Rule 2: each rank gets different samples. If shuffled, their order depends on seed + epoch.
static void choose_samples(Job *job)
{
    int count = samples_per_epoch(job);
    int32_t *ids = xmalloc(count * sizeof *ids);
    sampler_set_epoch(&job->sampler, job->state.epoch);
    sampler_ids(&job->sampler, ids);
    loader_start(job->train, ids, count, job->state.epoch, job->state.step);
    free(ids);
}

static int64_t steps_per_epoch(const Job *job)
{
    return (samples_per_epoch(job) + job->config->batch_size - 1) / job->config->batch_size;
}

// ---- One step -----------------------------------------------------------------------------------

// There is no zero_grad: backward overwrites the gradients of the step before.
static void forward_backward(Job *job, const Batch *batch)
{
    model_forward(job->model, batch->inputs, batch->rows, true);
    loss_cross_entropy(job->ops, batch->label_count, job->data.train.classes, job->model->logits,
                       batch->labels, job->scalars, job->train_stats, job->model->dlogits);
    model_backward(job->model, ddp_ready, job->ddp);
}

// If a gradient is infinite or NaN, gradients_check counts it, and optim_step changes nothing.
static void apply_gradients(Job *job)
{
    Model *model = job->model;
    ddp_wait(job->ddp);         // Rule 3: all ranks take the same step, with the average gradients
    gradients_check(job->ops, model->grad_count, model->grads, job->scalars, job->train_stats);
    optim_step(job->optim, job->scalars);
}

// Runs one step, on one batch. A step that only enqueues work, and never waits for the device or
// involves the host, can be recorded once and then replayed.
static void train_step(void *arg)
{
    Job *job = arg;
    forward_backward(job, job->batch);
    apply_gradients(job);
}

// `step` counts from 0 in each epoch.
static double learning_rate(const Job *job, int64_t step)
{
    const Config *c = job->config;
    int64_t steps = steps_per_epoch(job), first = job->state.epoch * steps;
    return optim_lr(&c->optim, job->world.size, first + step, steps, c->epochs);
}

// A replayed step has the same arguments, so values that change are put in device memory here.
static void set_scalars(Job *job)
{
    StepSettings settings = optim_settings(job->optim, learning_rate(job, job->state.step),
                                           job->state.global_step);
    scalars_set(job->ops, job->scalars, settings);
}

static bool should_stop(const Job *job)
{
    bool enough = job->config->max_steps > 0 && job->state.global_step >= job->config->max_steps;
    return enough || interrupt_requested();
}

// ---- Reading the device -------------------------------------------------------------------------

// Waits for the device, and returns its sums. Ends the run if the run has diverged (stats.h). Every
// save comes after this check.
static Stats read_finite(Job *job, const Stats *on_device)
{
    Stats stats;
    copy_to_host(device_stream(job->device), &stats, on_device, sizeof stats);
    stream_sync(device_stream(job->device));
    if (stats.not_finite > 0 || stats.bad_gradients > 0)
        fail_diverged(&stats, job->state.epoch + 1, job->state.step);
    return stats;
}

static void report(Job *job)
{
    LogStep line = {
        .epoch = job->state.epoch + 1,
        .epochs = job->config->epochs,
        .step = job->state.step,
        .steps = steps_per_epoch(job),
        .stats = read_finite(job, job->train_stats),
        .lr = learning_rate(job, job->state.step - 1),
        .data_wait_ms = loader_wait_ms(job->train),
    };
    log_step(job->log, &line);
}

// ---- Evaluating and saving ----------------------------------------------------------------------

static Stats evaluate(Job *job)
{
    if (job->world.rank > 0)
        return (Stats){ 0 };    // only rank 0 evaluates, while the others wait
    trace_begin("evaluate");
    fill_zero(device_stream(job->device), job->test_stats, sizeof(Stats));
    loader_start(job->test, NULL, job->data.test.count, 0, 0);
    for (const Batch *batch; (batch = loader_next(job->test));) {
        model_forward(job->model, batch->inputs, batch->rows, false);
        loss_cross_entropy(job->ops, batch->label_count, job->data.test.classes, job->model->logits,
                           batch->labels, job->scalars, job->test_stats, NULL);
    }
    Stats stats = read_finite(job, job->test_stats);
    trace_end();
    log_test(job->log, &stats, job->config->checkpoint.evaluate);
    return stats;
}

static void save(Job *job, const char *suffix)
{
    Error error;
    char path[4096];
    if (!job->save)
        return;
    snprintf(path, sizeof path, "%s%s", job->save, suffix);
    if (!checkpoint_save(path, job->model, job->optim, &job->state, &error))
        FAIL_ERROR(&error);
    log_say(job->log, "   == saved: %s", path);
}

// The saved state includes the epoch's sums so far.
static void save_within_epoch(Job *job)
{
    job->state.running = read_finite(job, job->train_stats);
    compare_hashes(job->comm, job->device, model_hash(job->model)); // save only if all ranks agree
    save(job, "");
}

// Call it after an epoch's last step. Saves before the evaluation, so that no step is lost if the
// evaluation fails, and again after the evaluation, as the start of the next epoch.
static void finish_epoch(Job *job)
{
    save_within_epoch(job);
    Stats test = evaluate(job);
    double top1 = model_score(job->model, &test);
    bool best = test.count > 0 && top1 > job->state.best_top1;
    log_epoch(job->log, job->state.epoch + 1, &job->state.running, &test);
    job->state.best_top1 = best ? top1 : job->state.best_top1;
    job->state.epoch++;
    job->state.step = 0;
    job->state.running = (Stats){ 0 };
    fill_zero(device_stream(job->device), job->train_stats, sizeof(Stats));
    if (best)
        save(job, ".best");     // first, so that no checkpoint has a higher best_top1 than .best
    save(job, "");
}

// ---- Epochs -------------------------------------------------------------------------------------

static void count_step(Job *job)
{
    job->state.step++;
    job->state.global_step++;
    log_progress(job->log, job->state.step, job->batch->count);
}

// Trains the rest of an epoch, from job->state.step on. Returns false if it stops before the end.
static bool train_epoch(Job *job)
{
    int64_t steps = steps_per_epoch(job);
    choose_samples(job);
    log_progress_begin(job->log, job->state.epoch + 1, job->config->epochs);
    while (!should_stop(job) && (job->batch = loader_next(job->train))) {
        set_scalars(job);
        // A recording (a CUDA graph) holds addresses and sizes. So each of the loader's buffers
        // needs its own recording. Short batches share one: they end epochs, in the same buffer.
        int key = job->batch->full ? job->batch->slot : LOADER_SLOTS;
        replay_run(job->replay, key, train_step, job);
        count_step(job);
        if (log_wants(job->log, job->state.step, steps) || should_stop(job))
            report(job);
        if (checkpoint_due(&job->config->checkpoint, &job->state) && job->state.step < steps)
            save_within_epoch(job);
    }
    log_progress_end(job->log);
    if (job->state.step < steps)
        return false;
    finish_epoch(job);
    return true;
}

static void train(Job *job)
{
    log_say(job->log, "            =======  Training  ======= ");
    if (job->state.step == steps_per_epoch(job))
        finish_epoch(job);          // the run that saved this state died in the evaluation
    if (job->state.epoch >= job->config->epochs)
        log_say(job->log, "   == complete: nothing is left to train; to continue, raise --epochs");
    while (job->state.epoch < job->config->epochs && !should_stop(job) && train_epoch(job)) {
    }
    if (job->state.step > 0)
        save_within_epoch(job);
    log_say(job->log, "            =======  Training %s  ======= ",
            interrupt_requested() ? "Interrupted" : "Finished");
}

// ==== A run from start to end ====================================================================

static void choose_files(Job *job)
{
    const CheckpointConfig *c = &job->config->checkpoint;
    job->from = checkpoint_find(c);
    if (job->world.rank > 0)
        return;                 // only rank 0 saves
    job->save = c->evaluate ? NULL : c->save;
}

static void open_data(Job *job)
{
    Error error;
    if (job->save && !checkpoint_claim(job->save, job->from, &error))
        FAIL_ERROR(&error);
    if (!data_open(&job->data, &job->config->data, job->config->seed, &error))
        FAIL_ERROR(&error);
    job->log = log_new(&job->config->log, job->from != NULL);   // appends if the run resumes
}

static void open_model(Job *job)
{
    const Config *c = job->config;
    const Dataset *d = &job->data.train;
    job->device = comm_open_device(&job->world, c->threads);
    job->ops = ops_new(job->device, &c->ops);
    job->model = model_new(job->device, job->ops, &(ModelConfig){
        .arch = c->arch, .gpt = c->gpt, .vocabulary = job->data.vocabulary, .per_row = d->per_row,
        .channels = d->channels, .height = d->height, .width = d->width, .classes = d->classes,
        .batch = c->batch_size });
    job->optim = optim_new(&c->optim, job->model);
    job->scalars = scalars_new(job->device);
    job->train_stats = device_alloc(job->device, sizeof(Stats));
    job->test_stats = device_alloc(job->device, sizeof(Stats));
    job->replay = replay_new(job->device, LOADER_SLOTS + 1);
}

static void connect_ranks(Job *job)
{
    const Config *c = job->config;
    const Model *m = job->model;
    job->comm = comm_new(&job->world, job->device, "gradients", &c->comm);
    job->ddp = ddp_new(m->grads, m->ready_count, job->device, job->comm, c->bucket_mb * 0x1p20);
    job->norms = c->sync_bn ? comm_share_norms(&job->world, job->device, job->ops, &c->comm) : NULL;
    job->sampler = (Sampler){ .count = job->data.train.count, .rank = job->world.rank,
                              .size = job->world.size, .shuffle = c->shuffle, .seed = c->seed };
}

static void open_loaders(Job *job)
{
    LoaderConfig config = { .shape = job->model->input, .augment = job->data.augment,
                            .workers = job->config->data.workers };
    job->train = loader_new(job->device, &job->data.train, &config);
    config.augment = job->data.plain;
    config.fill_last = true;    // pads the last batch with rows that do not count
    job->test = loader_new(job->device, &job->data.test, &config);
}

static void introduce(Job *job)
{
    const Model *m = job->model;
    log_unit(job->log, job->data.unit, job->data.train.per_row);
    log_say(job->log, "%s, %lld parameters | %s (%s), %d + %d %s | global batch %d | %s",
            m->config.arch, (long long)m->torch_params, job->data.name, job->data.source,
            job->data.train.count, job->data.test.count, job->data.samples, global_batch(job),
            device_name(job->device));
    log_config(job->log, job->args, device_name(job->device),
               json_pack("{s:s, s:I, s:i}", "dataset", job->data.name,
                         "parameters", m->torch_params, "global_batch", global_batch(job)));
}

// Makes new weights or loads those of --init; to evaluate, loads those of --resume or --init.
static void load_weights(Job *job)
{
    Error error;
    const CheckpointConfig *c = &job->config->checkpoint;
    const char *weights = c->evaluate && job->from ? job->from : c->init;
    model_init(job->model, job->config->seed);
    if (weights && !checkpoint_load(weights, job->model, NULL, NULL, &error))
        FAIL_ERROR(&error);
    CHECK(weights || !c->evaluate, "name a checkpoint that exists", "%s: there is no such file",
          c->save);
}

// Sets the state to a run's start; or, to resume a run, loads its weights, optimizer and state.
static void load_state(Job *job)
{
    Error error;
    TrainState saved;
    job->state = (TrainState){ .seed = job->config->seed, .batch_size = global_batch(job),
                               .order = data_order(&job->data, job->config->shuffle),
                               .best_top1 = -1, .loss_scale = 1 };
    if (!job->from || job->config->checkpoint.evaluate)
        return;
    if (!checkpoint_load(job->from, job->model, job->optim, &saved, &error) ||
        !checkpoint_continue(job->from, job->save, &saved, &job->state, steps_per_epoch(job),
                             &error))
        FAIL_ERROR(&error);
    job->state = saved;
    copy_to_device(device_stream(job->device), job->train_stats, &saved.running, sizeof(Stats));
    log_say(job->log, "   == resumed: %s, epoch %lld, step %lld", job->from,
            (long long)saved.epoch + 1, (long long)saved.step);
}

static void restore(Job *job)
{
    if (job->world.rank > 0)
        return;                 // share_start sends rank 0's state
    load_weights(job);
    load_state(job);
}

// Rule 1: the same start. All ranks get rank 0's parameters, buffers, optimizer arrays and state.
static void share_start(Job *job)
{
    Array arrays[RUN_ARRAYS];
    int count = run_arrays(job->model, job->optim, arrays);
    broadcast(job->comm, job->device, arrays, count);
    comm_broadcast_host(job->comm, &job->state, sizeof job->state);
    compare_hashes(job->comm, job->device, model_hash(job->model));
}

static void close_job(Job *job)
{
    loader_free(job->test);
    loader_free(job->train);
    optim_free(job->optim);
    model_free(job->model);
    ops_free(job->ops);
    device_close(job->device);      // also frees the scalars and the sums
    log_free(job->log);
    data_close(&job->data);
    trace_close();
}

static int run(Job *job)
{
    trace_open(job->config->log.trace);
    spawn(&job->config->spawn, &job->world);     // returns in each rank; the parent waits
    choose_files(job);
    interrupt_install();
    open_data(job);
    open_model(job);
    connect_ranks(job);
    open_loaders(job);
    introduce(job);
    restore(job);
    share_start(job);
    if (job->config->checkpoint.evaluate)
        evaluate(job);
    else
        train(job);
    compare_hashes(job->comm, job->device, model_hash(job->model)); // all end with the same weights
    log_end(job->log, model_hash(job->model), device_threads(job->device));
    replay_free(job->replay);
    comm_free(job->norms);
    comm_free(job->comm);       // waits for all ranks
    ddp_free(job->ddp);
    store_leave(&job->world);   // the end of this process no longer counts as a death
    close_job(job);
    return interrupt_requested() ? 128 + interrupt_requested() : 0;
}

int main(int argc, char **argv)
{
    Args args = { 0 };
    Config config = { 0 };
    parse(&args, &config, argc, argv);
    return run(&(Job){ .args = &args, .config = &config });
}
