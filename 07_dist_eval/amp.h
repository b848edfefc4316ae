// amp.h - mixed precision: 16 bits where they are enough, 32 where they are not; and what goes with
// it: a loss scale, batches in parts, gradients that are clipped and travel short.
#pragma once
#include "args.h"
#include "checkpoint.h"
#include "data.h"
#include "ddp.h"
#include "log.h"

typedef struct AmpConfig {
    const char *mode;           // auto, off, bf16, fp16
    double loss_scale;          // 0: in fp16 one that adapts, else none
    int growth_interval;        // steps without an overflow after which that doubles
    int accumulate;             // parts of a batch, one after the other
    double clip_norm;           // 0: gradients are as long as they are
    const char *compress;       // none, bf16, fp16
    bool verbose;
} AmpConfig;
// Sets the defaults and adds the options.
void amp_options(Args *args, AmpConfig *config);
// Exits with a line about options that do not go together. Call it after args_parse.
void amp_check_options(const Args *args, const AmpConfig *config, int batch_size);

// What the model computes with on this device; and the rows of a part: those that go through the
// model at once.
Type amp_type(const AmpConfig *config, const Device *device);
int amp_rows(const AmpConfig *config, const Dataset *data, int batch_size);
Shape amp_images(const Model *model, int batch_size);   // all of a batch's

typedef struct Amp Amp;
// scalars: the training step's. The model is of the type and rows above.
Amp *amp_new(const AmpConfig *config, Model *model, Ddp *ddp, Scalars *scalars);
void amp_free(Amp *amp);
// When every rank has the weights and the state: fails unless all compute in the same type; says
// which; sets the loss scale to the state's, or its first; makes the first short copies of weights.
void amp_begin(Amp *amp, const World *world, Log *log, const TrainState *state);
// Puts the loss scale into the state, if it adapts.
void amp_save(Amp *amp, TrainState *state);

// The batch's part number i, or false when there are no more. amp_ready knows that it is under way.
bool amp_part(Amp *amp, const Batch *batch, int i, Batch *part);
// model_backward's callback: parts are added up; with the last one the sum goes on to ddp_ready.
void amp_ready(void *arg, size_t offset, size_t count);
// The length of the gradients, if they are to be clipped: sgd_update shortens them by it. Behind
// ddp_wait, which has averaged them and undone the loss scale.
void amp_measure(Amp *amp);
// After the optimizer: the loss scale moves, and the short copies follow their masters.
void amp_update(Amp *amp);

// Waits for the device. loss_scale is 0 where there is none; norm is of the last step's gradients.
Scalars amp_read(Amp *amp);
// Gradients were not finite. True: steps were left out, and that is all: the loss scale adapts. Ends
// the run where a fixed one is to blame, or where it has become so small that it is not.
bool amp_may_skip(Amp *amp, const Log *log, const Stats *stats, const TrainState *state);
