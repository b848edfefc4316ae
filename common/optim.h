// optim.h - SGD: its options, what it keeps from step to step, and the learning rate of each step.
#pragma once
#include "model.h"

typedef struct OptimConfig {
    double lr, momentum, weight_decay;
    bool nesterov;
    double label_smoothing; // of the loss
    const char *schedule;   // constant, step, multistep, cosine
    int step_size;          // step: epochs between two decays
    const char *milestones; // multistep: "60,120,160", in epochs
    double gamma;           // step, multistep: what the rate is multiplied by
    double warmup_epochs;   // the rate rises linearly, batch by batch, over so many epochs
    const char *lr_scale;   // linear: the rate is one rank's, and is multiplied by their number
    int ranks;              // this; 0: one
    const Args *args;       // knows whether --warmup was given: linear warms up without it too
} OptimConfig;
OptimConfig optim_defaults(void);
void optim_options(Args *args, OptimConfig *config);
// --lr-scale; args must stay where they are. For programs that set config->ranks.
void optim_scale_options(Args *args, OptimConfig *config);

// The learning rate of a step (epochs before it times steps_per_epoch, plus its number in its own):
// a pure function, so that a resumed run needs to remember nothing.
double optim_lr(const OptimConfig *config, int64_t global_step, int64_t steps_per_epoch,
                int64_t epochs);

// What an optimizer keeps of every parameter: an arena laid out like the model's parameters.
typedef struct OptimArena {
    const char *name;       // in a checkpoint its tensors are ddp.NAME.PARAMETER
    float *values;          // device
} OptimArena;

enum { OPTIM_ARENAS = 1 };  // SGD has one, "momentum"

typedef struct Optim {
    const OptimConfig *config;
    Model *model;
    OptimArena arenas[OPTIM_ARENAS];
    int arena_count;
} Optim;
// config and model must stay where they are.
Optim *optim_new(const OptimConfig *config, Model *model);
void optim_free(Optim *optim);

// What the options say about a step's Scalars; the others are 0.
Scalars optim_scalars(const Optim *optim, double lr);
// Updates the model's parameters by its gradients, on the compute stream.
void optim_step(Optim *optim, const Scalars *scalars);
