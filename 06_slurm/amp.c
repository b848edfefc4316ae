// amp.c - mixed precision.
//
// 16-bit numbers need half the memory and memory bandwidth, and some processors multiply them
// several times as fast. But they have too few digits for long sums and for small changes of large
// numbers. So both 16 and 32 bits are used:
//
//   short (bf16, fp16)   images, activations and their gradients, weights that convolutions read
//   f32                  sums inside a convolution, statistics of a batch, logits;
//                        gradients of parameters, the optimizer and the weights it changes
//
// bf16 has the range of f32. fp16 does not: small gradients would become 0. So the loss is
// multiplied by a large scale, and so are all gradients of backward. The averaged gradients, in
// f32, are divided by the scale. If one overflows, the step is skipped, and a scale that adapts is
// halved. All ranks decide alike: if any rank's gradient is infinite, no rank's average is finite.
#include "amp.h"
#include "agree.h"
#include "check.h"
#include "trace.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_SCALE = 65536 };

struct Amp {
    AmpConfig config;
    Model *model;
    Ddp *ddp;
    Scalars *scalars;
    bool adapts, scaled;    // does the loss scale adapt; can the scale differ from 1?
    bool first, last;       // is the current part the batch's first, its last?
    float *sum;             // device: the earlier parts' gradients; NULL: no --accumulate
    Type short_type;        // in which gradients are sent; f32: not compressed
    uint16_t *sent;         // device: gradients in short_type, or NULL
};

void amp_options(Args *args, AmpConfig *config)
{
    *config = (AmpConfig){ .mode = "auto", .growth_interval = 2000, .accumulate = 1,
                           .compress = "none" };
    args_add(args, ARGS_ROWS(
        { "amp", 0, ARG_CHOICE, &config->mode, "auto|off|bf16|fp16",
          "type to compute in (auto: the fastest of this device; off: f32)" },
        { "loss-scale", 0, ARG_DOUBLE, &config->loss_scale, "S",
          "fixed factor on the loss (0: none, but fp16 adapts one)", 0, 0x1p40 },
        { "growth-interval", 0, ARG_INT, &config->growth_interval, "N",
          "fp16: double the loss scale after N steps without overflow", 1, 1e9,
          .needs = "amp auto|fp16" },
        { "accumulate", 0, ARG_INT, &config->accumulate, "K",
          "process a batch in up to K parts, then take one step", 1, 65536 },
        { "clip-norm", 0, ARG_DOUBLE, &config->clip_norm, "X",
          "scale all gradients down together if their total norm exceeds X (0: never)", 0, 1e9 },
        { "compress", 0, ARG_CHOICE, &config->compress, "none|bf16|fp16",
          "type in which gradients are sent (none: f32)" }));
}

void amp_check_options(const Args *args, const AmpConfig *config, int batch_size)
{
    if (config->accumulate > batch_size)
        args_reject(args, "accumulate", "a batch of %d samples cannot be split into %d parts",
                    batch_size, config->accumulate);
    if (config->loss_scale > 0 && config->loss_scale < LOSS_SCALE_LEAST)
        args_reject(args, "loss-scale", "%g is too small (below 2^-24)", config->loss_scale);
    if (config->loss_scale > 0 && args_given(args, "growth-interval"))
        args_reject(args, "growth-interval", "has no effect with --loss-scale");
    if (config->clip_norm > 0 && config->clip_norm < FLT_MIN)
        args_reject(args, "clip-norm", "%g is too small (below %g)", config->clip_norm, FLT_MIN);
}

// ==== Which types ================================================================================

static const char *const type_names[] = { "f32", "bf16", "fp16" };

static Type type_named(const char *name)
{
    return strcmp(name, "bf16") == 0 ? TYPE_BF16 : strcmp(name, "fp16") == 0 ? TYPE_F16 : TYPE_F32;
}

