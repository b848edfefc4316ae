// optim.h - the options of SGD, and the learning rate of each step; the update is sgd_update in ops.h.
#pragma once
#include "ops.h"

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
