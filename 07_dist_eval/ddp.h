// ddp.h - rule 3: all ranks take the same step, with the average of all ranks' gradients.
//
// Two files implement this rule; a program links one of them. ddp_naive.c averages after backward,
// ddp.c during backward, as torch.nn.parallel.DistributedDataParallel does.
#pragma once
#include "comm.h"

typedef struct Ddp Ddp;

// grads: device memory, (count), which backward fills from front to back. They are averaged in
// buckets of at least bucket_bytes; ddp_naive.c ignores this size.
Ddp *ddp_new(float *grads, size_t count, Device *device, Comm *comm, size_t bucket_bytes);
void ddp_free(Ddp *ddp);    // after comm_free: the communicator may wait for ddp's stream

// Backward calls it when all work that makes these gradients final is on the compute stream. Fails
// unless the range begins where the previous range ended. arg: the Ddp.
void ddp_ready(void *arg, size_t offset, size_t count);
// Call it after backward. Later work on the compute stream sees gradients that are averaged over
// all ranks. Fails if backward has left out a gradient.
void ddp_wait(Ddp *ddp);

// PyTorch's communication hook, for programs that send gradients in a form of their own: takes the
// place of ddp's average. The hook replaces these gradients with their average over the ranks, on
// the stream.
typedef void (*DdpHook)(void *arg, Comm *comm, Stream *stream, float *grads, size_t count);
void ddp_set_hook(Ddp *ddp, DdpHook hook, void *arg);
