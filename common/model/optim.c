#include "optim.h"
#include "check.h"
#include "trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

OptimConfig optim_defaults(void)
{
    return (OptimConfig){ .name = "sgd", .lr = 0.01, .momentum = 0.9, .weight_decay = 1e-4,
                          .nesterov = true, .betas = "0.9,0.999", .schedule = "constant",
                          .step_size = 30, .milestones = "60,120,160", .gamma = 0.1,
                          .lr_scale = "none" };
}

void optim_options(Args *args, OptimConfig *c)
{
    *c = optim_defaults();
    args_preset(args, "optim", "adamw", "lr = 0.001\nwd = 0.01");     // as in PyTorch
    args_add(args, ARGS_ROWS(
        { "optim", 0, ARG_CHOICE, &c->name, "sgd|adamw", "the optimizer" },
        { "lr", 0, ARG_DOUBLE, &c->lr, "RATE", "learning rate", .min = 0, .max = 1e3 },
        { "momentum", 0, ARG_DOUBLE, &c->momentum, "M", "momentum of SGD", .min = 0, .max = 1,
          .needs = "optim sgd" },
        { "betas", 0, ARG_PAIR, &c->betas, "B1,B2",
          "AdamW: decay rates of the means of the gradient and of its square", .min = 0,
          .max = 0.999999, .needs = "optim adamw" },
        { "wd", 0, ARG_DOUBLE, &c->weight_decay, "W",
          "weight decay (AdamW: only for matrices and convolutions)", .min = 0, .max = 1e3 },
        { "label-smoothing", 0, ARG_DOUBLE, &c->label_smoothing, "S",
          "fraction of each training label spread over all classes (0: none)", .min = 0, .max = 1 },
        { "nesterov", 0, ARG_FLAG, &c->nesterov, NULL, "use Nesterov's momentum",
          .needs = "momentum" },
        { "schedule", 0, ARG_CHOICE, &c->schedule, "constant|step|multistep|cosine",
          "how the learning rate falls during the run" },
        { "step-size", 0, ARG_INT, &c->step_size, "EPOCHS", "step: epochs between decays", .min = 1,
          .max = 1e6, .needs = "schedule step" },
        { "milestones", 0, ARG_LIST, &c->milestones, "E,E,..", "multistep: decay at these epochs",
          .min = 1, .max = 1e6, .needs = "schedule multistep" },
        { "gamma", 0, ARG_DOUBLE, &c->gamma, "F", "step, multistep: decay factor", .min = 0,
          .max = 1, .needs = "schedule step|multistep" },
        { "min-lr", 0, ARG_DOUBLE, &c->min_lr, "RATE", "cosine: the final rate", .min = 0,
          .max = 1e3, .needs = "schedule cosine" },
        { "cosine-steps", 0, ARG_INT, &c->cosine_steps, "N",
          "cosine: steps until --min-lr (0: the whole run)", .min = 0, .max = 1e9,
          .needs = "schedule cosine" },
        { "warmup", 0, ARG_DOUBLE, &c->warmup_epochs, "EPOCHS",
          "epochs in which the learning rate first rises linearly", .min = 0, .max = 1e6 },
        { "warmup-steps", 0, ARG_INT, &c->warmup_steps, "N",
          "steps of warm-up, in place of --warmup", .min = 0, .max = 1e9 }));
}

static int milestones_passed(const char *list, int64_t epoch)
{
    int passed = 0;
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        passed += epoch >= atoll(at);
    return passed;
}

void optim_scale_options(Args *args, OptimConfig *c)
{
    args_add(args, ARGS_ROWS(
        { "lr-scale", 0, ARG_CHOICE, &c->lr_scale, "none|linear|sqrt",
          "multiply --lr by the number of ranks (linear, for SGD) or its root (sqrt, for AdamW), "
          "after a warm-up (default: 5 epochs)" }));
}

