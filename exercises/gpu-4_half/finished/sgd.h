#pragma once
void sgd_update(int count, float *weights, const float *gradient, float *momentum);
