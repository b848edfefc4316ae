// dropout.h - dropout as loops compute it.
#pragma once
#include "ops/loops.h"

// The dropout of a layer. limit 0: nothing is dropped.
typedef struct Mask {
    const uint64_t *keys;   // (samples)
    int layer;
    uint32_t limit;
    float scale;
} Mask;

static inline Mask mask_of(Dropout d, const uint64_t *keys)
{
    bool drops = keys && d.rate > 0;
    Mask mask = { .keys = keys, .layer = d.layer, .limit = drops ? dropout_limit(d.rate) : 0,
                  .scale = drops ? 1 / (1 - d.rate) : 1 };
    return mask;
}

// One sample's `stream` for dropout_keeps.
INLINE uint64_t mask_stream(const Mask *m, size_t sample)
{
    return m->limit ? dropout_stream(m->keys[sample], m->layer) : 0;
}

INLINE float masked(const Mask *m, uint64_t stream, uint32_t position, float value)
{
    return kept(m->limit == 0 || dropout_keeps(stream, position, m->limit), value * m->scale);
}
