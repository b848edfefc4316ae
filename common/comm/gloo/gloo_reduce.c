// gloo_reduce.c - the sums of Gloo's all-reduce. Compiled for the processor that DDP_MARCH names,
// as common/ops/ is.
#include "comm/gloo/gloo_reduce.h"
#include "ops/numbers.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

// value: the result for x and y. `to` may be `a` or `b`: each element is read before it is written.
#define REDUCE_FUNCTION(name, number, value)                                                    \
    static void name(void *to_memory, const void *a_memory, const void *b_memory, size_t count) \
    {                                                                                           \
        number *to = to_memory;                                                                 \
        const number *a = a_memory, *b = b_memory;                                              \
        _Pragma("omp simd") for (size_t i = 0; i < count; i++)                                  \
        {                                                                                       \
            number x = a[i], y = b[i];                                                          \
            to[i] = (value);                                                                    \
        }                                                                                       \
    }

REDUCE_FUNCTION(sum_u8, uint8_t, (uint8_t)(x + y))
REDUCE_FUNCTION(sum_i64, int64_t, (int64_t)((uint64_t)x + (uint64_t)y)) // wraps around
REDUCE_FUNCTION(sum_f32, float, x + y)
REDUCE_FUNCTION(sum_f64, double, x + y)
REDUCE_FUNCTION(sum_bf16, uint16_t, to_bf16(from_bf16(x) + from_bf16(y)))
REDUCE_FUNCTION(sum_any_f16, uint16_t, to_f16(from_f16(x) + from_f16(y)))

#ifdef __F16C__
// Most x86 processors convert f16 in hardware, but compilers do not use that for sum_any_f16.
static __m256 load_f16(const uint16_t *from)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}

static void sum_f16(void *to_memory, const void *a_memory, const void *b_memory, size_t count)
{
    uint16_t *to = to_memory;
    const uint16_t *a = a_memory, *b = b_memory;
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 sum = _mm256_add_ps(load_f16(a + i), load_f16(b + i));
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
    }
    sum_any_f16(to + i, a + i, b + i, count - i);
}
#else
#define sum_f16 sum_any_f16
#endif

GlooSum *const gloo_sums[] = {
    [COMM_U8] = sum_u8, [COMM_I64] = sum_i64, [COMM_F32] = sum_f32,
    [COMM_F64] = sum_f64, [COMM_BF16] = sum_bf16, [COMM_F16] = sum_f16,
};
