// Linked into the learner's program: if SIGNAL is set, rank 1 gets a SIGINT during its third step. Prints "gradient N
// changed" if stop_agree changes a gradient.
#include "check.h"
#include "model.h"
#include "comm.h"
#include "ops.h"
#include "stop.h"
#include "wrap.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static int rank = -1, steps;

WRAPPED(comm_all_reduce);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    rank = comm_rank(comm);
    __real_comm_all_reduce(comm, stream, values, count, type);
}

WRAPPED(sgd_update);
void __wrap_sgd_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                       float *velocity, const Scalars *scalars)
{
    __real_sgd_update(ops, count, grad_count, params, grads, velocity, scalars);
    if (++steps == 3 && rank == 1 && getenv("SIGNAL"))
        raise(SIGINT);
}

static Model *model;

WRAPPED(model_new);
Model *__wrap_model_new(Device *device, Ops *ops, const ModelConfig *config)
{
    return model = __real_model_new(device, ops, config);
}

WRAPPED(stop_agree);
void __wrap_stop_agree(Stop *stop)
{
    static float *before;
    size_t bytes = model->grad_count * sizeof *before;
    before = before ? before : xmalloc(bytes);
    memcpy(before, model->grads, bytes);
    __real_stop_agree(stop);
    for (size_t i = 0; i < model->grad_count; i++)
        if (memcmp(before + i, model->grads + i, sizeof *before) != 0)
            fprintf(stderr, "gradient %zu of %zu changed\n", i, model->grad_count);
}
