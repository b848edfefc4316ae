// packs.h - loads and stores packs: LANES values of any Type at a time.
//
// An operation loads packs of LANES neighbours, computes in f32 with loops over lanes, and stores
// packs. On a GPU a pack is one or two loads of 16 bytes. On a CPU it is one to four vectors, and
// the compiler turns loops over lanes into vector code.
#pragma once
#include "ops/numbers.h"

// FOR_LANES is a loop over the lanes of a pack, FOR_FEW over the first `count` of them.
#ifdef ON_GPU
enum { LANES = 8 };     // 16 bytes of 16-bit values
#define FOR_LANES(k) _Pragma("unroll") for (int k = 0; k < LANES; k++)
#define FOR_FEW(k, count) FOR_LANES(k) if (k < (count))
#else
enum { LANES = 16 };    // 64 bytes of f32
#ifdef __clang__
// clang would unroll the loops that use a pack before it makes vector code. The loop that computes
// the pack would then stay scalar, because its lanes are used one by one.
#define LANES_LOOP _Pragma("clang loop vectorize(assume_safety) unroll(disable)")
#define FEW_LOOP _Pragma("clang loop unroll(disable)")
#else
#define LANES_LOOP _Pragma("omp simd")
#define FEW_LOOP
#endif
#define FOR_LANES(k) LANES_LOOP for (int k = 0; k < LANES; k++)
#define FOR_FEW(k, count) FEW_LOOP for (int k = 0; k < (count); k++)
#endif

typedef struct Pack {
    float v[LANES];
} Pack;

// The position of up to LANES neighbours in a row of a matrix.
typedef struct At {
    size_t row, column;
    size_t i;               // index of the first element in memory
    int count;              // how many elements, at most LANES
} At;

// A matrix in memory, row after row. An activation has a row for each pixel and a column for each
// channel.
typedef struct Matrix {
    Type type;
    size_t rows, columns;
    bool is_array;          // all operands are arrays of this length
} Matrix;

static inline Matrix matrix_of(Type type, size_t rows, size_t columns)
{
    Matrix m = { type, rows, columns, false };
    return m;
}

static inline Matrix array_of(Type type, size_t count)
{
    Matrix m = { type, 1, count, true };
    return m;
}

static inline Matrix pixels_of(Shape s)
{
    return matrix_of(s.type, (size_t)s.n * s.h * s.w, s.c);
}

// --- loading and storing: arrays begin at multiples of 16 bytes ----------------------------------

#ifdef ON_GPU

typedef union Wide {
    uint4 all;
    float f32[4];
    uint16_t half[8];
} Wide;

INLINE void unpack(Type type, Wide low, Wide high, Pack *pack)
{
    FOR_LANES(k)
        pack->v[k] = type == TYPE_F32    ? (k < 4 ? low : high).f32[k % 4]
                     : type == TYPE_BF16 ? from_bf16(low.half[k])
                                         : from_f16(low.half[k]);
}

INLINE void load_whole(Type type, const void *from, size_t i, Pack *pack)
{
    const Wide *wide = (const Wide *)((const char *)from + i * (type == TYPE_F32 ? 4 : 2));
    unpack(type, wide[0], type == TYPE_F32 ? wide[1] : wide[0], pack);
}

INLINE void store_whole(Type type, void *to, size_t i, const Pack *pack)
{
    Wide low, high;
    if (type == TYPE_F32) {
        FOR_LANES(k)
            (k < 4 ? &low : &high)->f32[k % 4] = pack->v[k];
        ((Wide *)((float *)to + i))[0] = low;
        ((Wide *)((float *)to + i))[1] = high;
    } else {
        FOR_LANES(k)
            low.half[k] = type == TYPE_BF16 ? to_bf16(pack->v[k]) : to_f16(pack->v[k]);
        *(Wide *)((uint16_t *)to + i) = low;
    }
}

#else

// A pack as one vector, of elements of any size. From a loop over lanes that also changes the size
// of the elements, compilers make code that stores two halves of a pack. A load of the whole pack
// then waits until both halves are in the cache. So only CONVERTED changes the size, and packs stay
// in registers.
#define VECTOR_OF(type) \
    type __attribute__((vector_size(LANES * sizeof(type)), aligned(sizeof(type)), may_alias))
typedef VECTOR_OF(float) Floats;
typedef VECTOR_OF(int32_t) Words;
typedef VECTOR_OF(uint16_t) Halves;
typedef VECTOR_OF(uint8_t) Bytes;
#define CONVERTED(from, From, To) __builtin_convertvector(*(const From *)(from), To)

