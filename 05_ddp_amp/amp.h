// amp.h - mixed precision: 16 bits where they are enough, 32 where they are not, as torch.amp does it;
// with what goes along: a loss scale, batches in parts, gradients that are clipped and travel short.
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

// What the model computes with on this device, and the rows that go through it at once.
Type amp_type(const AmpConfig *config, const Device *device);
int amp_rows(const AmpConfig *config, int batch_size);
Shape amp_images(const Model *model, int batch_size);   // all of a batch's

typedef struct Amp Amp;
// scalars: the training step's. The model is of the type and rows above.
Amp *amp_new(const AmpConfig *config, Model *model, Ddp *ddp, Scalars *scalars);
void amp_free(Amp *amp);
// The weights are as they shall be: makes their short copies; takes up the loss scale where the state
// has one, else at its beginning. Says what is computed in what; all ranks must do the same.
void amp_begin(Amp *amp, const World *world, Log *log, const TrainState *state);
void amp_save(Amp *amp, TrainState *state);

// The batch's part number i, or false when there are no more.
bool amp_part(Amp *amp, const Batch *batch, int i, Batch *part);
// model_backward's callback: parts are added up, and with the last one the sum goes on to ddp_ready.
void amp_ready(void *arg, size_t offset, size_t count);
// Gradients that are averaged, and so unscaled: shortens them, if asked to. Before the optimizer.
void amp_clip(Amp *amp);
// After the optimizer: the loss scale moves, and the short copies follow their masters.
void amp_update(Amp *amp);

// Waits for the device. loss_scale is 0 where there is none; norm is of the last step's gradients.
Scalars amp_read(Amp *amp);
// Gradients were not finite. Is that no more than a reason to leave out a step? Only where the loss
// scale adapts; and it fails, where that has become so small that it was not the reason.
bool amp_copes(Amp *amp, const Log *log, const TrainState *state);
