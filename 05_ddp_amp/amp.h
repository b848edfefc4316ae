// amp.h - mixed precision: 16 bits where they are enough, 32 where they are not.
#pragma once
#include "args.h"
#include "checkpoint.h"
#include "log.h"
#include "world.h"

typedef struct AmpConfig {
    const char *mode;           // auto, off, bf16, fp16
    double loss_scale;          // fixed value; 0: adaptive in fp16, otherwise no loss scale
    int growth_interval;        // steps without an overflow after which the scale doubles
    double clip_norm;           // 0: gradients are not clipped
} AmpConfig;
// Sets the defaults and adds the options.
void amp_options(Args *args, AmpConfig *config);

// Returns the type in which the model computes on this device.
Type amp_type(const AmpConfig *config, const Device *device);

typedef struct Amp {
    const AmpConfig *config;
    Model *model;
    Scalars *scalars;
    bool adapts, scaled;        // does the loss scale adapt; can it differ from 1?
} Amp;
// Call it when every rank has the weights and the state. Fails unless all ranks compute in the same
// type. Prints the type, restores the loss scale or sets its first value, and makes 16-bit weights.
void amp_begin(Amp *amp, const World *world, Log *log, const TrainState *state);
// If the loss scale adapts, stores it and its counts of steps in the state.
void amp_save(Amp *amp, TrainState *state);

// After ddp_wait, in this order: amp_unscale divides by the loss scale, amp_clip computes the norm
// for --clip-norm. Then gradients_check, and the optimizer, which clips, but does nothing if a
// gradient is not finite. Then amp_update adapts the loss scale and makes 16-bit weights.
void amp_unscale(Amp *amp);
void amp_clip(Amp *amp);
void amp_update(Amp *amp);

// Waits for the device. Sets the line's norm of the last gradients, loss scale and skipped steps.
void amp_describe(Amp *amp, LogStep *line);
// Ends the run if a loss or a gradient was not finite. But while an adaptive loss scale is at least
// 1, steps with such gradients are allowed: they were skipped.
void amp_check_finite(Amp *amp, const Stats *stats, const TrainState *state);
