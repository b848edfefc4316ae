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
#include "optim.h"

typedef struct CheckpointConfig {
    const char *save;           // where to, or NULL
    const char *resume, *init;  // where from: everything, or only the weights
    const char *from;           // what --resume comes to, see checkpoint_to_resume
    bool evaluate;              // only to look at those
    int ranks;                  // that train together; 0: one process, which is none
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
    double loss_scale;          // 1, and 0 in the two below: there is none
    int64_t clean_steps;        // since it changed
    int64_t skipped_steps;      // left out for an overflow since the run began
    int64_t ranks;              // that took the steps; 0: not known
    Stats running;              // of the epoch that is under way
} TrainState;

// Model parameters, buffers, the optimizer's arenas and the state. `dataset` is noted for the error
// of a run with another one.
bool checkpoint_save(const char *path, const Model *model, const Optim *optim,
                     const TrainState *state, const char *dataset, Error *err);

// The same in two halves: a copy in host memory, and from it the file. Training continues between
// them. The second half may run in another thread; no other may call model_export meanwhile.
enum { SNAPSHOT_ARENAS = 2 + OPTIM_ARENAS };
typedef struct Snapshot {
    const Model *model;         // names and layouts; the arenas may have changed
    const Optim *optim;
    float *arenas[SNAPSHOT_ARENAS];
    int64_t batches_seen;
    TrainState state;
} Snapshot;
// Waits for the device. A snapshot of zeros gets memory; one that was taken before is used again.
void snapshot_take(Snapshot *snapshot, const Model *model, const Optim *optim,
                   const TrainState *state);
bool snapshot_write(const Snapshot *snapshot, const char *path, const char *dataset, Error *err);
void snapshot_free(Snapshot *snapshot);

// Everything back where it was. Only the weights, if optim and state are NULL: then the file may be
// torchvision's own. Every tensor of the model must be there with its shape, or nothing changes.
bool checkpoint_load(const char *path, Model *model, Optim *optim, TrainState *state, Error *err);

// Can a run that would begin as `run` continue from `saved`? Not with another seed; and in the middle
// of an epoch not with another batch size, or where the epoch has fewer steps by now.
// Another number of ranks (config->ranks > 0) may: where the rest of the epoch would be other batches
// for them, they continue at the next one (`saved` is moved there), with a warning.
bool checkpoint_continues(const CheckpointConfig *config, const char *path, TrainState *saved,
                          const TrainState *run, int64_t steps_per_epoch, Error *err);

// Can one be written there? To be asked before the first epoch, not after it.
bool checkpoint_probe(const char *path, Error *err);
