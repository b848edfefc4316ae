// replicas.h - one model on several devices of one process, as torch.nn.DataParallel does it.
#pragma once
#include "args.h"
#include "log.h"
#include "model.h"

typedef struct ReplicasConfig {
    int devices;            // number of devices; 0: all GPUs, or 2 parts of a CPU
    double shared_link;     // MB/s of a simulated link that all devices share; 0: none
} ReplicasConfig;
void replicas_options(Args *args, ReplicasConfig *config);

typedef struct Replicas Replicas;

// Opens the devices. threads: device_share's `asked`. From now on the calling thread drives the
// first device, and must make all the calls below.
Replicas *replicas_open(const ReplicasConfig *config, int threads);
// Frees the copies and closes their devices. The caller closes the first device.
void replicas_close(Replicas *replicas);
// The first device, which also computes the loss and runs the optimizer.
Device *replicas_device(const Replicas *replicas);
// The largest number of a batch's rows that one device gets (torch.chunk's rule).
int replicas_chunk(const Replicas *replicas, int batch);
// The first device computes with this model, the others with copies. In the model's config, `batch`
// counts the rows of all devices, and `pass` those of one (replicas_chunk).
void replicas_add(Replicas *replicas, Model *model, const OpsConfig *ops);

// inputs: (rows, ...) on the first device -> logits of all rows in its model. training: as in
// model_forward. Waits for the devices, so replay_run cannot record a step with this call.
void replicas_forward(Replicas *replicas, const float *inputs, int rows, bool training);
// The first model's dlogits, all rows -> the gradients of the whole batch, in that model. This also
// waits for the devices.
void replicas_backward(Replicas *replicas);
// Prints how long each phase of a step took, on average since the last call, and each device's
// memory.
void replicas_report(Replicas *replicas, Log *log);
