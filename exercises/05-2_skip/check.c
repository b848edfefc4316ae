// Causes overflows on rank 1. In step OVERFLOW_IN_STEP its loss has an infinite gradient, and so have
// all layers. If OVERFLOW_ALONE is set, only the first gradient of a layer is infinite: in step 2 that
// of the layer whose gradients are final first, in step 3 that of the next layer, and so on. If
// CHECKED is set, writes the number of gradients of each gradients_check to the file CHECKED.RANK,
// as a fraction of all. If LATE is set, the messages of a step wait until ddp_wait is called, or until
// gradients have been checked: a check before ddp_wait then never sees the average.
#include "clock.h"
#include "ddp.h"
#include "model.h"
#include "ops.h"
#include "wrap.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static Model *model;
static int steps, layers;       // steps that have begun; layers of this step whose gradients are final
static atomic_bool hold;        // late messages wait

static bool is_rank_1(void)
{
    const char *rank = getenv("RANK");
    return rank && atoi(rank) == 1;
}

WRAPPED(model_new);
Model *__wrap_model_new(Device *device, Ops *ops, const ModelConfig *config)
{
    return model = __real_model_new(device, ops, config);
}

WRAPPED(loss_cross_entropy);
void __wrap_loss_cross_entropy(Ops *ops, int rows, int classes, const float *logits,
                               const int32_t *labels, Scalars *scalars, Stats *stats,
                               float *dlogits)
{
    const char *step = getenv("OVERFLOW_IN_STEP");
    __real_loss_cross_entropy(ops, rows, classes, logits, labels, scalars, stats, dlogits);
    if (dlogits) {
        steps++;
        layers = 0;
        hold = true;
    }
    if (dlogits && step && is_rank_1() && steps == atoi(step))
        dlogits[0] = INFINITY;
}

WRAPPED(ddp_ready);
void __wrap_ddp_ready(void *arg, size_t offset, size_t count)
{
    if (getenv("OVERFLOW_ALONE") && is_rank_1() && layers++ == steps - 2)
        model->grads[offset] = INFINITY;
    __real_ddp_ready(arg, offset, count);
}

WRAPPED(ddp_wait);
void __wrap_ddp_wait(Ddp *ddp)
{
    hold = false;
    __real_ddp_wait(ddp);
}

static void be_late(void *arg)
{
    for (double begin = clock_now(); hold && clock_now() < begin + 2;)
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

WRAPPED(comm_all_reduce);
void __wrap_comm_all_reduce(Comm *comm, Stream *stream, void *values, size_t count, CommType type)
{
    if (getenv("LATE"))
        stream_enqueue(stream, be_late, NULL, 0);
    __real_comm_all_reduce(comm, stream, values, count, type);
}

WRAPPED(gradients_check);
void __wrap_gradients_check(Ops *ops, size_t count, const float *grads, Scalars *scalars,
                            Stats *stats)
{
    static FILE *out;
    char name[200];
    if (!out && getenv("CHECKED")) {
        snprintf(name, sizeof name, "%s.%s", getenv("CHECKED"), getenv("RANK"));
        out = fopen(name, "w");
    }
    if (out) {
        fprintf(out, "%.9g\n", (double)count / (double)model->grad_count);
        fflush(out);        // if count is too large, gradients_check may crash
    }
    __real_gradients_check(ops, count, grads, scalars, stats);
    hold = false;
}
