// replicas.c - one process, several devices, one thread each: what torch.nn.DataParallel does.
//
//                first device                             the others
//   broadcast    its parameters and statistics  ==>       a copy of them
//   scatter      the inputs of a batch          ==>       their piece of them
//   forward      its own piece                            their piece
//   gather       the logits of the whole batch  <==       those of their piece
//   loss         the caller's                             -
//   scatter      the gradient of the logits     ==>       their piece of it
//   backward     its own piece                            their piece
//   reduce       adds up the gradients          <==       those of their piece
//   optimizer    the caller's                             -
//
// In every step, the first device sends the whole model and receives all gradients. While it adds
// them up and runs the optimizer, the others idle.
//
// A phase ends when all devices have finished it: each thread waits for its own device and then for
// the other threads (team.h), so no thread reads data before it is written.
#include "replicas.h"
#include "check.h"
#include "clock.h"
#include "team.h"
#include "trace.h"

#include <stdlib.h>
#include <string.h>

enum { REPLICAS_MAX = 64 };

typedef enum Phase {
    BROADCAST, SCATTER, FORWARD, GATHER, LOSS, SCATTER_BACK, BACKWARD, REDUCE, BETWEEN, PHASES
} Phase;

typedef struct Replica {
    Replicas *all;
    Device *device;
    Ops *ops;               // NULL on the first device, where the caller has it
    Model *model;           // the caller's on the first device, a copy on the others
    int first, rows;        // this device's piece of the batch; 0 rows: it idles
    float *buffer;          // for the inputs of the piece; NULL on the first device
    const float *input;     // what the model reads
    char name[24];          // "device 1"
} Replica;

struct Replicas {
    int count;
    Replica replica[REPLICAS_MAX];
    ModelConfig config;     // of the copies
    OpsConfig ops;
    const float *inputs;    // of the batch, on the first device
    bool training;
    float *scratch;         // on the first device: a copy of another device's gradients, or NULL
    Link link;

    Phase phase;
    double last;            // s: when the last phase ended; 0: not timed
    double seconds[PHASES];
    int64_t times[PHASES];
    Team *team;             // a thread per replica; the caller's thread serves the first
};

// --- what a device does in each phase ------------------------------------------------------------

static void copy(Replica *replica, float *to, const float *from, size_t count)
{
    if (to != from)
        link_copy(&replica->all->link, replica->device, to, from, count * sizeof *to);
}

// Copies the parameters and BatchNorm's running statistics. Training changes the statistics on
// every device, but only the first device's are kept, and evaluation needs those on all devices.
static void broadcast(Replica *replica)
{
    const Model *from = replica->all->replica[0].model;
    copy(replica, replica->model->params, from->params, from->param_count);
    copy(replica, replica->model->buffers, from->buffers, from->buffer_count);
}

static void scatter_inputs(Replica *replica)
{
    Shape one = replica->model->input;
    one.n = 1;
    const float *piece = replica->all->inputs + (size_t)replica->first * shape_count(one);
    replica->input = replica->buffer ? replica->buffer : piece;
    if (replica->buffer)
        copy(replica, replica->buffer, piece, (size_t)replica->rows * shape_count(one));
}

static void forward(Replica *replica)
{
    model_forward(replica->model, replica->input, replica->rows, replica->all->training);
}

static void gather_logits(Replica *replica)
{
    const Model *to = replica->all->replica[0].model;
    size_t each = (size_t)(to->config.classes * to->per_row);
    copy(replica, to->logits + (size_t)replica->first * each, replica->model->logits,
         (size_t)replica->rows * each);
}

static void scatter_dlogits(Replica *replica)
{
    const Model *from = replica->all->replica[0].model;
    size_t each = (size_t)(from->config.classes * from->per_row);
    copy(replica, replica->model->dlogits, from->dlogits + (size_t)replica->first * each,
         (size_t)replica->rows * each);
}

static void backward(Replica *replica) { model_backward(replica->model, NULL, NULL); }