// With --amp auto, a run resumes in fp16 if its checkpoint has a loss scale other than 1, unless
// rank 0's device only emulates fp16.
Type amp_type(const AmpConfig *config, const Dataset *data, const World *world,
              const Device *device, const char *from)
{
    bool scaled = from && !ops_emulates(device, TYPE_F16) && checkpoint_is_scaled(from);
    scaled = agree_broadcast(world, "loss scale", scaled);
    return strcmp(config->mode, "auto") != 0 ? type_named(config->mode)
         : scaled ? TYPE_F16 : ops_best_type(device, data->per_row == 1);
}

// ==== The loss scale =============================================================================

// A checkpoint of a run that never had an adaptive scale has scale 1 and no skipped steps.
static void restore_scale(Amp *amp, const TrainState *state)
{
    bool resumes = state->loss_scale != 1 || state->skipped_steps > 0;
    LossScale scale = { 1, (int32_t)state->clean_steps, (int32_t)state->skipped_steps };
    if (amp->config.loss_scale > 0)
        scale.value = (float)amp->config.loss_scale;
    else if (amp->adapts)
        scale.value = resumes ? (float)state->loss_scale : FIRST_SCALE;
    copy_to_device(device_stream(amp->model->device), &amp->scalars->scale, &scale, sizeof scale);
}

static Scalars read_scalars(Amp *amp)
{
    Scalars seen;
    Stream *stream = device_stream(amp->model->device);
    copy_to_host(stream, &seen, amp->scalars, sizeof seen);
    stream_sync(stream);
    return seen;
}

void amp_save(Amp *amp, TrainState *state)
{
    if (!amp->adapts)
        return;
    Scalars seen = read_scalars(amp);
    state->loss_scale = seen.scale.value;
    state->clean_steps = seen.scale.clean;
    state->skipped_steps = seen.scale.skipped;
}

bool amp_may_skip(Amp *amp, const Stats *stats, const TrainState *state)
{
    double scale = read_scalars(amp).scale.value;
    bool failed = amp->adapts ? scale < 1 : scale > 1 && stats->not_finite == 0;
    if (failed)
        fail_loss_scale(scale, !amp->adapts, state->epoch + 1, state->step);
    return amp->adapts;
}

Scalars amp_read(Amp *amp)
{
    if (amp->config.clip_norm == 0)     // otherwise amp_wait has computed the norm
        gradients_norm(amp->model->ops, amp->model->grad_count, amp->model->grads, amp->scalars);
    Scalars seen = read_scalars(amp);
    if (!amp->scaled)
        seen.scale.value = 0;
    return seen;
}

void amp_update(Amp *amp)
{
    if (amp->adapts)
        loss_scale_adapt(amp->model->ops, amp->scalars, amp->config.growth_interval);
    trace_begin("cast");
    model_cast_weights(amp->model);
    trace_end();
}

// Clipping must not depend on the scale, so the norm is that of the unscaled gradients.
void amp_wait(Amp *amp)
{
    Model *model = amp->model;
    ddp_wait(amp->ddp);
    trace_begin("unscale");
    if (amp->scaled)
        gradients_unscale(model->ops, model->grad_count, model->grads, amp->scalars);
    if (amp->config.clip_norm > 0)
        gradients_norm(model->ops, model->grad_count, model->grads, amp->scalars);
    trace_end();
}

// ==== A batch in parts ===========================================================================
//
// Several forward and backward passes add up to the gradients of one large batch, but keep only one
// part's activations, and send gradients only once. BatchNorm sees one part at a time, so a network
// with BatchNorm learns slightly different weights than from the large batch.

// On a GPU each part must start at a multiple of 16 bytes: 8 numbers of 16 bits.
int amp_rows(const AmpConfig *config, const Dataset *data, int batch_size)
{
    int rest = data->channels * data->height * data->width % 8;
    int rows = (batch_size + config->accumulate - 1) / config->accumulate;
    while (rows < batch_size && rows * rest % 8 != 0)
        rows++;
    return rows;
}

Shape amp_batch_shape(const Model *model, int batch_size)
{
    Shape shape = model->input;
    shape.n = batch_size;
    return shape;
}

