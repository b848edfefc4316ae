// checkpoint.h - the state of a training run in one safetensors file. A model's tensors have
// PyTorch's layouts, and a ResNet's tensors have torchvision's names. In PyTorch, this loads a
// ResNet-18 that was trained on CIFAR-10:
//
//   state = safetensors.torch.load_file(path)
//   state = {k: v for k, v in state.items() if not k.startswith("ddp.")}
//   torchvision.models.resnet18(num_classes=10).load_state_dict(state)
//
// State that PyTorch keeps elsewhere (momentum, epoch, step, ...) is in the same file, in tensors
// named ddp.*. A crash during a save does not damage the previous file.
#pragma once
#include "args.h"
#include "check.h"
#include "optim.h"

typedef struct CheckpointConfig {
    const char *save;           // or NULL
    int save_every;             // steps; 0: off
    const char *resume, *init;  // file to read, or NULL; resume may be "auto"
    bool evaluate;
} CheckpointConfig;
void checkpoint_options(Args *args, CheckpointConfig *config);
// The file to resume from, or NULL. For --resume auto it checks whether --save's file is there.
const char *checkpoint_find(const CheckpointConfig *config);

typedef struct TrainState {
    int64_t seed;
    int64_t epoch, step;        // the next step, counted within its epoch, from 0
    int64_t global_step;
    int64_t batch_size;         // of all ranks together
    int64_t order;              // from data_order; 0: not known
    double best_top1;           // the best model_score; -1: none yet
    double loss_scale;          // the latest adaptive one; 1: there was none
    int64_t clean_steps;        // since the loss scale changed
    int64_t skipped_steps;      // because of an overflow, since the run began
    Stats running;              // of the current epoch
} TrainState;

// What a run has in device memory: parameters, buffers, and the optimizer's arrays. A checkpoint
// holds these and the TrainState, all ranks begin with rank 0's, and model_hash is the hash of the
// parameters. Fills the list and returns its length. Without optim, the list has only the model's.
enum { RUN_ARRAYS = 2 + OPTIM_ARENAS };
int run_arrays(const Model *model, const Optim *optim, Array list[RUN_ARRAYS]);

// True: the file is on the disk.
bool checkpoint_save(const char *path, Model *model, const Optim *optim, const TrainState *state,
                     Error *err);
// Does --save-every ask for a checkpoint after state->global_step steps?
bool checkpoint_due(const CheckpointConfig *config, const TrainState *state);

// Restores everything, or if optim and state are NULL only the model; the file then needs no ddp.*.
// If it fails, nothing changes.
bool checkpoint_load(const char *path, Model *model, Optim *optim, TrainState *state, Error *err);

// Can a run continue from `saved`, the state in the file at path? `run` is the state with which it
// would begin otherwise, and `save` is the file that it saves to, or NULL. The seed must be the
// same. In the middle of an epoch `order`, if it is known, must also be the same, and the epoch
// must be long enough. Then makes `saved` the state with which the run continues: with another
// global batch, an epoch that had begun begins again, with a warning.
bool checkpoint_continue(const char *path, const char *save, TrainState *saved,
                         const TrainState *run, int64_t steps_per_epoch, Error *err);

// Claims the files of --save for this run (output_claim). Warns if this run, which resumes from
// `from` (or NULL), will replace another checkpoint.
bool checkpoint_claim(const char *save, const char *from, Error *err);
