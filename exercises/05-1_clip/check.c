// Writes a line to the file CALLS, if that is set, for each call of gradients_norm and
// gradients_unscale. If SLOW is set, rank 1 sends 40 ms late, and all ranks unscale 10 ms late:
// gradients that are unscaled before they are averaged then change while they travel. One rank alone
// must never show that, also not by luck, so there the average does nothing.
#include "comm.h"
#include "ops.h"
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void note(const char *call)
{
    static FILE *calls;
    if (!calls && getenv("CALLS"))
        calls = fopen(getenv("CALLS"), "w");
    if (calls)
        fprintf(calls, "%s\n", call);
}

static void slow(int ms)
{
    if (getenv("SLOW"))
        usleep(1000 * (unsigned)ms);
}

WRAPPED(gradients_norm);
void __wrap_gradients_norm(Ops *ops, size_t count, const float *grads, Scalars *scalars)
{
    note("norm");
    __real_gradients_norm(ops, count, grads, scalars);
}

WRAPPED(gradients_unscale);
void __wrap_gradients_unscale(Ops *ops, size_t count, float *grads, const Scalars *scalars)
{
    note("unscale");
    slow(10);
    __real_gradients_unscale(ops, count, grads, scalars);
}

WRAPPED(comm_all_reduce);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    if (comm_size(comm) > 1 && getenv("RANK") && atoi(getenv("RANK")) == 1)
        slow(40);
    __real_comm_all_reduce(comm, stream, values, count, type);
}

WRAPPED(values_scale);
void __wrap_values_scale(Stream *stream, float *values, size_t count, float factor)
{
    if (factor != 1)
        __real_values_scale(stream, values, count, factor);
}
