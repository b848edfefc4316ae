// packs.h - LANES numbers at a time, of any type.
//
// An operation loads packs of LANES neighbours, computes in f32 with loops over lanes, and stores
// packs. On a GPU a pack is one or two loads of 16 bytes. On a CPU it is one to four vectors, and
// the compiler turns loops over lanes into vector code.
#pragma once
#include "ops/numbers.h"

#ifdef ON_GPU
enum { LANES = 8 };     // 16 bytes of 16-bit numbers
#define FOR_LANES(k) _Pragma("unroll") for (int k = 0; k < LANES; k++)
#else
enum { LANES = 16 };    // 64 bytes of f32
#define FOR_LANES(k) _Pragma("omp simd") for (int k = 0; k < LANES; k++)
#endif

typedef struct Pack {
    float v[LANES];
} Pack;

// The place of up to LANES neighbours in a row of a matrix.
typedef struct At {
    size_t row, column;
    size_t i;               // of the first number in memory
    int count;              // at most LANES
} At;

// How numbers in memory form a matrix. An activation, data[n][c / block][h * w][block], is a matrix
// with a row for each pixel and a column for each channel. Other matrices are one block: row after
// row.
typedef struct Matrix {
    Type type;
    size_t rows, columns;
    size_t block;           // columns of a block
    size_t pixels;          // rows of an image
} Matrix;

static inline Matrix matrix_of(Type type, size_t rows, size_t columns)
{
    Matrix m = { type, rows, columns, columns, rows };
    return m;
}

static inline Matrix array_of(Type type, size_t count) { return matrix_of(type, 1, count); }

static inline Matrix pixels_of(Shape s)
{
    size_t pixels = (size_t)s.h * s.w;
    Matrix m = { s.type, s.n * pixels, (size_t)s.c, (size_t)s.block, pixels };
    return pixels == 1 ? matrix_of(s.type, s.n, s.c) : m;
}

// Where the number of this row and column is. On a GPU all activations are one block (NHWC).
INLINE size_t element_of(const Matrix *m, size_t row, size_t column)
{
#ifdef ON_GPU
    return row * m->columns + column;
#else
    size_t image = row / m->pixels, pixel = row % m->pixels;
    size_t plane = image * (m->columns / m->block) + column / m->block;
    return (plane * m->pixels + pixel) * m->block + column % m->block;
#endif
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

INLINE void load_whole(Type type, const void *from, size_t i, Pack *pack)
{
    FOR_LANES(k)
        pack->v[k] = load_one(type, from, i + k);
}

INLINE void store_whole(Type type, void *to, size_t i, const Pack *pack)
{
    FOR_LANES(k)
        store_one(type, to, i + k, pack->v[k]);
}

#endif

// `count` numbers from the number i on; the other lanes are 0.
INLINE void load(Type type, const void *from, size_t i, int count, Pack *pack)
{
    if (count == LANES) {
        load_whole(type, from, i, pack);
        return;
    }
    FOR_LANES(k)
        pack->v[k] = 0;
    for (int k = 0; k < LANES; k++)
        if (k < count)
            pack->v[k] = load_one(type, from, i + k);
}

INLINE void load_at(Type type, const void *from, At at, Pack *pack)
{
    load(type, from, at.i, at.count, pack);
}

// Loads from a matrix to which the loop writes nothing. On a GPU, loads of the next rows then need
// not wait for stores.
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
    for (int k = 0; k < LANES; k++)
        if (k < at.count)
            store_one(type, to, at.i + k, pack->v[k]);
}

// Stores values that the type represents exactly, which is faster in bf16 on a CPU.
INLINE void store_exact_at(Type type, void *to, At at, const Pack *pack)
{
#ifndef ON_GPU
    if (type == TYPE_BF16 && at.count == LANES) {
        FOR_LANES(k)
            ((uint16_t *)to)[at.i + k] = (uint16_t)(bits_of(pack->v[k]) >> 16);
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
        FOR_LANES(k)
            pack->v[k] = from[at.i + k];
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
        FOR_LANES(k)
            to[at.i + k] = (uint8_t)pack->v[k];
#endif
        return;
    }
    for (int k = 0; k < LANES; k++)
        if (k < at.count)
            to[at.i + k] = (uint8_t)pack->v[k];
}