INLINE void load_whole(Type type, const void *from, size_t i, Pack *pack)
{
    if (type == TYPE_F32) {
        FOR_LANES(k)
            pack->v[k] = ((const float *)from)[i + k];
        return;
    }
    uint32_t half[LANES];
    *(Words *)half = CONVERTED((const uint16_t *)from + i, Halves, Words);
    FOR_LANES(k)
        pack->v[k] = type == TYPE_BF16 ? from_bf16(half[k]) : from_f16(half[k]);
}

INLINE void store_whole(Type type, void *to, size_t i, const Pack *pack)
{
    if (type == TYPE_F32) {
        FOR_LANES(k)
            ((float *)to)[i + k] = pack->v[k];
        return;
    }
    uint32_t half[LANES];
    FOR_LANES(k)
        half[k] = type == TYPE_BF16 ? to_bf16(pack->v[k]) : to_f16(pack->v[k]);
    *(Halves *)((uint16_t *)to + i) = CONVERTED(half, Words, Halves);
}

#endif

// Loads `count` elements from index i on; the other lanes become 0.
INLINE void load(Type type, const void *from, size_t i, int count, Pack *pack)
{
    if (count == LANES) {
        load_whole(type, from, i, pack);
        return;
    }
    FOR_LANES(k)
        pack->v[k] = 0;
    FOR_FEW(k, count)
        pack->v[k] = load_one(type, from, i + k);
}

INLINE void load_at(Type type, const void *from, At at, Pack *pack)
{
    load(type, from, at.i, at.count, pack);
}

// Like load_at, for a matrix to which the loop writes nothing: on a GPU, loads of the next rows
// then need not wait for stores.
INLINE void load_fixed_at(Type type, const void *from, At at, Pack *pack)
{
#ifdef ON_GPU
    if (at.count == LANES) {
        const uint4 *wide = (const uint4 *)((const char *)from + at.i * (type == TYPE_F32 ? 4 : 2));
        Wide low = { __ldg(wide) }, high = { type == TYPE_F32 ? __ldg(wide + 1) : low.all };
        unpack(type, low, high, pack);
        return;
    }
#endif
    load_at(type, from, at, pack);
}

INLINE void load_columns(const float *from, At at, Pack *pack)
{
    load(TYPE_F32, from, at.column, at.count, pack);
}

INLINE void add_at(Type type, const void *from, At at, Pack *pack)
{
    Pack more;
    load_at(type, from, at, &more);
    FOR_LANES(k)
        pack->v[k] += more.v[k];
}

INLINE void store_at(Type type, void *to, At at, const Pack *pack)
{
    if (at.count == LANES) {
        store_whole(type, to, at.i, pack);
        return;
    }
    FOR_FEW(k, at.count)
        store_one(type, to, at.i + k, pack->v[k]);
}

// As store_at, for values that the type represents exactly: bf16 on a CPU need not round them.
INLINE void store_exact_at(Type type, void *to, At at, const Pack *pack)
{
#ifndef ON_GPU
    if (type == TYPE_BF16 && at.count == LANES) {
        uint32_t half[LANES];
        FOR_LANES(k)
            half[k] = bits_of(pack->v[k]) >> 16;
        *(Halves *)((uint16_t *)to + at.i) = CONVERTED(half, Words, Halves);
        return;
    }
#endif
    store_at(type, to, at, pack);
}

INLINE void load_bytes(const uint8_t *from, At at, Pack *pack)
{
    if (at.count == LANES) {
#ifdef ON_GPU
        uint2 all = *(const uint2 *)(from + at.i);
        FOR_LANES(k)
            pack->v[k] = (k < 4 ? all.x : all.y) >> 8 * (k % 4) & 255;
#else
        int32_t byte[LANES];
        *(Words *)byte = CONVERTED(from + at.i, Bytes, Words);
        FOR_LANES(k)
            pack->v[k] = byte[k];
#endif
        return;
    }
    for (int k = 0; k < LANES; k++)
        pack->v[k] = k < at.count ? from[at.i + k] : 0;
}

INLINE void store_bytes(uint8_t *to, At at, const Pack *pack)
{
    if (at.count == LANES) {
#ifdef ON_GPU
        uint2 all = { 0, 0 };
        FOR_LANES(k)
            (k < 4 ? all.x : all.y) |= (unsigned)pack->v[k] << 8 * (k % 4);
        *(uint2 *)(to + at.i) = all;
#else
        int32_t byte[LANES];
        FOR_LANES(k)
            byte[k] = (int32_t)pack->v[k];
        *(Bytes *)(to + at.i) = CONVERTED(byte, Words, Bytes);
#endif
        return;
    }
    FOR_FEW(k, at.count)
        to[at.i + k] = (uint8_t)pack->v[k];
}
