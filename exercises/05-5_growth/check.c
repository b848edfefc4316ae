// check.c - what is to be written is in common/ already; here that does nothing. And an overflow:
// the loss has an infinite gradient in step number OVERFLOW_IN_STEP.
#include "ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void __wrap_loss_scale_adapt(Ops *ops, Scalars *scalars, int interval);
void __real_loss_cross_entropy(Ops *ops, int rows, int classes, const float *logits,
                               const int32_t *labels, Scalars *scalars, Stats *stats,
                               float *dlogits);
void __wrap_loss_cross_entropy(Ops *ops, int rows, int classes, const float *logits,
                               const int32_t *labels, Scalars *scalars, Stats *stats,
                               float *dlogits);

void __wrap_loss_scale_adapt(Ops *ops, Scalars *scalars, int interval)
{
    static int times;
    (void)ops, (void)scalars, (void)interval;
    if (times++ == 0)
        fprintf(stderr, "loss_scale_adapt does nothing here: it is what you write\n");
}

void __wrap_loss_cross_entropy(Ops *ops, int rows, int classes, const float *logits,
                               const int32_t *labels, Scalars *scalars, Stats *stats,
                               float *dlogits)
{
    static int steps;
    const char *step = getenv("OVERFLOW_IN_STEP");
    __real_loss_cross_entropy(ops, rows, classes, logits, labels, scalars, stats, dlogits);
    if (dlogits && step && ++steps == atoi(step))
        dlogits[0] = INFINITY;
}
