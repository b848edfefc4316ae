// checkpoint.h - the whole state of a training run in one safetensors file, with torchvision's
// names and layouts, so that PyTorch opens it:
//
//   state = {k: v for k, v in safetensors.torch.load_file(path).items() if not k.startswith("ddp.")}
//   torchvision.models.resnet18(num_classes=10).load_state_dict(state)
//
// What PyTorch keeps elsewhere (momentum, epoch, step, ...) stands in the same file as ddp.*.
// A file is written beside the old one and takes its place in one rename: whatever happens, the old
// or the new checkpoint is there, whole.
#pragma once
#include "args.h"
#include "check.h"
#include "model.h"

typedef struct CheckpointConfig {
    const char *save;           // where to, or NULL
    const char *resume, *init;  // where from: everything, or only the weights
    const char *from;           // what --resume comes to, see checkpoint_to_resume
    bool evaluate;              // only to look at those
} CheckpointConfig;
void checkpoint_options(Args *args, CheckpointConfig *config);
// Exits with a line about options that do not go together. Call it after args_parse.
void checkpoint_check_options(const Args *args, CheckpointConfig *config);
// The file to go on from, or NULL: --resume, which may be auto; as it was when options were checked.
const char *checkpoint_to_resume(const CheckpointConfig *config);

typedef struct TrainState {
    int64_t seed;
    int64_t epoch, step;        // the next step to take: this epoch's, from 0
    int64_t global_step;        // steps taken since the beginning
    int64_t batch_size;         // a step number means nothing without it
    double best_top1;           // percent, on the test set; -1 before the first evaluation
    double loss_scale;
    Stats running;              // of the epoch that is under way
} TrainState;

// Model parameters, buffers and momentum (an arena like the model's parameters) and the state.
// `dataset` is noted in the metadata and in the error when another one resumes.
bool checkpoint_save(const char *path, const Model *model, const float *velocity,
                     const TrainState *state, const char *dataset, Error *err);

// Everything back where it was. Only the weights, if velocity and state are NULL: then the file may
// be torchvision's own. Every tensor of the model must be there with its shape, or nothing changes.
bool checkpoint_load(const char *path, Model *model, float *velocity, TrainState *state,
                     Error *err);

// Can a run that would begin as `run` go on from `saved`? Not with another seed; and in the middle
// of an epoch not with another batch size, or where the epoch has fewer steps by now.
bool checkpoint_continues(const char *path, const TrainState *saved, const TrainState *run,
                          int64_t steps_per_epoch, Error *err);

// Could one be written there? Better asked before the first epoch than after it.
bool checkpoint_probe(const char *path, Error *err);
