// If SPY is set, prints two numbers in each step of SGD. "norm": the norm of the optimizer's gradient.
// "token": how much a labelled token counts in this rank's gradient, times the rank's number of labels. A
// rank whose batch has no label prints no "token".
#include "comm.h"
#include "model.h"
#include "wrap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

WRAPPED(loss_cross_entropy);
void __wrap_loss_cross_entropy(Ops *ops, int rows, int classes, const float *logits,
                               const int32_t *labels, Scalars *scalars, Stats *stats,
                               float *dlogits)
{
    __real_loss_cross_entropy(ops, rows, classes, logits, labels, scalars, stats, dlogits);
    int count = 0, row = 0;
    for (int i = 0; i < rows; i++)
        if (labels[i] >= 0)
            count++, row = i;
    if (!getenv("SPY") || !dlogits || count == 0)
        return;
    const float *z = logits + (size_t)row * classes, *dz = dlogits + (size_t)row * classes;
    double sum = 0;
    for (int k = 0; k < classes; k++)
        sum += exp((double)z[k] - z[labels[row]]);
    fprintf(stderr, "spy: token %.4f\n", count * dz[labels[row]] / (1 / sum - 1));
}

WRAPPED(sgd_update);
void __wrap_sgd_update(Ops *ops, size_t count, size_t grad_count, float *params, const float *grads,
                       float *velocity, const Scalars *scalars)
{
    double norm = 0;
    for (size_t i = 0; i < grad_count; i++)
        norm += (double)grads[i] * grads[i];
    if (getenv("SPY"))
        fprintf(stderr, "spy: norm %.7f\n", sqrt(norm));
    __real_sgd_update(ops, count, grad_count, params, grads, velocity, scalars);
}
