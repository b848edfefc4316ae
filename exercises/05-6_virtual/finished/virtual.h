// virtual.h - a fixed number of virtual ranks, computed by any number of processes that divides it.
// With equal processors or GPUs, libraries and thread counts, any such number gives the same bits.
#pragma once
#include "accumulate.h"
#include "args.h"
#include "data.h"
#include "ddp.h"
#include "log.h"
#include "model.h"
#include "sampler.h"
#include "turns.h"

typedef struct VirtualConfig {
    int ranks;              // 0: each process is a rank
} VirtualConfig;
// Sets the default and adds the option.
void virtual_options(Args *args, VirtualConfig *config);
// With virtual ranks: rejects options that cannot be combined with them, and makes a GPU's
// operations deterministic.
void virtual_check_options(const Args *args, const VirtualConfig *config, OpsConfig *ops);

// Forward and backward of one rank, with this model.
typedef void (*VirtualCompute)(void *arg, Model *model, const Batch *batch);

typedef struct Virtual {
    bool given;             // --virtual-ranks was given; otherwise each process is a rank
    int ranks;              // of the run
    int first, count;       // this process computes ranks first .. first + count - 1
    int current;            // the rank that computes, counted from `first`
    const Batch *all;       // the batches of all ranks of this process
    VirtualCompute compute;
    void *arg;              // of compute

    Model **models;         // (count) of each rank: all the same one, unless the ranks take turns
    float *buffers, *others;    // BatchNorm's statistics: of rank 0, and of all other ranks
    Accumulate *accumulate;
    size_t sent;            // floats that ddp averages
    float *grads;           // host: the gradients of a rank; NULL: those of the device are there
    int64_t *sums;          // host: `sent` sums over this process's ranks, then a flag
    int64_t *all_sums;      // device: the same over all ranks
    void *inputs;           // device: a GPU's aligned copies of the batches, or NULL

    // BatchNorm over all ranks, by a process that computes several. Otherwise they are NULL.
    Turns *turns;
    Comm *norms;
    double *mine, *theirs;  // device: what the ranks of this process send, and what all send
} Virtual;
// Divides the ranks among the processes. Ends the run if the division leaves a remainder.
void virtual_divide(Virtual *v, const VirtualConfig *config, const World *world);
// Call it before the first step. With virtual ranks, fails if device_name differs between the
// processes, and sets ddp's hook. norms: of comm_share_norms, or NULL.
void virtual_begin(Virtual *v, const World *world, Accumulate *accumulate, Comm *norms, Log *log);
void virtual_end(Virtual *v);

// The samples of this process: in each step a batch for each of its ranks, one after the other.
void virtual_ids(const Virtual *v, const Sampler *sampler, int batch_size, int32_t *ids);
// Calls compute for each rank of this process with its batch, which is cut from `all`.
void virtual_step(Virtual *v, const Batch *all, VirtualCompute compute, void *arg);
// Backward calls it in place of accumulate_ready. arg: the Virtual.
void virtual_ready(void *arg, size_t offset, size_t count);
