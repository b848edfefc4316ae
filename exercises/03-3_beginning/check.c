// If SPY is set, prints which rank reads a checkpoint, and hashes of a rank's weights, statistics and
// momentum at its first step.
#include "checkpoint.h"
#include "comm.h"
#include "model.h"
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>

static int rank = -1, forwards, updates;

static void print_hash(const char *what, const float *values, size_t count)
{
    const unsigned char *bytes = (const unsigned char *)values;
    uint64_t hash = 0xcbf29ce484222325;
    if (!getenv("SPY"))
        return;
    for (size_t i = 0; i < count * sizeof *values; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3;
    fprintf(stderr, "spy: rank %d begins with %s %016llx\n", rank, what, (unsigned long long)hash);
}

WRAPPED(comm_new);
Comm *__wrap_comm_new(const World *world, Device *device, const char *name, const CommConfig *config)
{
    rank = world->rank;
    return __real_comm_new(world, device, name, config);
}

WRAPPED(checkpoint_load);
bool __wrap_checkpoint_load(const char *path, Model *model, Optim *optim, TrainState *state, Error *err)
{
    if (getenv("SPY"))
        fprintf(stderr, "spy: rank %d reads the checkpoint\n", rank);
    return __real_checkpoint_load(path, model, optim, state, err);
}

WRAPPED(model_forward);
void __wrap_model_forward(Model *model, const void *images, int rows, bool training)
{
    if (training && forwards++ == 0) {
        print_hash("weights", model->params, model->param_count);
        print_hash("statistics", model->buffers, model->buffer_count);
    }
    __real_model_forward(model, images, rows, training);
}

WRAPPED(sgd_update);
void __wrap_sgd_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                       float *velocity, const Scalars *scalars)
{
    if (updates++ == 0)
        print_hash("momentum", velocity, count);
    __real_sgd_update(ops, count, grad_count, params, grads, velocity, scalars);
}
