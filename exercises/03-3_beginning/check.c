// A spy: what a rank has when its first step begins. It is silent unless SPY is set.
#include "comm.h"
#include "model.h"

#include <stdio.h>
#include <stdlib.h>

static int rank = -1, forwards, updates;

static void tell(const char *what, const float *values, size_t count)
{
    const unsigned char *bytes = (const unsigned char *)values;
    uint64_t hash = 0xcbf29ce484222325;
    if (!getenv("SPY"))
        return;
    for (size_t i = 0; i < count * sizeof *values; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3;
    fprintf(stderr, "spy: rank %d begins with %s %016llx\n", rank, what, (unsigned long long)hash);
}

Comm *__real_comm_new(const World *world, Device *device, const char *name, const CommConfig *config);
Comm *__wrap_comm_new(const World *world, Device *device, const char *name, const CommConfig *config)
{
    rank = world->rank;
    return __real_comm_new(world, device, name, config);
}

void __real_model_forward(Model *model, const void *images, int rows, bool training);
void __wrap_model_forward(Model *model, const void *images, int rows, bool training)
{
    if (training && forwards++ == 0) {
        tell("weights", model->params, model->param_count);
        tell("statistics", model->buffers, model->buffer_count);
    }
    __real_model_forward(model, images, rows, training);
}

void __real_sgd_update(Ops *ops, size_t count, float *params, const float *grads, float *velocity,
                       const Scalars *scalars);
void __wrap_sgd_update(Ops *ops, size_t count, float *params, const float *grads, float *velocity,
                       const Scalars *scalars)
{
    if (updates++ == 0)
        tell("momentum", velocity, count);
    __real_sgd_update(ops, count, params, grads, velocity, scalars);
}
