// gloo_reduce.c - sums and maxima, compiled for this very machine as cpu/ops_cpu.c is.
#include "gloo/gloo_reduce.h"

// `to` may be `a`: what is read is always at the place that is written, so the loop may be done in
// blocks all the same, and the compiler need not look whether they overlap.
#define REDUCE_FUNCTION(name, number, value)                                          \
    static void name(void *to_memory, const void *a_memory, const void *b_memory, size_t count) \
    {                                                                                 \
        number *to = to_memory;                                                       \
        const number *a = a_memory, *b = b_memory;                                    \
        _Pragma("omp simd") for (size_t i = 0; i < count; i++) to[i] = (value);       \
    }

REDUCE_FUNCTION(sum_u8, uint8_t, (uint8_t)(a[i] + b[i]))
REDUCE_FUNCTION(sum_i64, int64_t, (int64_t)((uint64_t)a[i] + (uint64_t)b[i])) // wraps around
REDUCE_FUNCTION(sum_f32, float, a[i] + b[i])
REDUCE_FUNCTION(sum_f64, double, a[i] + b[i])
REDUCE_FUNCTION(max_u8, uint8_t, a[i] > b[i] ? a[i] : b[i])
REDUCE_FUNCTION(max_i64, int64_t, a[i] > b[i] ? a[i] : b[i])
REDUCE_FUNCTION(max_f32, float, a[i] > b[i] ? a[i] : b[i])
REDUCE_FUNCTION(max_f64, double, a[i] > b[i] ? a[i] : b[i])

GlooReduce *gloo_reduce_function(CommType type, CommOp op)
{
    static GlooReduce *const functions[][4] = {
        [COMM_SUM] = { [COMM_U8] = sum_u8, [COMM_I64] = sum_i64, [COMM_F32] = sum_f32,
                       [COMM_F64] = sum_f64 },
        [COMM_MAX] = { [COMM_U8] = max_u8, [COMM_I64] = max_i64, [COMM_F32] = max_f32,
                       [COMM_F64] = max_f64 },
    };
    return functions[op][type];
}
