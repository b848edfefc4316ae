// virtual.h - a fixed number of virtual ranks, computed by any number of processes that divides it.
// With equal processors or GPUs, libraries and thread counts, any such number gives the same bits.
#pragma once
#include "args.h"
#include "data.h"
#include "ddp.h"
#include "log.h"
#include "model.h"
#include "sampler.h"

typedef struct VirtualConfig {
    int ranks;              // 0: each process is a rank
} VirtualConfig;
// Sets the default and adds the option.
void virtual_options(Args *args, VirtualConfig *config);
// With virtual ranks: rejects options that cannot be combined with them, and makes a GPU's
// operations deterministic.
void virtual_check_options(const Args *args, const VirtualConfig *config, OpsConfig *ops);

typedef struct Virtual {
    bool given;             // --virtual-ranks was given; otherwise each process is a rank
    int ranks;              // of the run
    int first, count;       // this process computes ranks first .. first + count - 1
    int current;            // the rank whose batch is in the model, counted from `first`

    Model *model;
    float *buffers, *others;    // BatchNorm's statistics: of rank 0, and of all other ranks
    size_t sent;            // floats that ddp averages
    float *grads;           // host: this process's gradients
    int64_t *sums;          // host: `sent` sums over this process's ranks, then a flag
    int64_t *all_sums;      // device: the same over all ranks
    void *inputs;           // device: a GPU's aligned copy of a batch, or NULL
} Virtual;
// Divides the ranks among the processes. Ends the run if the division leaves a remainder.
void virtual_divide(Virtual *v, const VirtualConfig *config, const World *world);
// Call it before the first step. With virtual ranks, fails if device_name differs between the
// processes, and sets ddp's hook.
void virtual_begin(Virtual *v, const World *world, Model *model, Ddp *ddp, Log *log);
void virtual_end(Virtual *v);

// The samples of this process: in each step a batch for each of its ranks, one after the other.
void virtual_ids(const Virtual *v, const Sampler *sampler, int batch_size, int32_t *ids);
// The batch of this process's i-th rank, cut from `all`. In each step, compute the gradients of
// batches 0 to count - 1, call ddp_wait after each, and then virtual_end_step.
Batch virtual_batch(Virtual *v, const Batch *all, int i);
void virtual_end_step(Virtual *v);
