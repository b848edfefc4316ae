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

// W itself, row by row, from torch's order of the weights: a row for each number of y, in the order
// in which these stand in memory, and a column for each number of x.
size_t dense_matrix_count(const ConvSpec *spec, Shape y);
void dense_matrix(const ConvSpec *spec, Shape y, const float *oihw, float *matrix);
// row = what stands in each channel's pixels, from one number for each channel.
void dense_row(Shape y, const float *channels, float *row);
