// saver.h - checkpoints that are written while training goes on.
//
//   training   | step | copy | step | step | step | step |
//   a thread                 | lay out | write | fsync | rename |
//
// Training waits for the copy from the device, and no more; unless the two checkpoints before this
// one are still being written.
#pragma once
#include "checkpoint.h"

typedef struct SaverConfig {
    int every;              // steps from one checkpoint to the next within an epoch; 0: none there
} SaverConfig;
void saver_options(Args *args, SaverConfig *config);
// After this step of the run (from 1)?
bool saver_due(const SaverConfig *config, int64_t global_step);

// Its thread starts with the first saver_save. From then until saver_free no other thread may call
// model_export or model_hash. Of config only ranks is used: every checkpoint notes it.
typedef struct Saver Saver;
Saver *saver_new(const CheckpointConfig *config, const Model *model, const Optim *optim,
                 const char *dataset);
// As checkpoint_save, but returns when the state has been copied. What cannot be written ends the
// program, as an error of the training thread would.
void saver_save(Saver *saver, const char *path, const TrainState *state);
// Waits until all is on the disk.
void saver_free(Saver *saver);
