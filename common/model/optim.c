// optim.c - the optimizer: its options, the learning rate of each step, its state.
#include "optim.h"
#include "check.h"
#include "trace.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

OptimConfig optim_defaults(void)
{
    return (OptimConfig){ .name = "sgd", .lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4,
                          .nesterov = true, .beta1 = 0.9, .beta2 = 0.999, .schedule = "constant",
                          .milestones = "30,60,80", .gamma = 0.1, .warmup = "0",
                          .lr_scale = "none" };
}

// How many of the milestones ("30,60,80") have passed at this epoch; -1 if the text is not a list.
static int milestones_passed(const char *list, int64_t epoch)
{
    int passed = 0, length;
    for (int at; sscanf(list, "%d%n", &at, &length) == 1; list += length + (list[length] == ','))
        passed += epoch >= at;
    return *list ? -1 : passed;
}

// Reads "0.5" (epochs) or "100steps" (steps). False if the text is neither.
static bool read_warmup(const char *text, double *length, bool *in_steps)
{
    char *end;
    *length = strtod(text, &end);
    *in_steps = strcmp(end, "steps") == 0;
    return isdigit((unsigned char)*text) && *length <= 1e9 && (!*end || *in_steps);
}

static bool scales(const OptimConfig *c, const char *how)
{
    return c->lr_scale && strcmp(c->lr_scale, how) == 0;
}

static void check_options(Args *args, void *config)
{
    const OptimConfig *c = config;
    double length;
    bool in_steps;
    if (args_is(args, "optim", "adamw")) {
        args_default(args, "lr", "0.001");      // as in PyTorch
        args_default(args, "wd", "0.01");
    }
    if (scales(c, "linear") || scales(c, "sqrt"))
        args_default(args, "warmup", "5");
    if (milestones_passed(c->milestones, 0) < 0)
        args_reject(args, "milestones", "'%.100s' is not a list of epochs, such as 30,60,80",
                    c->milestones);
    if (!read_warmup(c->warmup, &length, &in_steps))
        args_reject(args, "warmup", "'%.100s' is neither epochs, such as 0.5, nor steps, such as "
                    "100steps", c->warmup);
}

void optim_options(Args *args, OptimConfig *c)
{
    *c = optim_defaults();
    args_add(args, ARGS_ROWS(
        { "optim", 0, ARG_CHOICE, &c->name, "sgd|adamw", "the optimizer" },
        { "lr", 0, ARG_DOUBLE, &c->lr, "RATE", "learning rate", .max = 1e3, .first = true },
        { "momentum", 0, ARG_DOUBLE, &c->momentum, "M", "SGD's momentum", .max = 1,
          .needs = "optim=sgd" },
        { "nesterov", 0, ARG_FLAG, &c->nesterov, NULL, "use Nesterov's momentum",
          .needs = "momentum" },
        { "beta1", 0, ARG_DOUBLE, &c->beta1, "B", "AdamW: decay rate of the running mean of "
          "gradients", .max = 0.999999, .needs = "optim=adamw" },
        { "beta2", 0, ARG_DOUBLE, &c->beta2, "B", "AdamW: decay rate of the running mean of "
          "squared gradients", .max = 0.999999, .needs = "optim=adamw" },
        { "wd", 0, ARG_DOUBLE, &c->weight_decay, "W",
          "weight decay (AdamW: only for matrices and convolutions)", .max = 1e3 },
        { "schedule", 0, ARG_CHOICE, &c->schedule, "constant|step|cosine",
          "how the learning rate changes during the run" },
        { "milestones", 0, ARG_STRING, &c->milestones, "E,E,..",
          "step: multiply the rate by --gamma at these epochs", .needs = "schedule=step" },
        { "gamma", 0, ARG_DOUBLE, &c->gamma, "F", "step: factor at each milestone", .max = 1,
          .needs = "schedule=step" },
        { "min-lr", 0, ARG_DOUBLE, &c->min_lr, "RATE",
          "cosine: the final rate (from 03 on: before --lr-scale)", .max = 1e3,
          .needs = "schedule=cosine" },
        { "cosine-steps", 0, ARG_INT, &c->cosine_steps, "N",
          "cosine: steps until --min-lr (0: the whole run)", .max = 1e9,
          .needs = "schedule=cosine" },
        { "warmup", 0, ARG_STRING, &c->warmup, "N|Nsteps",
          "warm-up: the rate rises linearly for the first N epochs or N steps" }));
    args_check(args, check_options, c);
}

void optim_scale_options(Args *args, OptimConfig *c)
{
    args_add(args, ARGS_ROWS(
        { "lr-scale", 0, ARG_CHOICE, &c->lr_scale, "none|linear|sqrt",
          "multiply --lr by the number of ranks (linear, for SGD) or by its square root (sqrt, "
          "for AdamW), after a warm-up (default: 5 epochs; gpt: 100 steps)" }));
}

