#include "rng.h"
#include "check.h"
#include <math.h>

// The Box-Muller transform: two uniform values give a radius and an angle.
void normal_pair(uint32_t bits0, uint32_t bits1, float out[2])
{
    float radius = sqrtf(-2.0f * logf(((float)bits0 + 1.0f) * 0x1p-32f));
    float sine, cosine;
    sincosf((float)bits1 * (float)(2.0 * M_PI * 0x1p-32), &sine, &cosine);
    out[0] = radius * cosine;
    out[1] = radius * sine;
}

// MT19937 (Matsumoto and Nishimura, 1998): a shift register of 624 words, regenerated all at once.
enum { MT_WORDS = 624, MT_MIDDLE = 397 };

typedef struct Twister {
    uint32_t state[MT_WORDS];
    int next;
} Twister;

static void twister_seed(Twister *mt, uint32_t seed)
{
    mt->state[0] = seed;
    for (uint32_t i = 1; i < MT_WORDS; i++)
        mt->state[i] = 1812433253u * (mt->state[i - 1] ^ (mt->state[i - 1] >> 30)) + i;
    mt->next = MT_WORDS;
}

static void twister_renew(Twister *mt)
{
    uint32_t *s = mt->state;
    for (int i = 0; i < MT_WORDS; i++) {
        uint32_t joined = (s[i] & 0x80000000u) | (s[(i + 1) % MT_WORDS] & 0x7fffffffu);
        uint32_t odd = joined & 1 ? 0x9908b0dfu : 0;
        s[i] = s[(i + MT_MIDDLE) % MT_WORDS] ^ (joined >> 1) ^ odd;
    }
    mt->next = 0;
}

static uint32_t twister_next(Twister *mt)
{
    if (mt->next == MT_WORDS)
        twister_renew(mt);
    uint32_t y = mt->state[mt->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

// A Fisher-Yates shuffle, from the front. Like PyTorch, uses 32 bits of the seed and a plain
// remainder (whose bias is below count / 2^32). Fails for TORCH_LIMIT samples or more: PyTorch then
// uses a different algorithm.
void torch_randperm(uint64_t seed, int count, int32_t *out)
{
    enum { TORCH_LIMIT = (int)(UINT32_MAX / 20) };
    CHECK(count < TORCH_LIMIT,
          "use fewer samples (--train-samples N), or a larger --block if the data is a text",
          "cannot shuffle %d samples: the maximum is %d", count, TORCH_LIMIT - 1);
    for (int i = 0; i < count; i++)
        out[i] = i;

    Twister mt;
    twister_seed(&mt, (uint32_t)seed);
    for (int i = 0; i < count - 1; i++) {
        int other = i + (int)(twister_next(&mt) % (uint32_t)(count - i));
        int32_t id = out[i];
        out[i] = out[other];
        out[other] = id;
    }
}

void torch_order(bool shuffle, int64_t seed, int count, int32_t *out)
{
    for (int i = 0; i < count; i++)
        out[i] = i;
    if (shuffle)
        torch_randperm((uint64_t)seed, count, out);
}
