// If SPY is set, prints which rank reads a checkpoint, hashes of a rank's weights, statistics and momentum at
// its first step, and broadcasts that are too long or come later.
#include "checkpoint.h"
#include "comm.h"
#include "model.h"
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>

static int rank = -1, forwards, updates;
static const Optim *own_optim;

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

WRAPPED(adamw_update);
void __wrap_adamw_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads, float *mean,
                         float *square, const uint8_t *decays, const Scalars *scalars)
{
    if (updates++ == 0) {
        print_hash("momentum", mean, count);
        print_hash("squares", square, count);
    }
    __real_adamw_update(ops, count, grad_count, params, grads, mean, square, decays, scalars);
}

WRAPPED(optim_new);
Optim *__wrap_optim_new(const OptimConfig *config, Model *model)
{
    Optim *made = __real_optim_new(config, model);
    own_optim = made;
    return made;
}

// How many floats the array holds that begins at `values`; 0: unknown.
static size_t length_of(const void *values)
{
    if (!own_optim)
        return 0;
    for (int i = 0; i < own_optim->arena_count; i++)
        if (values == own_optim->arenas[i].values)
            return own_optim->model->param_count;
    if (values == own_optim->model->params)
        return own_optim->model->param_count;
    return values == own_optim->model->buffers ? own_optim->model->buffer_count : 0;
}

WRAPPED(comm_broadcast);
void __wrap_comm_broadcast(Comm *comm, Stream *stream, void *values, size_t count, CommType type, int root)
{
    size_t most = length_of(values);
    if (getenv("SPY") && updates > 0 && type == COMM_F32)
        fprintf(stderr, "spy: rank %d broadcasts %zu floats after step %d\n", rank, count, updates);
    if (getenv("SPY") && most > 0 && count > most)
        fprintf(stderr, "long: %zu of %zu floats\n", count, most);
    __real_comm_broadcast(comm, stream, values, count, type, root);
}

WRAPPED(comm_broadcast_host);
void __wrap_comm_broadcast_host(Comm *comm, void *values, size_t bytes)
{
    if (getenv("SPY") && length_of(values) > 0)
        fprintf(stderr, "host: comm_broadcast_host sends %zu bytes of the device\n", bytes);
    __real_comm_broadcast_host(comm, values, bytes);
}
