// Linked into the learner's program: if SIGNAL is set, rank 1 gets a SIGINT during its third step.
#include "comm.h"
#include "ops.h"
#include "wrap.h"

#include <signal.h>
#include <stdlib.h>

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
