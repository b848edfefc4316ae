// Rank 0 prints the events of a training step: the number of images in each forward pass, the bytes
// of each all-reduce, how many ranges of the last backward did not reach ddp_ready at once, and the
// optimizer's update at the end.
#include "comm.h"
#include "ddp.h"
#include "model.h"
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>

static void print(const char *what, unsigned long long number)
{
    const char *rank = getenv("RANK");
    if (!rank || atoi(rank) == 0)
        fprintf(stderr, "spy %s %llu\n", what, number);
}

WRAPPED(model_forward);
void __wrap_model_forward(Model *model, const void *images, int rows, bool training)
{
    if (training)
        print("forward", (unsigned long long)rows);
    __real_model_forward(model, images, rows, training);
}

static GradReady ready;
static size_t ready_offset, ready_count;        // of the last call of ddp_ready
static int held;

WRAPPED(ddp_ready);
void __wrap_ddp_ready(void *arg, size_t offset, size_t count)
{
    ready_offset = offset;
    ready_count = count;
    __real_ddp_ready(arg, offset, count);
}

static void pass_on(void *arg, size_t offset, size_t count)
{
    ready_count = 0;
    ready(arg, offset, count);
    held += ready_count != count || ready_offset != offset;
}

WRAPPED(model_backward);
void __wrap_model_backward(Model *model, GradReady callback, void *arg)
{
    held = 0;
    ready = callback;
    __real_model_backward(model, pass_on, arg);
}

WRAPPED(comm_all_reduce);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    uint64_t before = comm_bytes(comm);
    __real_comm_all_reduce(comm, stream, values, count, type);
    print("all-reduce", comm_bytes(comm) - before);
}

WRAPPED(sgd_update);
void __wrap_sgd_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                       float *velocity, const Scalars *scalars)
{
    __real_sgd_update(ops, count, grad_count, params, grads, velocity, scalars);
    print("held", (unsigned long long)held);
    print("update", 0);
}
