// optim.h - SGD and AdamW: their options, their state, and the learning rate of each step.
#pragma once
#include "model.h"

typedef struct OptimConfig {
    const char *name;       // sgd, adamw
    double lr, momentum, weight_decay;
    double beta1, beta2;    // adamw
    bool nesterov;
    const char *schedule;   // constant, step, cosine
    const char *milestones; // step: "30,60,80", the epochs of the decays
    double gamma;           // step: factor of each decay
    double min_lr;          // cosine: the final rate before lr_scale, if less than lr
    int cosine_steps;       // cosine: steps until the final rate; 0: all steps of the run
    const char *warmup;     // how long the rate first rises linearly: "0.5" epochs, or "100steps"
    const char *lr_scale;   // how lr grows with the number of ranks: none, linear, sqrt
} OptimConfig;
OptimConfig optim_defaults(void);
// Sets the defaults and adds the options.
void optim_options(Args *args, OptimConfig *config);
// Adds --lr-scale, for programs with ranks. With linear or sqrt, the default warm-up has 5 epochs
// (gpt: 100 steps).
//
// N ranks take a step with N times the samples, and an epoch has an N-th of the steps. So each step
// should be longer. With SGD, one step with the mean of N gradients at N times the rate goes about
// as far as N steps with one gradient each: so scale by N (linear; Goyal et al., 2017). Adam
// divides a gradient by the gradient's own size. So only the noise in a step changes: it shrinks by
// sqrt(N), so scale by sqrt(N) (sqrt; Malladi et al., 2022). Both rules fail while the weights
// change quickly, as they do at first. So the rate rises during a warm-up.
void optim_scale_options(Args *args, OptimConfig *config);

// Returns the learning rate of `step`: epoch * steps_per_epoch + the step in the epoch, both from
// 0. So a run that resumes with a different global batch, and so steps_per_epoch, continues in the
// same epoch. The rate depends only on the arguments: a checkpoint need not store it.
double optim_lr(const OptimConfig *config, int ranks, int64_t step, int64_t steps_per_epoch,
                int64_t epochs);

enum { OPTIM_ARENAS = 2 };  // SGD has one, momentum; AdamW has two, exp_avg and exp_avg_sq

typedef struct Optim {
    const OptimConfig *config;
    Model *model;
    Array arenas[OPTIM_ARENAS]; // a value for each parameter, with the layout of model->params
    int arena_count;
    uint8_t *decays;        // device memory: the `decays` that AdamW passes to adamw_update
} Optim;
// config and model must stay valid until optim_free.
Optim *optim_new(const OptimConfig *config, Model *model);
void optim_free(Optim *optim);

// Allocates Scalars in device memory, with a loss scale of 1. Free them with device_free.
Scalars *scalars_new(Device *device);
// Returns the settings of the step after `global_step` steps; clip_norm and rows_of_batch are 0.
StepSettings optim_settings(const Optim *optim, double lr, int64_t global_step);
void optim_step(Optim *optim, const Scalars *scalars);
