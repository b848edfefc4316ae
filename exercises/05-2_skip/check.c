// Causes an overflow: in step OVERFLOW_IN_STEP, rank 1's loss has an infinite gradient.
#include "ops.h"
#include "wrap.h"

#include <math.h>
#include <stdlib.h>

WRAPPED(loss_cross_entropy);
void __wrap_loss_cross_entropy(Ops *ops, int rows, int classes, const float *logits,
                               const int32_t *labels, Scalars *scalars, Stats *stats,
                               float *dlogits)
{
    static int steps;
    const char *step = getenv("OVERFLOW_IN_STEP"), *rank = getenv("RANK");
    __real_loss_cross_entropy(ops, rows, classes, logits, labels, scalars, stats, dlogits);
    if (dlogits && step && rank && atoi(rank) == 1 && ++steps == atoi(step))
        dlogits[0] = INFINITY;
}
