// bias.c - the bias of convolutions and linear layers.
#include "ops/loops.h"

typedef struct BiasJob {
    const float *bias;
    const void *x;
    bool f32;               // x is f32, whatever the type of y
    void *y;
    float *dbias;
} BiasJob;

INLINE void bias(const BiasJob *j, Type type, At at)
{
    Pack y;
    load_columns(j->bias, at, &y);
    if (j->f32)
        add_at(TYPE_F32, j->x, at, &y);
    else
        add_at(type, j->x, at, &y);
    store_at(type, j->y, at, &y);
}
CELLS(bias, BiasJob)

INLINE void bias_sum(const BiasJob *j, Type type, At at, Pack *sums)
{
    add_at(type, j->x, at, &sums[0]);
}

INLINE void bias_end(const BiasJob *j, size_t column, const double *sums)
{
    j->dbias[column] = (float)sums[0];
}
COLUMNS(bias_sum, bias_end, BiasJob)

void bias_add(Ops *ops, Type type, size_t rows, int channels, const float *values, Type x_type,
              const void *x, void *y)
{
    BiasJob job = { .bias = values, .x = x, .f32 = x_type == TYPE_F32, .y = y };
    RUN_CELLS(bias, compute(ops), matrix_of(type, rows, channels), &job);
}

void bias_gradient(Stream *stream, Type type, size_t rows, int channels, const void *dy,
                   float *dbias)
{
    BiasJob job = { .x = dy, .dbias = dbias };
    RUN_COLUMNS(bias_sum, stream, matrix_of(type, rows, channels), &job);
}
