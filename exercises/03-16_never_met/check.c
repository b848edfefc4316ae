// For each all-reduce of f32, rank 0 prints its count minus the number of gradients. Each rank prints a hash of the
// gradients that gradients_check reads, and "unchecked" if AdamW runs before gradients_check.
#include "comm.h"
#include "model.h"
#include "wrap.h"

#include <stdio.h>

static Model *model;

WRAPPED(model_new);
Model *__wrap_model_new(Device *device, Ops *ops, const ModelConfig *config)
{
    return model = __real_model_new(device, ops, config);
}

WRAPPED(comm_all_reduce);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    if (comm_rank(comm) == 0 && type == COMM_F32)
        fprintf(stderr, "after the gradients: %zu\n", count - model->grad_count);
    __real_comm_all_reduce(comm, stream, values, count, type);
}

static bool checked;

WRAPPED(gradients_check);
void __wrap_gradients_check(Ops *ops, size_t count, const float *grads, Scalars *scalars, Stats *stats)
{
    uint64_t hash = 14695981039346656037u;
    const unsigned char *bytes = (const unsigned char *)grads;
    for (size_t i = 0; i < count * sizeof *grads; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    fprintf(stderr, "gradients checked: %016llx\n", (unsigned long long)hash);
    checked = true;
    __real_gradients_check(ops, count, grads, scalars, stats);
}

WRAPPED(adamw_update);
void __wrap_adamw_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                         float *mean, float *square, const uint8_t *decays, const Scalars *scalars)
{
    if (!checked)
        fprintf(stderr, "unchecked\n");
    checked = false;
    __real_adamw_update(ops, count, grad_count, params, grads, mean, square, decays, scalars);
}
