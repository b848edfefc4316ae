// Linked into the learner's program: simulates a slow disk. Reports each snapshot that is taken or
// written, and whether it changes while it is written.
#include "checkpoint.h"
#include "wrap.h"

#include <stdio.h>
#include <time.h>

static uint64_t sum_of(const Snapshot *snapshot)
{
    uint64_t sum = (uint64_t)snapshot->state.global_step;
    for (size_t i = 0; i < snapshot->model->param_count; i += 97)
        sum = sum * 31 + ((const uint32_t *)(const void *)snapshot->arenas[0].host)[i];
    return sum;
}

WRAPPED(snapshot_write);
bool __wrap_snapshot_write(const Snapshot *snapshot, const char *path, const char *dataset,
                           Error *err)
{
    long long step = snapshot->state.global_step;
    uint64_t before = sum_of(snapshot);
    nanosleep(&(struct timespec){ .tv_nsec = 60000000 }, NULL);
    fprintf(stderr, "spy: snapshot of step %lld %s\n", step,
            sum_of(snapshot) == before ? "stays as it is" : "changes while it is written");
    return __real_snapshot_write(snapshot, path, dataset, err);
}

WRAPPED(snapshot_take);
void __wrap_snapshot_take(Snapshot *snapshot, const Model *model, const Optim *optim,
                          const TrainState *state)
{
    fprintf(stderr, "spy: taken\n");
    __real_snapshot_take(snapshot, model, optim, state);
}
