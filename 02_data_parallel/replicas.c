// replicas.c - one process, several devices, one thread each: what torch.nn.DataParallel does.
//
//                first device                             the others
//   broadcast    its parameters and statistics  ==>       a copy of them
//   scatter      the inputs of a batch          ==>       their piece of them
//   forward      its own piece                            their piece
//   gather       the logits of the whole batch  <==       those of their piece
//   (loss)       computed by the caller                   -
//   scatter      the gradient of the logits     ==>       their piece of it
//   backward     its own piece                            their piece
//   reduce       adds up the gradients          <==       those of their piece
//   (optimizer)  run by the caller                        -
//
// In every step, the first device sends the whole model and receives all gradients. While it adds
// them up and runs the optimizer, the others idle.
#include "replicas.h"
#include "check.h"
#include "clock.h"
#include "network.h"
#include "team.h"
#include "trace.h"

#include <stdlib.h>
#include <string.h>

enum { REPLICAS_MAX = 64, PHASES_MAX = 8 };

typedef struct Replica {
    Replicas *all;
    Device *device;
    Ops *ops;               // NULL for the first device, whose Ops the caller keeps
    Model *model;           // the caller's on the first device, a copy on the others
    int first, rows;        // this device's piece of the batch; 0 rows: the device idles
    float *buffer;          // memory for the piece's inputs; NULL on the first device
    const float *input;     // the piece's inputs, on this device
    char name[24];          // in the log and the timeline: "device 1"
} Replica;

typedef void Part(Replica *replica);

struct Replicas {
    int count;
    Replica replica[REPLICAS_MAX];
    ModelConfig config;     // the config of the copies
    OpsConfig ops;
    const float *inputs;    // the batch's inputs, on the first device
    bool training;
    float *scratch;         // on the first device: a copy of another device's gradients, or NULL
    Network network;
    Team *team;             // a thread per replica; the caller's thread serves the first
    const char *phase;      // the name of the current phase
    Part *part;
    int64_t steps;          // training steps since the last report
    double began;           // time (s) when the first of these steps began
    const char *phases[PHASES_MAX];     // the names of the phases, in order
    double seconds[PHASES_MAX];         // the time of each phase, over all these steps
};

// --- what a device does in each phase ------------------------------------------------------------

// Copies between devices. If to == from (in `reduce` on a CPU, where devices share memory), the
// bytes only cross the simulated network.
static void copy(Replica *replica, float *to, const float *from, size_t count)
{
    Stream *stream = device_stream(replica->device);
    NetworkMessage message = { &replica->all->network, count * sizeof *to };
    if (to != from)
        copy_on_device(stream, to, from, message.bytes);
    if (message.network->rate > 0)
        stream_enqueue(stream, network_send, &message, sizeof message);
}

// Copies the parameters and BatchNorm's running statistics. Training changes the statistics on
// every device, but only the first device's are kept, and evaluation needs those on all devices.
static void broadcast(Replica *replica)
{
    const Model *from = replica->all->replica[0].model;
    if (replica->model == from)
        return;
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
    if (replica->model != to)
        copy(replica, to->logits + (size_t)replica->first * each, replica->model->logits,
             (size_t)replica->rows * each);
}

static void scatter_dlogits(Replica *replica)
{
    const Model *from = replica->all->replica[0].model;
    size_t each = (size_t)(from->config.classes * from->per_row);
    if (replica->model != from)
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
    if (replica != all->replica)
        return;
    for (int i = 1; i < all->count && all->replica[i].rows > 0; i++) {
        float *theirs = all->replica[i].model->grads;
        float *here = all->scratch ? all->scratch : theirs;
        copy(replica, here, theirs, model->grad_count);
        add_into(model->ops, model->grad_count, model->grads, here);
    }
}

// --- a step --------------------------------------------------------------------------------------

static void do_part(void *arg, int i)
{
    Replicas *all = arg;
    if (all->replica[i].rows == 0)
        return;
    trace_begin(all->phase);
    all->part(&all->replica[i]);
    stream_sync(device_stream(all->replica[i].device));
    trace_end();
}

