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
    const char *save;           // file to save to, or NULL
    int save_every;             // also save after every save_every steps; 0: off
    const char *resume, *init;  // file to read, or NULL; resume may be "auto"
    bool evaluate;
} CheckpointConfig;
void checkpoint_options(Args *args, CheckpointConfig *config);
// Returns the file to resume from, or NULL. For --resume auto: the file of --save, if it exists.
// Fails on rank 0 if a file of --resume or --init cannot be opened.
const char *checkpoint_find(const CheckpointConfig *config);

typedef struct TrainState {
    int64_t seed;
    int64_t epoch, step;        // the next step: its epoch, and its index in the epoch, from 0
    int64_t global_step;        // steps since the run began
    int64_t batch_size;         // the global batch size: all ranks together
    int64_t order;              // the result of data_order; 0: not known
    double best_top1;           // the best model_score; -1: none yet
    double loss_scale;          // the latest adaptive loss scale; 1: there was none
    int64_t clean_steps;        // steps without an overflow since the loss scale changed
    int64_t skipped_steps;      // steps skipped because of an overflow since the run began
    Stats running;              // sums over the current epoch so far
} TrainState;

// Lists the arrays in device memory that hold a run's state: the model's parameters and buffers,
// and the optimizer's arrays, unless optim is NULL. A checkpoint contains them, and all ranks begin
// with copies of rank 0's. Returns the length of the list.
enum { RUN_ARRAYS = 2 + OPTIM_ARENAS };
int run_arrays(const Model *model, const Optim *optim, Array list[RUN_ARRAYS]);

// Saves a run's state. Returns true when the file is on the disk.
bool checkpoint_save(const char *path, Model *model, const Optim *optim, const TrainState *state,
                     Error *err);
// Does --save-every ask for a checkpoint after state->global_step steps?
bool checkpoint_due(const CheckpointConfig *config, const TrainState *state);

// Restores model, optim and state. If optim and state are NULL, restores only the model, and the
// file needs no ddp.* tensors. If loading fails, nothing changes.
bool checkpoint_load(const char *path, Model *model, Optim *optim, TrainState *state, Error *err);

// Can a run continue from `saved`, the state in the file at path? If so, changes `saved` to the
// state with which the run continues. `run` is the state of a new run; `save` is the file that the
// run saves to, or NULL. The seeds must be equal. If the global batch has changed, prints a
// warning, and an epoch that had begun begins again. Otherwise, in mid-epoch, the orders must also
// be equal, if known, and an epoch must have saved->step steps or more.
bool checkpoint_continue(const char *path, const char *save, TrainState *saved,
                         const TrainState *run, int64_t steps_per_epoch, Error *err);

// Claims the files of --save for this run (output_claim). Warns if the run will replace a
// checkpoint other than `from`, the file from which the run resumes (or NULL).
bool checkpoint_claim(const char *save, const char *from, Error *err);
