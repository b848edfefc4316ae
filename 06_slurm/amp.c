// amp.c - mixed precision.
//
// 16-bit floats need half the memory and memory bandwidth, and some processors multiply them
// several times as fast. But they have too few digits for long sums and for small changes of large
// values. So both 16 and 32 bits are used:
//
//   short (bf16, fp16)   images, activations and their gradients, factors of matrix products
//   f32                  sums inside a layer, statistics of a batch, logits;
//                        gradients of parameters, the optimizer and the weights it changes
//
// bf16 has the range of f32. fp16 does not: small gradients would become 0. So the loss is
// multiplied by a large scale, and so are all gradients of backward. The averaged gradients, in
// f32, are divided by the scale. If a gradient overflows, the step is skipped, and an adaptive
// scale is halved. All ranks decide alike: no average with an infinite gradient is finite.
#include "amp.h"
#include "agree.h"
#include "trace.h"

#include <float.h>
#include <string.h>

enum { FIRST_SCALE = 65536 };

static void check_options(Args *args, void *amp_config)
{
    const AmpConfig *config = amp_config;
    if (config->loss_scale > 0 && config->loss_scale < LOSS_SCALE_LEAST)
        args_reject(args, "loss-scale", "%g is too small (below 2^-24)", config->loss_scale);
    if (config->loss_scale > 0 && args_given(args, "growth-interval"))
        args_reject(args, "growth-interval", "has no effect with --loss-scale");
    if (config->clip_norm > 0 && config->clip_norm < FLT_MIN)
        args_reject(args, "clip-norm", "%g is too small (below %g)", config->clip_norm, FLT_MIN);
}

void amp_options(Args *args, AmpConfig *config)
{
    *config = (AmpConfig){ .mode = "auto", .growth_interval = 2000 };
    args_add(args, ARGS_ROWS(
        { "amp", 0, ARG_CHOICE, &config->mode, "auto|off|bf16|fp16",
          "type to compute in (auto: the fastest on this device; off: f32)", .first = true },
        { "loss-scale", 0, ARG_DOUBLE, &config->loss_scale, "S",
          "fixed loss scale (0: adaptive in fp16, otherwise none)", 0, 0x1p40 },
        { "growth-interval", 0, ARG_INT, &config->growth_interval, "N",
          "fp16: double the loss scale after N steps without an overflow", 1, 1e9,
          .needs = "amp=auto|fp16" },
        { "clip-norm", 0, ARG_DOUBLE, &config->clip_norm, "X",
          "scale all gradients down together if their total norm exceeds X (0: never)", 0, 1e9 }));
    args_check(args, check_options, config);
}

// ==== Which types ================================================================================

static const char *const type_names[] = { "f32", "bf16", "fp16" };

Type amp_type(const AmpConfig *config, const Device *device)
{
    if (strcmp(config->mode, "auto") == 0)
        return ops_best_type(device);
    return strcmp(config->mode, "bf16") == 0 ? TYPE_BF16
         : strcmp(config->mode, "fp16") == 0 ? TYPE_F16 : TYPE_F32;
}

// ==== What the host reads ========================================================================

static Scalars read_scalars(Amp *amp)
{
    Scalars seen;
    Stream *stream = device_stream(amp->model->device);
    copy_to_host(stream, &seen, amp->scalars, sizeof seen);
    stream_sync(stream);
    return seen;
}

void amp_describe(Amp *amp, LogStep *line)
{
    if (amp->config->clip_norm == 0)    // otherwise amp_clip has computed the norm
        gradients_norm(amp->model->ops, amp->model->grad_count, amp->model->grads, amp->scalars);
    Scalars seen = read_scalars(amp);
    line->norm = seen.norm;
    line->loss_scale = amp->scaled ? seen.scale.value : 0;
    line->skipped = seen.scale.skipped;
}

void amp_check_finite(Amp *amp, const Stats *stats, const TrainState *state)
{
    bool bad = stats->bad_gradients > 0;
    if (!bad && stats->not_finite == 0)
        return;
    double scale = read_scalars(amp).scale.value;
    if (bad && amp->adapts && scale >= 1)
        return;                         // the steps with bad gradients were skipped
    if (bad && (amp->adapts || (scale > 1 && stats->not_finite == 0)))
        fail_loss_scale(scale, !amp->adapts, state->epoch + 1, state->step);
    fail_diverged(stats, state->epoch + 1, state->step);
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

// ==== The rest of a step, after the average ======================================================

void amp_unscale(Amp *amp)
{
    Model *model = amp->model;
    trace_begin("unscale");
    if (amp->scaled)
        gradients_unscale(model->ops, model->grad_count, model->grads, amp->scalars);
    trace_end();
}

// The optimizer clips gradients while it reads them, so here only the norm is computed. The norm
// must not include the loss scale: 65536 times too large, it would clip all gradients.
void amp_clip(Amp *amp)
{
    Model *model = amp->model;
    trace_begin("clip");
    if (amp->config->clip_norm > 0)
        gradients_norm(model->ops, model->grad_count, model->grads, amp->scalars);
    trace_end();
}

void amp_update(Amp *amp)
{
    if (amp->adapts)
        loss_scale_adapt(amp->model->ops, amp->scalars, amp->config->growth_interval);
    trace_begin("cast");
    model_cast_weights(amp->model);
    trace_end();
}

// ==== Begin ======================================================================================

// A checkpoint of a run that never had an adaptive scale has scale 1 and no skipped steps.
static void restore_scale(Amp *amp, const TrainState *state)
{
    bool resumes = state->loss_scale != 1 || state->skipped_steps > 0;
    LossScale scale = { 1, (int32_t)state->clean_steps, (int32_t)state->skipped_steps };
    if (amp->config->loss_scale > 0)
        scale.value = (float)amp->config->loss_scale;
    else if (amp->adapts)
        scale.value = resumes ? (float)state->loss_scale : FIRST_SCALE;
    copy_to_device(device_stream(amp->model->device), &amp->scalars->scale, &scale, sizeof scale);
}

static void introduce_type(const Amp *amp, Log *log)
{
    Type type = amp->model->config.type;
    bool automatic = strcmp(amp->config->mode, "auto") == 0;
    const char *why = automatic ? (type == TYPE_F32 ? ": no 16-bit type is faster here" : "")
        : ops_emulates(amp->model->device, type) ? ", emulated: slow, for learning only" : "";
    log_say(log, "   == amp: %s%s", type == TYPE_F32 ? "off" : type_names[type], why);
    log_event(log, "amp", json_pack("{s:s, s:I}", "type", type_names[type], "activation_bytes",
                                    (json_int_t)amp->model->activation_bytes));
}

void amp_begin(Amp *amp, const World *world, Log *log, const TrainState *state)
{
    Type type = amp->model->config.type;
    amp->adapts = type == TYPE_F16 && amp->config->loss_scale == 0;
    amp->scaled = amp->adapts || amp->config->loss_scale > 0;
    agree_same(world, "--amp", type_names[type]);
    introduce_type(amp, log);
    restore_scale(amp, state);
    model_cast_weights(amp->model);
}
