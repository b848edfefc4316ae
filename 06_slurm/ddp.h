// ddp.h - the same model on every rank: gradients are averaged while backward still runs, as in
// torch.nn.parallel.DistributedDataParallel.
#pragma once
#include "args.h"
#include "comm.h"
#include "model.h"
#include "optim.h"

typedef struct DdpConfig {
    double bucket_mb;           // MiB, size of a bucket; 0: no buckets, all after backward
    bool overlap;               // buckets travel while backward runs, if possible (see ddp_new)
    bool sync_bn;               // BatchNorm's statistics are those of all ranks' batches
    CommConfig comm;
} DdpConfig;
void ddp_options(Args *args, DdpConfig *config);

typedef struct Ddp Ddp;
// Like PyTorch's communication hook: replaces these gradients with their average over the ranks, on
// the stream.
typedef void (*DdpHook)(void *arg, Comm *comm, Stream *stream, float *grads, size_t count);

// Connects the ranks.
Ddp *ddp_new(const DdpConfig *config, const World *world, Model *model);
void ddp_free(Ddp *ddp);    // waits for all ranks
void ddp_set_hook(Ddp *ddp, DdpHook hook, void *arg);
Comm *ddp_comm(Ddp *ddp);

// Copies rank 0's parameters, buffers, optimizer arenas, and `bytes` of host memory at `state` to
// all ranks, and then compares the weights.
void ddp_broadcast(Ddp *ddp, const Optim *optim, void *state, size_t bytes);

// model_backward's callback: these gradients are final. arg: the Ddp. Fails unless the range begins
// where the last one ended.
void ddp_ready(void *arg, size_t offset, size_t count);
// Later work on the compute stream sees gradients that are averaged over all ranks. Fails if
// backward has left out a gradient.
void ddp_wait(Ddp *ddp);

// Compares the ranks' weight hashes, and returns this rank's. If they differ, all ranks end with
// EXIT_RANKS_DIFFER.
uint64_t ddp_compare(Ddp *ddp, uint64_t hash);
