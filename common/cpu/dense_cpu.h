// dense_cpu.h - convolutions that are matrix products; conv_cpu.c hands them over.
#pragma once
#include "cpu/ops_cpu.h"

typedef struct Dense Dense;
bool dense_fits(const ConvSpec *spec, Shape y);
Dense *dense_new(Ops *ops, const ConvSpec *spec, Shape y);
void dense_free(Dense *dense);
size_t dense_weight_count(const Dense *dense);
void dense_weights_import(const Dense *dense, float *arena, const float *oihw);
void dense_weights_export(const Dense *dense, float *oihw, const float *arena);
size_t dense_copy_bytes(const Dense *dense);
void dense_weights_cast(const Dense *dense, const float *arena, void *copy);
void dense_forward(const Dense *dense, const void *x, const void *w, const float *bias, void *y);
void dense_backward_data(const Dense *dense, const void *dy, const void *w, void *dx);
void dense_backward_weights(const Dense *dense, const void *x, const void *dy, float *dw,
                            float *dbias);
