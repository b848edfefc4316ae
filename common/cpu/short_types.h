// short_types.h - converts 16-bit numbers to f32 and back without branches, so that loops over them
// become vector code.
//
// Rounding is to nearest, ties to even, as in the types' definitions: numbers that are too large
// become infinite, numbers that are too small become denormal, and NaN stays NaN.
#pragma once
#include "ops.h"

#include <string.h>

// Functions of a Type are inlined, so that the type is a constant.
#define SPECIALIZED static inline __attribute__((always_inline))

// fn(type, ...), compiled once for each type, with the type as a constant.
#define BY_TYPE(type, fn, ...)                              \
    ((type) == TYPE_F32    ? fn(TYPE_F32, __VA_ARGS__)      \
     : (type) == TYPE_BF16 ? fn(TYPE_BF16, __VA_ARGS__)     \
                           : fn(TYPE_F16, __VA_ARGS__))

// fn(type, block, ...), also compiled with the block as a constant for blocks of 16 and for planes.
#define BY_BLOCK(type, block, fn, ...)                      \
    ((block) == 16  ? BY_TYPE(type, fn, 16, __VA_ARGS__)    \
     : (block) == 1 ? BY_TYPE(type, fn, 1, __VA_ARGS__)     \
                    : BY_TYPE(type, fn, block, __VA_ARGS__))

SPECIALIZED uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SPECIALIZED float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// bf16: an f32 without its lower 16 bits.

SPECIALIZED float from_bf16(uint16_t half) { return float_of((uint32_t)half << 16); }

SPECIALIZED uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value), rounded = bits + 0x7fff + (bits >> 16 & 1);
    return (uint16_t)((value == value ? rounded : bits | 1u << 22) >> 16);
}

// f16: sign, 5 bits of exponent (biased by 15; an f32's by 127), 10 of mantissa. Denormal ones are
// multiples of 2^-24, which is the last bit of an f32 between 0.5 and 1: adding 0.5 rounds to them.

SPECIALIZED float from_f16(uint16_t half)
{
    uint32_t bits = (half & 0x7fffu) << 13, exponent = bits & 0x0f800000;
    float normal = float_of(bits + (112u << 23));
    float special = float_of(bits + (224u << 23));      // infinite, or NaN
    float denormal = float_of(bits + (113u << 23)) - float_of(113u << 23);
    float value = exponent == 0x0f800000 ? special : exponent == 0 ? denormal : normal;
    return float_of(bits_of(value) | (half & 0x8000u) << 16);
}

SPECIALIZED uint16_t to_f16(float value)
{
    uint32_t bits = bits_of(value) & 0x7fffffff, sign = bits_of(value) >> 16 & 0x8000;
    uint32_t normal = (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    uint32_t denormal = bits_of(float_of(bits) + 0.5f) - bits_of(0.5f);
    uint32_t special = bits > 0x7f800000 ? 0x7e00 | (bits >> 13 & 0x3ff) : 0x7c00;
    uint32_t half = bits < 113u << 23 ? denormal : bits >= 143u << 23 ? special : normal;
    return (uint16_t)(half | sign);
}

// --- any type ------------------------------------------------------------------------------------

SPECIALIZED float load(Type type, const void *from, size_t i)
{
    if (type == TYPE_F32)
        return ((const float *)from)[i];
    uint16_t half = ((const uint16_t *)from)[i];
    return type == TYPE_BF16 ? from_bf16(half) : from_f16(half);
}

SPECIALIZED void store(Type type, void *to, size_t i, float value)
{
    if (type == TYPE_F32)
        ((float *)to)[i] = value;
    else
        ((uint16_t *)to)[i] = type == TYPE_BF16 ? to_bf16(value) : to_f16(value);
}

// The same for a value that the type represents exactly, which is faster.
SPECIALIZED void store_exact(Type type, void *to, size_t i, float value)
{
    if (type == TYPE_BF16)
        ((uint16_t *)to)[i] = (uint16_t)(bits_of(value) >> 16);
    else
        store(type, to, i, value);
}

// The value after rounding to the type.
SPECIALIZED float rounded(Type type, float value)
{
    return type == TYPE_F32    ? value
           : type == TYPE_BF16 ? from_bf16(to_bf16(value))
                               : from_f16(to_f16(value));
}

// &p[i]. Like strchr, it takes both kinds of pointer.
SPECIALIZED void *at(Type type, const void *p, size_t i)
{
    return (char *)p + i * type_size(type);
}
