// numbers.h - numbers of any type in memory, loaded as f32.
//
// Rounding is to nearest, ties to even. Numbers that are too large become infinite, numbers that
// are too small become denormal or zero. GPUs have instructions for these conversions. The code for
// CPUs has no branches, so that loops become vector code.
//
// ON_GPU: this file is compiled for kernels, by nvcc or for the tests' mock of a GPU.
#pragma once
#ifdef ON_GPU
#include "cuda/cuda_internal.h"     // includes ops.h
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define INLINE static __device__ __forceinline__
#else
#include "ops.h"
#define INLINE static inline __attribute__((always_inline))
#endif

#include <math.h>
#include <string.h>

#ifdef ON_GPU

INLINE float from_bf16(uint16_t half) { return __bfloat162float(__ushort_as_bfloat16(half)); }
INLINE uint16_t to_bf16(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
INLINE float from_f16(uint16_t half) { return __half2float(__ushort_as_half(half)); }
INLINE uint16_t to_f16(float value) { return __half_as_ushort(__float2half_rn(value)); }

#else

INLINE uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// 16-bit numbers are in 32 bits here, because a loop over lanes of one size stays in whole vectors.

INLINE float from_bf16(uint32_t half) { return float_of(half << 16); }

INLINE uint32_t to_bf16(float value)
{
    uint32_t bits = bits_of(value), rounded = bits + 0x7fff + (bits >> 16 & 1);
    return ((bits & 0x7fffffff) > 0x7f800000 ? bits | 1u << 22 : rounded) >> 16;
}

// f16: sign, 5 bits of exponent (biased by 15; an f32's by 127), 10 of mantissa. Denormal numbers
// are multiples of 2^-24, the last bit of an f32 from 0.5 to 1. So adding 0.5 rounds to them.

INLINE float from_f16(uint32_t half)
{
    uint32_t bits = (half & 0x7fffu) << 13, exponent = bits & 0x0f800000;
    float normal = float_of(bits + (112u << 23));
    float special = float_of(bits + (224u << 23));      // infinite, or NaN
    float denormal = float_of(bits + (113u << 23)) - float_of(113u << 23);
    float value = exponent == 0x0f800000 ? special : exponent == 0 ? denormal : normal;
    return float_of(bits_of(value) | (half & 0x8000) << 16);
}

INLINE uint32_t to_f16(float value)
{
    uint32_t bits = bits_of(value) & 0x7fffffff, sign = bits_of(value) >> 16 & 0x8000;
    uint32_t normal = (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    uint32_t denormal = bits_of(float_of(bits) + 0.5f) - bits_of(0.5f);
    uint32_t special = bits > 0x7f800000 ? 0x7e00 | (bits >> 13 & 0x3ff) : 0x7c00;
    uint32_t half = bits < 113u << 23 ? denormal : bits >= 143u << 23 ? special : normal;
    return half | sign;
}

#endif

INLINE float load_one(Type type, const void *from, size_t i)
{
    if (type == TYPE_F32)
        return ((const float *)from)[i];
    uint16_t half = ((const uint16_t *)from)[i];
    return type == TYPE_BF16 ? from_bf16(half) : from_f16(half);
}

INLINE void store_one(Type type, void *to, size_t i, float value)
{
    if (type == TYPE_F32)
        ((float *)to)[i] = value;
    else
        ((uint16_t *)to)[i] = (uint16_t)(type == TYPE_BF16 ? to_bf16(value) : to_f16(value));
}

INLINE float rounded(Type type, float value)
{
    return type == TYPE_F32    ? value
           : type == TYPE_BF16 ? from_bf16(to_bf16(value))
                               : from_f16(to_f16(value));
}

#ifdef ON_GPU

INLINE float exp_of(float x) { return expf(x); }
INLINE float kept(bool keep, float value) { return keep ? value : 0; }

#else

// `value` if keep, else 0. With ?: gcc 14 would make a branch around the computation of `value`,
// and branches keep loops scalar.
INLINE float kept(bool keep, float value) { return float_of(bits_of(value) & -(uint32_t)keep); }

// e^x, within two units in the last place. x is limited to -87 .. 88 by minima of integers, which
// never become branches. Adding 0x7fffff makes a negative NaN one of the smallest unsigned numbers,
// and a positive NaN one of the smallest signed numbers. So NaN stays NaN.
INLINE float exp_of(float x)
{
    const uint32_t least = 0xc2ae0000u + 0x7fffff;
    const int32_t most = 0x42b00000 + 0x7fffff;
    uint32_t above = bits_of(x) + 0x7fffff;
    above = above < least ? above : least;
    int32_t below = (int32_t)above;
    below = below < most ? below : most;
    x = float_of((uint32_t)below - 0x7fffff);
    float shifted = x * 0x1.715476p0f + 0x1.8p23f;      // last bits of `shifted`: x / ln 2, rounded
    float n = shifted - 0x1.8p23f;
    float r = x - n * 0x1.62e4p-1f - n * 0x1.7f7d1cp-20f;
    float p = 1 / 120.0f + r * (1 / 720.0f + r * (1 / 5040.0f));
    p = 1 + r * (1 + r * (0.5f + r * (1 / 6.0f + r * (1 / 24.0f + r * p))));
    return p * float_of((bits_of(shifted) + 127) << 23);
}

#endif
