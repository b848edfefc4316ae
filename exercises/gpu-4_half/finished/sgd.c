// sgd.c - SGD with momentum, for any part of the weights.
#include "sgd.h"

void sgd_update(int count, float *weights, const float *gradient, float *momentum)
{
    for (int i = 0; i < count; i++) {
        momentum[i] = 0.9f * momentum[i] + gradient[i];
        weights[i] -= 0.01f * momentum[i];
    }
}
