// winograd.h - 3x3 convolutions in f32, for inference; fused_cpu.c hands them over.
#pragma once
#include "cpu/ops_cpu.h"

typedef struct Winograd Winograd;
bool winograd_fits(const Ops *ops, const ConvSpec *spec, Shape y);
Winograd *winograd_new(Ops *ops, const ConvSpec *spec, Shape y, bool relu);
void winograd_free(Winograd *winograd);
// The weights in its order, made from torch's.
size_t winograd_bytes(const Winograd *winograd);
void winograd_import(const Winograd *winograd, const float *oihw, float *weights);
// y = relu(conv(x) + bias + residual); residual: NULL or y.
void winograd_forward(const Winograd *winograd, const float *x, const float *weights,
                      const float *bias, const float *residual, float *y);
