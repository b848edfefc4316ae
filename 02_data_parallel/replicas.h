// replicas.h - one model on several devices of one process, as torch.nn.DataParallel does it.
#pragma once
#include "args.h"
#include "log.h"
#include "model.h"

typedef struct ReplicasConfig {
    const char *devices;    // "2": so many; "0,2": these; NULL: all GPUs, or two parts of a CPU
} ReplicasConfig;
// Sets the defaults and adds the options.
void replicas_options(Args *args, ReplicasConfig *config);

typedef struct Replicas Replicas;

// Opens the devices: threads as in device_share. The calling thread is the first device's from now
// on, and makes all the calls below.
Replicas *replicas_open(const ReplicasConfig *config, int threads);
// Frees the copies and closes their devices; the first one stays for the caller to close.
void replicas_close(Replicas *replicas);
// The first: loss, optimizer and everything that is not a replica's work are its own.
Device *replicas_device(const Replicas *replicas);
// How many rows of a batch go to a device at most (torch.chunk's rule).
int replicas_chunk(const Replicas *replicas, int batch);
// The first device computes with this model (config.batch rows of logits, config.pass =
// replicas_chunk rows at once); the other devices get copies to compute with.
void replicas_add(Replicas *replicas, Model *model, const OpsConfig *ops);

// images: (rows, ...) on the first device -> logits of all rows in its model. Training or not, as
// in model_forward. Waits for the devices, so it cannot be part of a recorded step (replay_run).
void replicas_forward(Replicas *replicas, const float *images, int rows, bool training);
// All rows of its model's dlogits -> the gradients of the whole batch, in its model. Waits too.
void replicas_backward(Replicas *replicas);

// Where the time of a training step went since the last call, and how full each device is.
void replicas_report(Replicas *replicas, Log *log);