// A step's factor of the learning rate. With many ranks `whole` would be too large at first. So in
// the warm-up the factor rises at every step, from about 1 to `whole`, as in Horovod's example.
static double warm_up(double whole, double warmed, double warm)
{
    return warmed >= warm ? whole : 1 + fmin(1, (warmed + 1) / warm) * (whole - 1);
}

// The step schedule changes the rate between epochs, like torch's StepLR and MultiStepLR. Cosine
// and the warm-up change the rate at every step.
double optim_lr(const OptimConfig *c, int ranks, int64_t step, int64_t steps_per_epoch,
                int64_t epochs)
{
    bool in_steps;
    double warm, lr = c->lr, least = fmin(c->min_lr, lr);
    read_warmup(c->warmup, &warm, &in_steps);
    warm *= in_steps ? 1 : (double)steps_per_epoch;
    double at = (double)step;
    double end = c->cosine_steps > 0 ? c->cosine_steps : (double)steps_per_epoch * (double)epochs;
    if (strcmp(c->schedule, "step") == 0)
        lr *= pow(c->gamma, milestones_passed(c->milestones, step / steps_per_epoch));
    else if (strcmp(c->schedule, "cosine") == 0)
        lr = least + (lr - least) * 0.5 * (1 + cos(M_PI * fmin(1, at / end)));
    if (scales(c, "linear"))
        lr *= warm_up(ranks, at, warm);
    else if (scales(c, "sqrt"))
        lr *= warm_up(sqrt(ranks), at, warm);
    else if (at < warm)
        lr *= (at + 1) / (warm + 1);
    return lr;
}

static bool is_adamw(const Optim *optim) { return strcmp(optim->config->name, "adamw") == 0; }

// As in nanoGPT, weights decay, including embeddings. Vectors (biases, gamma, beta) do not decay.
static uint8_t *decays_new(Model *model)
{
    size_t bytes = model->param_count / PARAM_ALIGN;
    uint8_t *host = xmalloc(bytes), *decays = device_alloc(model->device, bytes);
    memset(host, 1, bytes);
    for (const ModelTensor *t = model->tensors; t < model->tensors + model->tensor_count; t++)
        if (t->kind == MODEL_VECTOR)
            memset(host + t->offset / PARAM_ALIGN, 0, (t->count + PARAM_ALIGN - 1) / PARAM_ALIGN);
    copy_to_device(device_stream(model->device), decays, host, bytes);
    stream_sync(device_stream(model->device));
    free(host);
    return decays;
}

Optim *optim_new(const OptimConfig *config, Model *model)
{
    static const char *const names[][OPTIM_ARENAS] = { { "ddp.momentum." },
                                                       { "ddp.exp_avg.", "ddp.exp_avg_sq." } };
    Optim *optim = xcalloc(1, sizeof *optim);
    *optim = (Optim){ .config = config, .model = model };
    bool adamw = is_adamw(optim);
    if (adamw && scales(config, "linear") && own_rank() == 0)
        WARN("use --lr-scale sqrt", "--lr-scale linear is SGD's rule: AdamW's learning rate should "
             "grow with the square root of the number of ranks");
    for (int i = 0; i < OPTIM_ARENAS && names[adamw][i]; i++)
        optim->arenas[optim->arena_count++] = (Array){
            device_alloc(model->device, model->param_count * sizeof(float)), model->param_count,
            names[adamw][i] };
    optim->decays = adamw ? decays_new(model) : NULL;
    return optim;
}

void optim_free(Optim *optim)
{
    for (int i = 0; i < optim->arena_count; i++)
        device_free(optim->model->device, optim->arenas[i].values);
    device_free(optim->model->device, optim->decays);
    free(optim);
}

Scalars *scalars_new(Device *device)
{
    Scalars *scalars = device_alloc(device, sizeof *scalars), start = { .scale.value = 1 };
    copy_to_device(device_stream(device), scalars, &start, sizeof start);
    return scalars;
}

StepSettings optim_settings(const Optim *optim, double lr, int64_t global_step)
{
    const OptimConfig *c = optim->config;
    return (StepSettings){ .lr = lr, .momentum = c->momentum,
                           .weight_decay = c->weight_decay, .nesterov = c->nesterov,
                           .betas = { c->beta1, c->beta2 },
                           .step = global_step + 1 };
}

void optim_step(Optim *optim, const Scalars *scalars)
{
    Model *m = optim->model;
    float *first = optim->arenas[0].values, *second = optim->arenas[1].values;
    trace_begin("optimizer");
    if (is_adamw(optim))
        adamw_update(m->ops, m->param_count, m->grad_count, m->params, m->grads, first, second,
                     optim->decays, scalars);
    else
        sgd_update(m->ops, m->param_count, m->grad_count, m->params, m->grads, first, scalars);
    trace_end();
}