// The first device adds up all gradients, always in the same order, so that the same gradients
// give the same bits. The loss is a mean over the whole batch, so the sum needs no division.
static void reduce(Replica *replica)
{
    Replicas *all = replica->all;
    Model *model = replica->model;
    for (int i = 1; i < all->count && all->replica[i].rows > 0; i++) {
        float *theirs = all->replica[i].model->grads;
        float *here = all->scratch ? all->scratch : theirs;
        link_copy(&all->link, replica->device, here, theirs, model->grad_count * sizeof *here);
        add_into(model->ops, model->grad_count, model->grads, here);
    }
}

static const struct {
    const char *name;
    void (*part)(Replica *replica);
} phases[PHASES] = {
    [BROADCAST] = { "broadcast", broadcast },
    [SCATTER] = { "scatter", scatter_inputs },
    [FORWARD] = { "forward", forward },
    [GATHER] = { "gather", gather_logits },
    [LOSS] = { "loss", NULL },
    [SCATTER_BACK] = { "scatter gradient", scatter_dlogits },
    [BACKWARD] = { "backward", backward },
    [REDUCE] = { "reduce", reduce },
    [BETWEEN] = { "optimizer and data", NULL },
};

// --- phases and the clock ------------------------------------------------------------------------

// If replica i has rows, runs its part of the current phase and waits until the part is finished.
static void do_phase(void *arg, int i)
{
    Replicas *all = arg;
    Replica *replica = &all->replica[i];
    if (replica->rows == 0)
        return;
    trace_begin(phases[all->phase].name);
    phases[all->phase].part(replica);
    stream_sync(device_stream(replica->device));
    trace_end();
}

// Adds to this phase the time since the last call. Evaluation is not timed.
static void count_time(Replicas *all, Phase phase)
{
    double now = clock_now();
    if (all->last && all->training) {
        all->seconds[phase] += now - all->last;
        all->times[phase]++;
    }
    all->last = all->training ? now : 0;
}

static void on_all(Replicas *all, Phase phase)
{
    all->phase = phase;
    team_run(all->team, do_phase, all);
    count_time(all, phase);
}

static void on_first(Replicas *all, Phase phase)
{
    all->phase = phase;
    do_phase(all, 0);
    count_time(all, phase);
}

// Waits for the caller's work on the first device. Then the others may read its results.
static void after_caller(Replicas *all, Phase phase)
{
    stream_sync(device_stream(all->replica[0].device));
    count_time(all, phase);
}

// --- a step --------------------------------------------------------------------------------------

int replicas_chunk(const Replicas *replicas, int batch)
{
    return (batch + replicas->count - 1) / replicas->count;
}

// Each device gets replicas_chunk rows, the last ones perhaps fewer: of 5 rows, 4 devices get
// 2, 2, 1 and 0.
static void cut_batch(Replicas *all, int rows)
{
    int size = replicas_chunk(all, rows);
    all->link.bytes = 0;
    for (int i = 0; i < all->count; i++) {
        int first = i * size < rows ? i * size : rows;
        all->replica[i].first = first;
        all->replica[i].rows = rows - first < size ? rows - first : size;
    }
}

void replicas_forward(Replicas *replicas, const float *inputs, int rows, bool training)
{
    replicas->inputs = inputs;
    replicas->training = training;
    after_caller(replicas, BETWEEN);
    cut_batch(replicas, rows);
    on_all(replicas, BROADCAST);
    on_all(replicas, SCATTER);
    on_all(replicas, FORWARD);
    on_all(replicas, GATHER);
}

void replicas_backward(Replicas *replicas)
{
    after_caller(replicas, LOSS);
    on_all(replicas, SCATTER_BACK);
    on_all(replicas, BACKWARD);
    on_first(replicas, REDUCE);
}

// --- what it cost --------------------------------------------------------------------------------

static void report_phases(const Replicas *all, Log *log)
{
    char text[512] = "";
    double sum = 0;
    for (int i = 0; i < PHASES; i++) {
        double ms = all->times[i] ? 1e3 * all->seconds[i] / (double)all->times[i] : 0;
        size_t end = strlen(text);
        snprintf(text + end, sizeof text - end, "%s%s %.1f", i ? " | " : "", phases[i].name, ms);
        sum += ms;
    }
    log_say(log, "   == a step's %.1f ms: %s", sum, text);
}

