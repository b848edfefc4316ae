// numbers.h - reads and writes numbers of each type that our GPU code uses, for fake.h's libraries.
#pragma once
#include "fake.h"

#include "ops/numbers.h"

#include <cuda_runtime_api.h>
#include <library_types.h>

static inline size_t number_bytes(cudaDataType_t type)
{
    return type == CUDA_R_64F || type == CUDA_R_64I ? 8 : type == CUDA_R_32F ? 4 : type == CUDA_R_8U ? 1 : 2;
}

static inline double number_get(const void *values, cudaDataType_t type, size_t i)
{
    switch (type) {
    case CUDA_R_8U: return ((const uint8_t *)values)[i];
    case CUDA_R_64I: return (double)((const int64_t *)values)[i];
    case CUDA_R_64F: return ((const double *)values)[i];
    case CUDA_R_32F: return ((const float *)values)[i];
    case CUDA_R_16BF: return from_bf16(((const uint16_t *)values)[i]);
    case CUDA_R_16F: return from_f16(((const uint16_t *)values)[i]);
    default: fake_die("numbers of type %d", (int)type);
    }
}

static inline void number_set(void *values, cudaDataType_t type, size_t i, double number)
{
    switch (type) {
    case CUDA_R_8U: ((uint8_t *)values)[i] = (uint8_t)number; break;
    case CUDA_R_64I: ((int64_t *)values)[i] = (int64_t)number; break;
    case CUDA_R_64F: ((double *)values)[i] = number; break;
    case CUDA_R_32F: ((float *)values)[i] = (float)number; break;
    case CUDA_R_16BF: ((uint16_t *)values)[i] = to_bf16((float)number); break;
    case CUDA_R_16F: ((uint16_t *)values)[i] = to_f16((float)number); break;
    default: fake_die("numbers of type %d", (int)type);
    }
}
