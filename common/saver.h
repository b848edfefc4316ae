// saver.h - checkpoints that a thread writes while training continues.
//
//   training   | step | copy | step | step | step | step |
//   a thread                 | lay out | write | fsync | rename |
//
// Training waits only for the copy from the device, unless the previous two checkpoints are still
// being written.
#pragma once
#include "checkpoint.h"

typedef struct SaverConfig {
    int every;              // steps between checkpoints within an epoch; 0: only after epochs
} SaverConfig;
void saver_options(Args *args, SaverConfig *config);
// Is a checkpoint due after this step (from 1)?
bool saver_due(const SaverConfig *config, int64_t global_step);

// The thread starts with the first saver_save. From then until saver_free no other thread may call
// model_export or model_hash.
typedef struct Saver Saver;
Saver *saver_new(const Model *model, const Optim *optim, const char *dataset);
// As checkpoint_save, but returns when the state has been copied. If the file cannot be written,
// the program ends with an error.
void saver_save(Saver *saver, const char *path, const TrainState *state);
// Waits until all checkpoints are on disk.
void saver_free(Saver *saver);
