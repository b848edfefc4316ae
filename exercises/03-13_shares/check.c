// Linked into the learner's program. Records the sgd_update calls and the memory of the first step
// in shares.SIZE.RANK:
//
//   update BEGIN COUNT GRADS BYTES ROOM HAVE HAS
//                                          first parameter; count; offset of the gradients; size of
//                                          the allocation that holds the momentum; bytes from the
//                                          momentum to the end of that allocation; how many of these
//                                          parameters have a gradient: the learner's number, the right one
//   sends VALUES BARRIERS                  f32 values that the calls of zero_step move; barriers
//   all BYTES PARAMETERS                   bytes that zero_new and the first zero_step allocate;
//                                          parameters of the model
#include "check.h"
#include "zero.h"
#include "wrap.h"

#include <stdint.h>

enum { MOST = 4096 };

static struct {
    const char *begin;
    size_t bytes;
} blocks[MOST];
static int block_count, steps;
static bool counts;         // true while zero_new or the first zero_step runs
static size_t allocated;
static Model *model;
static FILE *out;
static size_t moved;        // by the first zero_step
static int barriers;

WRAPPED(device_alloc);
void *__wrap_device_alloc(Device *device, size_t bytes)
{
    void *memory = __real_device_alloc(device, bytes);
    allocated += counts ? bytes : 0;
    blocks[block_count % MOST].begin = memory;
    blocks[block_count++ % MOST].bytes = bytes;
    return memory;
}

WRAPPED(zero_new);
Zero *__wrap_zero_new(const World *world, Model *m, const CommConfig *config)
{
    char name[64];
    snprintf(name, sizeof name, "shares.%d.%d", world->size, world->rank);
    out = fopen(name, "w");
    CHECK(out, "", "%s cannot be written", name);
    model = m;
    counts = true;
    Zero *zero = __real_zero_new(world, m, config);
    counts = false;
    return zero;
}

WRAPPED(zero_step);
void __wrap_zero_step(Zero *zero, const Scalars *scalars)
{
    counts = ++steps == 1;
    __real_zero_step(zero, scalars);
    if (counts)
        fprintf(out, "sends %zu %d\nall %zu %zu\n", moved, barriers, allocated, model->param_count);
    counts = false;
    fflush(out);
}

// A ring's all-reduce moves its values twice.
WRAPPED(comm_all_reduce);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    moved += counts ? 2 * count : 0;
    __real_comm_all_reduce(comm, stream, values, count, type);
}

WRAPPED(comm_broadcast);
void __wrap_comm_broadcast(Comm *comm, Stream *stream, void *values, size_t count, CommType type,
                           int root)
{
    moved += counts ? count : 0;
    __real_comm_broadcast(comm, stream, values, count, type, root);
}

WRAPPED(comm_all_gather);
void __wrap_comm_all_gather(Comm *comm, Stream *stream, const void *mine, void *all, size_t count,
                            CommType type)
{
    moved += counts ? count * (size_t)comm_size(comm) : 0;
    __real_comm_all_gather(comm, stream, mine, all, count, type);
}

WRAPPED(comm_barrier);
void __wrap_comm_barrier(Comm *comm)
{
    barriers += counts;
    __real_comm_barrier(comm);
}

WRAPPED(sgd_update);
void __wrap_sgd_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                       float *velocity, const Scalars *scalars)
{
    size_t bytes = 0, room = 0;
    const char *at = (const char *)velocity;
    for (int i = 0; i < block_count && i < MOST; i++)
        if (blocks[i].begin <= at && at < blocks[i].begin + blocks[i].bytes) {
            bytes = blocks[i].bytes;
            room = (size_t)(blocks[i].begin + bytes - at);
        }
    size_t begin = (size_t)(params - model->params);
    size_t left = begin < model->grad_count ? model->grad_count - begin : 0;
    if (steps == 1)
        fprintf(out, "update %zu %zu %td %zu %zu %zu %zu\n", begin, count, grads - model->grads, bytes,
                room, grad_count, left < count ? left : count);
    fflush(out);
    if (room / sizeof(float) >= count)      // too little room, or too many gradients: the check reports it
        __real_sgd_update(ops, count, left < grad_count ? left : grad_count, params, grads, velocity,
                          scalars);
}