// Begins when the first device has finished what the caller gave it. Each thread waits for its own
// device, and then for the other threads. So no thread reads data before it is written.
static void on_all(Replicas *all, const char *phase, Part *part)
{
    stream_sync(device_stream(all->replica[0].device));
    double begin = clock_now();
    int i = 0;
    all->phase = phase;
    all->part = part;
    team_run(all->team, do_part, all);
    if (!all->training)
        return;
    while (all->phases[i] && all->phases[i] != phase)
        i++;
    all->phases[i] = phase;
    all->seconds[i] += clock_now() - begin;
}

int replicas_chunk(const Replicas *replicas, int batch)
{
    return (batch + replicas->count - 1) / replicas->count;
}

// Each device gets replicas_chunk rows, the last ones perhaps fewer: of 5 rows, 4 devices get
// 2, 2, 1 and 0.
static void cut_batch(Replicas *all, int rows)
{
    int size = replicas_chunk(all, rows);
    all->network.bytes = 0;
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
    if (training && replicas->steps++ == 0)
        replicas->began = clock_now();
    cut_batch(replicas, rows);
    trace_begin("forward");
    on_all(replicas, "broadcast", broadcast);
    on_all(replicas, "scatter", scatter_inputs);
    on_all(replicas, "forward", forward);
    on_all(replicas, "gather", gather_logits);
    trace_end();
}

void replicas_backward(Replicas *replicas)
{
    trace_begin("backward");
    on_all(replicas, "scatter gradient", scatter_dlogits);
    on_all(replicas, "backward", backward);
    on_all(replicas, "reduce", reduce);
    trace_end();
}

// --- the report: times and memory ----------------------------------------------------------------

static void report_phases(Replicas *all, Log *log)
{
    char text[512] = "";
    double to_ms = 1e3 / (double)all->steps, step = to_ms * (clock_now() - all->began), rest = step;
    for (int i = 0; i < PHASES_MAX && all->phases[i]; i++) {
        double ms = to_ms * all->seconds[i];
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s %.1f | ", all->phases[i], ms);
        all->seconds[i] = 0;
        rest -= ms;
    }
    all->steps = 0;
    log_say(log, "   == a step takes %.1f ms: %sloss, optimizer and data %.1f", step, text, rest);
}

void replicas_report(Replicas *replicas, Log *log)
{
    char text[40 * REPLICAS_MAX] = "";
    if (replicas->steps > 0)
        report_phases(replicas, log);
    for (int i = 0; i < replicas->count; i++) {
        const Replica *replica = &replicas->replica[i];
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s: %zu MiB", i ? ", " : "",
                 replica->name, device_bytes(replica->device) >> 20);
    }
    log_say(log, "   == memory: %s", text);
    if (replicas->network.rate > 0)
        log_say(log, "   == link: %.3f MB in the last step", (double)replicas->network.bytes / 1e6);
}

// --- options, new and free -----------------------------------------------------------------------

void replicas_options(Args *args, ReplicasConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "devices", 0, ARG_INT, &config->devices, "N", "number of devices (0: all GPUs; CPU: 2)",
          .max = REPLICAS_MAX, .first = true },
        { "shared-link", 0, ARG_DOUBLE, &config->shared_link, "MB/S",
          "simulate one link that all devices share: this rate, and 1 ms of latency (0: off)",
          .min = 0, .max = 1e6 }));
}

static int default_devices(void)
{
    int there = strcmp(device_backend, "cpu") == 0 ? 2 : device_count();
    return there > 0 ? there : 1;       // without a GPU, opening device 0 fails
}

Replicas *replicas_open(const ReplicasConfig *config, int threads)
{
    Replicas *all = xcalloc(1, sizeof *all);
    all->count = config->devices > 0 ? config->devices : default_devices();
    all->team = team_new(all->count);
    all->network.rate = config->shared_link;
    threads = device_share(all->count, threads, true);
    for (int i = 0; i < all->count; i++) {
        Replica *replica = &all->replica[i];
        replica->all = all;
        replica->device = device_open(i, threads);
        snprintf(replica->name, sizeof replica->name, "device %d", i);
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
    model_free(replica->model);
    ops_free(replica->ops);
    device_close(replica->device);
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
    device_use(replicas->replica[0].device);
    free(replicas);
}
