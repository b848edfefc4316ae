// checkpoint.h - the whole state of a training run in one safetensors file, with torchvision's
// names and layouts, so that PyTorch opens it:
//
//   state = safetensors.torch.load_file(path)
//   state = {k: v for k, v in state.items() if not k.startswith("ddp.")}
//   torchvision.models.resnet18(num_classes=10).load_state_dict(state)
//
// State that PyTorch keeps elsewhere (momentum, epoch, step, ...) is in the same file as ddp.*.
// After a crash the old or the new checkpoint is there, complete.
#pragma once
#include "args.h"
#include "check.h"
#include "optim.h"

typedef struct CheckpointConfig {
    const char *save;           // or NULL
    int save_every;             // steps; 0: only after epochs
    const char *resume, *init;  // file to read: the whole state, or only the weights
    bool evaluate;
} CheckpointConfig;
void checkpoint_options(Args *args, CheckpointConfig *config);
// Exits if these options contradict each other. Call it after args_parse.
void checkpoint_check_options(const Args *args, const CheckpointConfig *config);
// The file to resume from, or NULL. For --resume auto it checks whether --save's file is there.
const char *checkpoint_find(const CheckpointConfig *config);

typedef struct TrainState {
    int64_t seed;
    int64_t epoch, step;        // the next step, counted within its epoch, from 0
    int64_t global_step;
    int64_t batch_size;         // global; a step is one such batch
    int64_t order;              // from data_order; 0: not known
    double best_top1;           // percent, on the test set; -1 before the first evaluation
    double loss_scale;          // 1 unless it adapts; then the next two are 0
    int64_t clean_steps;        // since the loss scale changed
    int64_t skipped_steps;      // for an overflow, since the run began
    int64_t ranks;              // 0: a program without ranks
    int64_t virtual_ranks;      // number of virtual ranks, or 0
    Stats running;              // of the current epoch
} TrainState;

// `dataset` is recorded for messages about a file that does not fit a model. Returns when the file
// is on the disk.
bool checkpoint_save(const char *path, Model *model, const Optim *optim, const TrainState *state,
                     const char *dataset, Error *err);
// Is a checkpoint due after state->global_step steps, in the middle of an epoch?
bool checkpoint_due(const CheckpointConfig *config, const TrainState *state);

// Restores everything, or if optim and state are NULL only the model; the file may then be
// torchvision's own. If it fails, nothing changes.
bool checkpoint_load(const char *path, Model *model, Optim *optim, TrainState *state, Error *err);

// Was the file saved with a loss scale that adapts? False if it cannot be read.
bool checkpoint_is_scaled(const char *path);
// Can a run that would begin as `run` continue from `saved`, the state in the file at path? The
// seed must be the same, and in mid-epoch also the samples and their order.
bool checkpoint_continues(const char *path, const TrainState *saved, const TrainState *run,
                          int64_t steps_per_epoch, Error *err);
// Makes `saved` the state with which `run` continues. With a different global batch, the epoch
// continues at the last step that leaves out no sample; samples that are then read twice count
// twice in `running`. Warns about this, and about a changed number of ranks or virtual ranks.
void checkpoint_adapt(const char *path, TrainState *saved, const TrainState *run);

// Claims the files of --save for this run (output.h). Fails if a different run saves to them, or if
// they cannot be written. Warns if this run, which resumes from `from` (or NULL), will replace a
// different run's checkpoint.
bool checkpoint_claim(const char *save, const char *from, Error *err);