void replicas_report(Replicas *replicas, Log *log)
{
    char text[40 * REPLICAS_MAX] = "";
    if (replicas->times[REDUCE] > 0)
        report_phases(replicas, log);
    for (int i = 0; i < replicas->count; i++) {
        const Replica *replica = &replicas->replica[i];
        size_t end = strlen(text);
        snprintf(text + end, sizeof text - end, "%s%s: %zu MiB", i ? ", " : "", replica->name,
                 device_peak_bytes(replica->device) >> 20);
    }
    log_say(log, "   == memory: %s (peak)", text);
    link_report(&replicas->link, log);
    replicas->last = 0;
    memset(replicas->seconds, 0, sizeof replicas->seconds);
    memset(replicas->times, 0, sizeof replicas->times);
}

// --- options -------------------------------------------------------------------------------------

void replicas_options(Args *args, ReplicasConfig *config)
{
    *config = (ReplicasConfig){ 0 };
    args_add(args, ARGS_ROWS(
        { "devices", 0, ARG_LIST, &config->devices, "N|LIST",
          "number of devices, or a list such as 0,2 [all GPUs; CPU: 2]", 1, REPLICAS_MAX }));
    link_options(args, &config->shared_link);
}

// Fills in the devices' numbers, and returns how many. By default all GPUs, or two parts of a CPU.
static int choose_devices(const char *wanted, int numbers[REPLICAS_MAX])
{
    char all[16];
    int there = strcmp(device_backend, "cpu") == 0 ? 2 : device_count();
    snprintf(all, sizeof all, "%d", there > 0 ? there : 1);     // no GPU: opening the first fails
    return args_count_or_list(wanted ? wanted : all, numbers);
}

// --- from beginning to end -----------------------------------------------------------------------

Replicas *replicas_open(const ReplicasConfig *config, int threads)
{
    int numbers[REPLICAS_MAX];
    Replicas *all = xcalloc(1, sizeof *all);
    all->count = choose_devices(config->devices, numbers);
    all->team = team_new(all->count);
    all->link.rate = config->shared_link;
    threads = device_share(all->count, threads, true);
    for (int i = 0; i < all->count; i++) {
        Replica *replica = &all->replica[i];
        replica->all = all;
        replica->device = device_open(numbers[i], threads);
        snprintf(replica->name, sizeof replica->name, "device %d", numbers[i]);
    }
    device_use(all->replica[0].device);
    return all;
}

Device *replicas_device(const Replicas *replicas) { return replicas->replica[0].device; }

// Runs in the thread that will compute with the copy: oneDNN keeps scratch memory per thread.
static void add_copy(void *arg, int i)
{
    Replicas *all = arg;
    Replica *replica = &all->replica[i];
    if (i == 0)
        return;
    device_use(replica->device);
    trace_thread(replica->name);
    replica->ops = ops_new(replica->device, &all->ops);
    replica->model = model_new(replica->device, replica->ops, &all->config);
    replica->buffer = device_alloc(replica->device,
                                   shape_count(replica->model->input) * sizeof(float));
}

static void remove_copy(void *arg, int i)
{
    Replica *replica = &((Replicas *)arg)->replica[i];
    if (i == 0)
        return;
    device_free(replica->device, replica->buffer);
    model_free(replica->model);
    ops_free(replica->ops);
}

void replicas_add(Replicas *replicas, Model *model, const OpsConfig *ops)
{
    replicas->ops = *ops;
    replicas->config = model->config;
    replicas->config.batch = replicas->config.pass = replicas_chunk(replicas, model->config.batch);
    replicas->replica[0].model = model;
    replay_forbid(model->device);   // a step that waits for devices cannot be recorded
    team_run(replicas->team, add_copy, replicas);
    if (replicas->count > 1 && !device_shares_memory(model->device))
        replicas->scratch = device_alloc(model->device, model->grad_count * sizeof(float));
}

void replicas_close(Replicas *replicas)
{
    team_run(replicas->team, remove_copy, replicas);
    team_free(replicas->team);
    for (int i = 1; i < replicas->count; i++)
        device_close(replicas->replica[i].device);
    device_use(replicas->replica[0].device);
    device_free(replicas->replica[0].device, replicas->scratch);
    free(replicas);
}
