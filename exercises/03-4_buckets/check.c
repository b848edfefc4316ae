// If SPY is set, prints which ranges of the gradients a rank sends in each step.
#include "comm.h"
#include "model.h"
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>

static const Model *model;
static int step = 1;

WRAPPED(model_new);
Model *__wrap_model_new(Device *device, Ops *ops, const ModelConfig *config)
{
    Model *made = __real_model_new(device, ops, config);
    model = made;
    return made;
}

WRAPPED(comm_all_reduce);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    size_t first = (size_t)((float *)values - model->grads);
    if (getenv("SPY"))
        fprintf(stderr, "spy: rank %d step %d sends %zu %zu of %zu\n", comm_rank(comm), step, first,
                first + count, model->grad_count + MODEL_SPARE);
    __real_comm_all_reduce(comm, stream, values, count, type);
}

WRAPPED(sgd_update);
void __wrap_sgd_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                       float *velocity, const Scalars *scalars)
{
    step++;
    __real_sgd_update(ops, count, grad_count, params, grads, velocity, scalars);
}
