// rng.h - two random number generators. Philox is counter-based: any rank or thread can compute the
// random bits for (seed, epoch, sample). MT19937 is torch.Generator's algorithm on the CPU.
#pragma once
#include <stdbool.h>
#include <stdint.h>

// Philox4x32-10 (Salmon et al., 2011): ten rounds turn a 128-bit counter and a 64-bit key into
// 128 random bits.
typedef struct Philox {
    uint32_t v[4];
} Philox;

static inline Philox philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)counter_lo, c1 = (uint32_t)(counter_lo >> 32);
    uint32_t c2 = (uint32_t)counter_hi, c3 = (uint32_t)(counter_hi >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Philox out = { { c0, c1, c2, c3 } };
    return out;
}

// Where a training sample's crop starts (y, x: 0 .. 2 * padding), and whether to mirror the sample.
typedef struct Jitter {
    int y, x, flip;
} Jitter;

static inline Jitter jitter_of(uint64_t seed, int64_t epoch, int32_t id, int padding)
{
    Philox r = philox(seed, (uint64_t)epoch, (uint64_t)(uint32_t)id);
    uint32_t range = 2 * (uint32_t)padding + 1;
    Jitter j;
    j.y = (int)(((uint64_t)r.v[0] * range) >> 32);
    j.x = (int)(((uint64_t)r.v[1] * range) >> 32);
    j.flip = (int)(r.v[2] >> 31);
    return j;
}

// By how many bytes all windows of an epoch are shifted: 0 to block - 1.
static inline int text_offset(uint64_t seed, int64_t epoch, int block)
{
    uint64_t random = philox(seed, (uint64_t)epoch, UINT64_MAX).v[0];
    return (int)((random * (unsigned)block) >> 32);
}

// Uniform in [0, 1), from the upper 24 bits.
static inline float uniform_of(uint32_t bits) { return (float)(bits >> 8) * 0x1p-24f; }
// Makes two standard normal values from 64 random bits.
void normal_pair(uint32_t bits0, uint32_t bits1, float out[2]);

// out = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
void torch_randperm(uint64_t seed, int count, int32_t *out);
// Fills `out` with 0 to count - 1: shuffled as by torch_randperm, or in ascending order.
void torch_order(bool shuffle, int64_t seed, int count, int32_t *out);
