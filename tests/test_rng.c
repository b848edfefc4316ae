// The random generators: known answers, distributions.
#include "rng.h"
#include "test.h"

#include <math.h>

// From the test vectors of Random123, whose authors invented Philox.
TEST(philox_known_answers)
{
    static const struct {
        uint64_t key, high, low;
        uint32_t wanted[4];
    } cases[] = {
        { 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { ~0ull, ~0ull, ~0ull, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { 0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88,
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Philox r = philox(cases[i].key, cases[i].high, cases[i].low);
        for (int word = 0; word < 4; word++)
            EXPECT(r.v[word] == cases[i].wanted[word], "case %zu, word %d: %08x", i, word,
                   r.v[word]);
    }
}

TEST(jitter_covers_its_range_evenly)
{
    enum { SAMPLES = 90000 };
    int y[9] = { 0 }, x[9] = { 0 }, flips = 0, diagonal = 0;
    for (int32_t id = 0; id < SAMPLES; id++) {
        Jitter j = jitter_of(1, 2, id, 4);
        if (!EXPECT(j.y >= 0 && j.y <= 8 && j.x >= 0 && j.x <= 8, "id %d: %d %d", id, j.y, j.x))
            return;
        y[j.y]++;
        x[j.x]++;
        flips += j.flip;
        diagonal += j.y == j.x;
    }
    for (int i = 0; i < 9; i++)
        EXPECT(abs(y[i] - SAMPLES / 9) < 500 && abs(x[i] - SAMPLES / 9) < 500, "%d: %d and %d times", i, y[i], x[i]);
    EXPECT(abs(flips - SAMPLES / 2) < 800, "%d flips", flips);
    EXPECT(abs(diagonal - SAMPLES / 9) < 500, "y == x %d times: not independent", diagonal);
}

// With a different seed, epoch or sample, parts of the jitter repeat only as often as by chance.
TEST(jitter_depends_on_seed_epoch_and_id)
{
    enum { SAMPLES = 9000 };
    int y[3] = { 0 }, x[3] = { 0 }, flip[3] = { 0 };
    for (int i = 0; i < SAMPLES; i++) {
        int epoch = i % 10;
        Jitter base = jitter_of(5, epoch, i, 4);
        Jitter others[3] = { jitter_of(6, epoch, i, 4), jitter_of(5, epoch + 1, i, 4),
                             jitter_of(5, epoch, i + 1, 4) };
        for (int k = 0; k < 3; k++) {
            y[k] += base.y == others[k].y;
            x[k] += base.x == others[k].x;
            flip[k] += base.flip == others[k].flip;
        }
    }
    for (int k = 0; k < 3; k++) { // 5 standard deviations
        EXPECT(abs(y[k] - SAMPLES / 9) < 150, "case %d: %d times the same y", k, y[k]);
        EXPECT(abs(x[k] - SAMPLES / 9) < 150, "case %d: %d times the same x", k, x[k]);
        EXPECT(abs(flip[k] - SAMPLES / 2) < 240, "case %d: %d times the same flip", k, flip[k]);
    }
}

TEST(uniform_and_normal)
{
    EXPECT_NEAR(uniform_of(0), 0, 0);
    EXPECT(uniform_of(~0u) < 1, "%.9g", uniform_of(~0u));
    float z[2];
    normal_pair(0, 0, z);
    EXPECT(isfinite(z[0]) && z[0] > 6 && z[1] == 0, "%g %g", z[0], z[1]);
    normal_pair(~0u, 0, z);
    EXPECT(fabsf(z[0]) < 1e-3f && fabsf(z[1]) < 1e-3f, "%g %g", z[0], z[1]);

    enum { SAMPLES = 400000 };
    double sums[4] = { 0 }, product = 0;    // sums: moments 1 to 4
    for (int i = 0; i < SAMPLES; i++) {
        Philox r = philox(7, 0, (uint64_t)(i / 2));
        if (i % 2 == 0) {
            normal_pair(r.v[0], r.v[1], z);
            product += z[0] * z[1];
        }
        for (int power = 0; power < 4; power++)
            sums[power] += pow(z[i % 2], power + 1) / SAMPLES;
    }
    EXPECT_NEAR(product / (SAMPLES / 2), 0, 0.010); // the numbers of a pair are independent
    EXPECT_NEAR(sums[0], 0, 0.007);                 // about 4.5 standard errors each
    EXPECT_NEAR(sums[1], 1, 0.010);
    EXPECT_NEAR(sums[2], 0, 0.03);
    EXPECT_NEAR(sums[3], 3, 0.07);
}

// As in PyTorch, only the low 32 bits count.
TEST(randperm_takes_32_bits_of_the_seed)
{
    static int32_t ids[1000], same[1000];
    torch_randperm((1ull << 40) + 3, 1000, ids);
    torch_randperm(3, 1000, same);
    EXPECT(memcmp(ids, same, sizeof ids) == 0, "the upper bits matter");
}

TEST_MAIN