bool amp_part(Amp *amp, const Batch *batch, int i, Batch *part)
{
    const Shape shape = amp->model->input;
    int begin = i * shape.n, left = batch->rows - begin;
    if (left <= 0)
        return false;
    amp->first = begin == 0;
    amp->last = left <= shape.n;
    *part = batch_part(batch, shape, begin, amp->last ? left : shape.n);
    return true;
}

void amp_ready(void *arg, size_t offset, size_t count)
{
    Amp *amp = arg;
    Model *model = amp->model;
    float *grads = model->grads + offset, *sum = amp->sum + offset;
    if (amp->first && !amp->last)
        copy_on_device(device_stream(model->device), sum, grads, count * sizeof *grads);
    else if (!amp->last)
        add_into(model->ops, count, sum, grads);
    else if (!amp->first)
        add_into(model->ops, count, grads, sum);
    if (amp->last)
        ddp_ready(amp->ddp, offset, count);
}

// ==== Short messages =============================================================================

// A DdpHook: each rank divides its gradients by the number of ranks before the sum. So, apart from
// rounding, the sum does not exceed the largest gradient, and overflows only if that gradient does.
static void average_short(void *arg, Comm *comm, Stream *stream, float *grads, size_t count)
{
    Amp *amp = arg;
    Ops *ops = amp->model->ops;
    bool half = amp->short_type == TYPE_F16;
    uint16_t *sent = amp->sent + (grads - amp->model->grads);
    values_narrow(ops, stream, amp->short_type, count, grads, 1.0f / (float)comm_size(comm), sent);
    comm_all_reduce(comm, stream, sent, count, half ? COMM_F16 : COMM_BF16);
    values_widen(ops, stream, amp->short_type, count, sent, grads);
}

// ==== Output =====================================================================================

static void introduce_type(const Amp *amp, Log *log)
{
    Type type = amp->model->config.type;
    bool automatic = strcmp(amp->config.mode, "auto") == 0;
    const char *why = automatic ? (type == TYPE_F32 ? ": no 16-bit type is faster here" : "")
        : ops_emulates(amp->model->device, type) ? ", emulated: slow, for learning only" : "";
    char parts[48] = "";
    if (amp->sum)
        snprintf(parts, sizeof parts, " | in parts of %d", amp->model->config.batch);
    log_say(log, "   == amp: %s%s%s", type == TYPE_F32 ? "off" : type_names[type], why, parts);
}

// ==== New and free ===============================================================================

void amp_begin(Amp *amp, const World *world, Log *log, const TrainState *state)
{
    Model *model = amp->model;
    Type type = model->config.type;
    agree_same(world, "--amp", type_names[type]);
    log_event(log, "amp", json_pack("{s:s, s:I}", "type", type_names[type], "activation_bytes",
                                    (json_int_t)model_activation_bytes(model, type)));
    introduce_type(amp, log);
    restore_scale(amp, state);
    model_cast_weights(model);
}

Amp *amp_new(const AmpConfig *config, Model *model, Ddp *ddp, Scalars *scalars)
{
    Amp *amp = xcalloc(1, sizeof *amp);
    *amp = (Amp){ .config = *config, .model = model, .ddp = ddp, .scalars = scalars,
                  .short_type = type_named(config->compress) };
    amp->adapts = model->config.type == TYPE_F16 && config->loss_scale == 0;
    amp->scaled = amp->adapts || config->loss_scale > 0;
    if (config->accumulate > 1)
        amp->sum = device_alloc(model->device, model->ready_count * sizeof *amp->sum);
    if (amp->short_type != TYPE_F32) {
        amp->sent = device_alloc(model->device, model->ready_count * sizeof *amp->sent);
        ddp_set_hook(ddp, average_short, amp);
    }
    return amp;
}

void amp_free(Amp *amp)
{
    device_free(amp->model->device, amp->sent);
    device_free(amp->model->device, amp->sum);
    free(amp);
}