static bool scales(const OptimConfig *c, const char *how)
{
    return c->lr_scale && strcmp(c->lr_scale, how) == 0;
}

void optim_default_warmup(const Args *args, OptimConfig *c)
{
    bool scaled = scales(c, "linear") || scales(c, "sqrt");
    if (scaled && !args_given(args, "warmup") && !c->warmup_steps)
        c->warmup_epochs = 5;
}

// The factor of a step: with many ranks the whole factor is too large at first. So in the warm-up
// it rises batch by batch from about 1 to the whole, as in Horovod's ImageNet example.
static double warm_up(double whole, double warmed, double warm)
{
    return warmed >= warm ? whole : 1 + fmin(1, (warmed + 1) / warm) * (whole - 1);
}

// The step and multistep schedules change the rate between epochs, like torch's StepLR and
// MultiStepLR. Cosine and the warm-up change the rate at every step. --warmup-steps and
// --cosine-steps count the steps that were taken: a resumed run may have had another global batch.
double optim_lr(const OptimConfig *c, int ranks, int64_t taken, int64_t step,
                int64_t steps_per_epoch, int64_t epochs)
{
    int64_t epoch = step / steps_per_epoch;
    bool by_steps = c->warmup_steps > 0;
    double warm = by_steps ? c->warmup_steps : c->warmup_epochs * (double)steps_per_epoch;
    double warmed = (double)(by_steps ? taken : step);
    double progress = c->cosine_steps > 0 ? taken / (double)c->cosine_steps
                                          : step / ((double)steps_per_epoch * (double)epochs);
    double lr = c->lr, least = fmin(c->min_lr, lr);
    if (strcmp(c->schedule, "step") == 0)
        lr *= pow(c->gamma, (double)(epoch / c->step_size));
    else if (strcmp(c->schedule, "multistep") == 0)
        lr *= pow(c->gamma, milestones_passed(c->milestones, epoch));
    else if (strcmp(c->schedule, "cosine") == 0)
        lr = least + (lr - least) * 0.5 * (1 + cos(M_PI * fmin(1, progress)));
    if (scales(c, "linear"))
        lr *= warm_up(ranks, warmed, warm);
    else if (scales(c, "sqrt"))
        lr *= warm_up(sqrt(ranks), warmed, warm);
    else if (warmed < warm)
        lr *= (warmed + 1) / (warm + 1);
    return lr;
}

static bool is_adamw(const Optim *optim) { return strcmp(optim->config->name, "adamw") == 0; }

// As in nanoGPT, weights decay, embeddings among them. Vectors (biases, gamma, beta) do not.
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
    static const char *const names[][OPTIM_ARENAS] = { { "momentum" },
                                                       { "exp_avg", "exp_avg_sq" } };
    Optim *optim = xcalloc(1, sizeof *optim);
    *optim = (Optim){ .config = config, .model = model };
    bool adamw = is_adamw(optim);
    if (adamw && scales(config, "linear") && own_rank() == 0)
        WARN("use --lr-scale sqrt", "--lr-scale linear is SGD's rule: AdamW's learning rate should "
             "grow with the root of the number of ranks");
    optim->value_count = (adamw ? 2 : 1) * model->param_count;
    optim->values = device_alloc(model->device, optim->value_count * sizeof(float));
    for (int i = 0; i < OPTIM_ARENAS && names[adamw][i]; i++)
        optim->arenas[optim->arena_count++] = (OptimArena){
            names[adamw][i], optim->values + (size_t)i * model->param_count };
    sscanf(config->betas, "%lf,%lf", &optim->betas[0], &optim->betas[1]);
    optim->decays = adamw ? decays_new(model) : NULL;
    return optim;
}

void optim_free(Optim *optim)
{
    device_free(optim->model->device, optim->values);
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
                           .betas = { optim->betas[0], optim->betas[1] },
                           .step = global_step + 1, .smoothing = c->label_smoothing };
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
