// ddp.h - the same model on every rank: gradients are averaged while backward still runs, as in
// torch.nn.parallel.DistributedDataParallel.
#pragma once
#include "args.h"
#include "comm.h"
#include "model.h"
#include "optim.h"

typedef struct DdpConfig {
    double bucket_mb;           // MiB of gradients that travel together; 0: all, after backward
    bool overlap;               // on a stream of their own, beside backward
    bool sync_bn;               // BatchNorm's statistics are those of all ranks' batches
    CommConfig comm;
} DdpConfig;
// Sets the defaults and adds the options.
void ddp_options(Args *args, DdpConfig *config);

typedef struct Ddp Ddp;
// Torch's communication hook: adds up one bucket over the ranks, on the stream, in whatever way.
// Returns the factor that makes it their average: one over their number, if nothing else was done;
// the same in every step.
typedef float (*DdpHook)(void *arg, Comm *comm, Stream *stream, float *grads, size_t count);

// Meets the other ranks. scalars and stats: the training step's, where a gradient that is not
// finite is noted.
Ddp *ddp_new(const DdpConfig *config, const World *world, Model *model, Scalars *scalars,
             Stats *stats);
void ddp_free(Ddp *ddp);        // all ranks are through: to end now is no death (alive_done)
void ddp_set_hook(Ddp *ddp, DdpHook hook, void *arg);

// Rank 0's on every rank: parameters, buffers, the optimizer's arenas, and `bytes` of host memory at
// `state`. Fails if the weights are not the same then.
void ddp_broadcast(Ddp *ddp, const Optim *optim, void *state, size_t bytes);

// model_backward's callback: these gradients are final. arg: the Ddp.
void ddp_ready(void *arg, size_t offset, size_t count);
// Behind it the compute stream has every rank's average in the model's gradients.
void ddp_wait(Ddp *ddp);
// After each step: if a rank wishes to stop (interrupt.h), all agree to.
void ddp_agree(Ddp *ddp);

// Returns this rank's hash of the weights if it is everybody's, else fails and names the ranks.
uint64_t ddp_compare(Ddp *ddp, uint64_t hash);
