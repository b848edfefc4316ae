// A slow network, and a spy: how many buckets have been sent in a step, and how many of them are
// averaged by the time the optimizer begins. It does nothing unless SPY is set.
#include "comm.h"
#include "model.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int rank;
static int sent;                // by the thread that computes
static atomic_int averaged;     // by the one that communicates

static void nap(void *arg)
{
    (void)arg;
    if (getenv("SPY"))
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
}

static void arrive(void *arg)
{
    (void)arg;
    averaged++;
}

void __real_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                            CommOp op);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                            CommOp op)
{
    rank = comm_rank(comm);
    sent++;
    stream_call(stream, nap, NULL, 0);
    __real_comm_all_reduce(comm, stream, values, count, type, op);
}

void __real_gradients_scale(Ops *ops, Stream *stream, size_t count, float *grads, float factor,
                            Scalars *scalars, Stats *stats);
void __wrap_gradients_scale(Ops *ops, Stream *stream, size_t count, float *grads, float factor,
                            Scalars *scalars, Stats *stats)
{
    stream_call(stream, nap, NULL, 0);
    __real_gradients_scale(ops, stream, count, grads, factor, scalars, stats);
    stream_call(stream, arrive, NULL, 0);
}

void __real_sgd_update(Ops *ops, size_t count, float *params, const float *grads, float *velocity,
                       const Scalars *scalars);
void __wrap_sgd_update(Ops *ops, size_t count, float *params, const float *grads, float *velocity,
                       const Scalars *scalars)
{
    if (getenv("SPY"))
        fprintf(stderr, "spy: rank %d %d %d\n", rank, sent, (int)averaged);
    __real_sgd_update(ops, count, params, grads, velocity, scalars);
}
