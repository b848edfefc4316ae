// amp.h - mixed precision: 16 bits where they are enough, 32 where they are not. Also the loss
// scale, batches in parts, gradient clipping and 16-bit messages.
#pragma once
#include "args.h"
#include "checkpoint.h"
#include "data.h"
#include "ddp.h"
#include "log.h"

typedef struct AmpConfig {
    const char *mode;           // auto, off, bf16, fp16
    double loss_scale;          // 0: adaptive in fp16, otherwise none
    int growth_interval;        // steps without an overflow after which the scale doubles
    int accumulate;             // a batch is cut into at most so many parts
    double clip_norm;           // 0: gradients are not clipped
    const char *compress;       // none, bf16, fp16
} AmpConfig;
// Sets the defaults and adds the options.
void amp_options(Args *args, AmpConfig *config);
// Rejects values that are too small, and options that do not fit together. Call it after
// args_parse.
void amp_check_options(const Args *args, const AmpConfig *config, int batch_size);

// The type in which the model computes on this device. All ranks call it together. from: on rank 0,
// the checkpoint to resume, or NULL.
Type amp_type(const AmpConfig *config, const Dataset *data, const World *world,
              const Device *device, const char *from);
// How many rows of a batch go through the model together. The last part may have fewer.
int amp_rows(const AmpConfig *config, const Dataset *data, int batch_size);
Shape amp_batch_shape(const Model *model, int batch_size);  // of all parts together

typedef struct Amp Amp;
// scalars: the training step's. The model must have the type and rows of amp_type and amp_rows.
Amp *amp_new(const AmpConfig *config, Model *model, Ddp *ddp, Scalars *scalars);
void amp_free(Amp *amp);
// Call it when every rank has the weights and the state. Fails unless all ranks compute in the same
// type. Prints the type, restores the loss scale or sets the first, and makes 16-bit weights.
void amp_begin(Amp *amp, const World *world, Log *log, const TrainState *state);
// If the loss scale adapts, stores the scale and its step counts in the state.
void amp_save(Amp *amp, TrainState *state);

// Sets *part to the batch's part i; amp_ready then expects its gradients. False: no more parts.
bool amp_part(Amp *amp, const Batch *batch, int i, Batch *part);
// model_backward's callback: adds up the parts, and with the last one passes the sum to ddp_ready.
void amp_ready(void *arg, size_t offset, size_t count);
// Calls ddp_wait, and divides the averaged gradients by the loss scale. With --clip-norm, computes
// their norm for the optimizer.
void amp_wait(Amp *amp);
// After the optimizer: updates an adaptive loss scale and 16-bit weights, if there are any.
void amp_update(Amp *amp);

// Waits for the device's scalars. scale.value: 0 without a loss scale; norm: of the last gradients.
Scalars amp_read(Amp *amp);
// Call it after steps whose gradients were not finite. True if the loss scale adapts: those steps
// were skipped. Ends the run if a fixed scale is too large, or an adaptive one has fallen below 1.
bool amp_may_skip(Amp *amp, const Stats *stats, const TrainState *state);
