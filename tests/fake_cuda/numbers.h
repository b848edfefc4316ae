// numbers.h - reads and writes numbers of each type that our GPU code uses, for fake.h's libraries.
#pragma once
#include "fake.h"

#include "ops/numbers.h"

typedef enum NumberType { NUMBER_U8, NUMBER_I64, NUMBER_F64, NUMBER_F32, NUMBER_BF16, NUMBER_F16 } NumberType;

static inline size_t number_bytes(NumberType type)
{
    static const size_t bytes[] = { 1, 8, 8, 4, 2, 2 };
    return bytes[type];
}

static inline double number_get(const void *values, NumberType type, size_t i)
{
    switch (type) {
    case NUMBER_U8: return ((const uint8_t *)values)[i];
    case NUMBER_I64: return (double)((const int64_t *)values)[i];
    case NUMBER_F64: return ((const double *)values)[i];
    case NUMBER_F32: return ((const float *)values)[i];
    case NUMBER_BF16: return from_bf16(((const uint16_t *)values)[i]);
    default: return from_f16(((const uint16_t *)values)[i]);
    }
}

static inline void number_set(void *values, NumberType type, size_t i, double number)
{
    switch (type) {
    case NUMBER_U8: ((uint8_t *)values)[i] = (uint8_t)number; break;
    case NUMBER_I64: ((int64_t *)values)[i] = (int64_t)number; break;
    case NUMBER_F64: ((double *)values)[i] = number; break;
    case NUMBER_F32: ((float *)values)[i] = (float)number; break;
    case NUMBER_BF16: ((uint16_t *)values)[i] = to_bf16((float)number); break;
    default: ((uint16_t *)values)[i] = to_f16((float)number); break;
    }
}
