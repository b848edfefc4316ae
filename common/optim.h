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
    double min_lr;          // cosine: the rate at its end, if less than lr
    int cosine_steps;       // cosine: steps until its end; 0: all of the run's
    const char *warmup;     // while the rate rises linearly: epochs ("0.5"), or steps ("100steps")
    const char *lr_scale;   // how lr grows with the number of ranks: none, linear, sqrt
} OptimConfig;
OptimConfig optim_defaults(void);
// Sets the defaults and adds the options.
void optim_options(Args *args, OptimConfig *config);
// Adds --lr-scale, for programs with ranks. With it, the warm-up has 5 epochs by default.
//
// N ranks take a step with N times the samples, and an epoch has an N-th of the steps. So each step
// should be longer. With SGD, one step with the mean of N gradients at N times the rate goes about
// as far as N steps with one gradient each: linear (Goyal et al., 2017). Adam divides a gradient by
// its own size, so its step does not grow with the mean of more gradients; only the noise in it
// shrinks, by sqrt(N): sqrt (Malladi et al., 2022). Both fail if the weights change quickly, as
// they do at first. So the rate rises during a warm-up.
void optim_scale_options(Args *args, OptimConfig *config);

// The learning rate of a step, which is counted from 0 over all epochs, of a run with so many
// ranks. It depends only on the arguments, so a checkpoint need not store it. A run may resume with
// another global batch: its epochs then have another number of steps, but the epoch is the same.
double optim_lr(const OptimConfig *config, int ranks, int64_t step, int64_t steps_per_epoch,
                int64_t epochs);

enum { OPTIM_ARENAS = 2 };  // SGD has one, momentum; AdamW exp_avg and exp_avg_sq

typedef struct Optim {
    const OptimConfig *config;
    Model *model;
    Array arenas[OPTIM_ARENAS]; // a value for each parameter, with the layout of model->params
    int arena_count;
    uint8_t *decays;        // AdamW: which parameters decay, as adamw_update wants it; device
} Optim;
// config and model must stay valid until optim_free.
Optim *optim_new(const OptimConfig *config, Model *model);
void optim_free(Optim *optim);

// In device memory, with a loss scale of 1. Free them with device_free.
Scalars *scalars_new(Device *device);
// The settings of the step after `global_step` others; clip_norm and rows_of_batch are 0.
StepSettings optim_settings(const Optim *optim, double lr, int64_t global_step);
void optim_step(Optim *optim, const Scalars *scalars);
