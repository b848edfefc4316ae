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

// Evenly over its range. With a different seed, epoch or sample, parts of the jitter repeat only as often as by chance.
TEST(jitter)
{
    enum { SAMPLES = 90000 };
    int y[9] = { 0 }, x[9] = { 0 }, diagonal = 0, same[3][3] = { { 0 } };
    for (int i = 0; i < SAMPLES; i++) {
        Jitter j = jitter_of(5, 2, i, 4);
        Jitter others[] = { jitter_of(6, 2, i, 4), jitter_of(5, 3, i, 4), jitter_of(5, 2, i + 1, 4) };
        if (!EXPECT(j.y >= 0 && j.y <= 8 && j.x >= 0 && j.x <= 8, "id %d: %d %d", i, j.y, j.x))
            return;
        y[j.y]++;
        x[j.x]++;
        diagonal += j.y == j.x;
        for (int k = 0; k < 3; k++) {
            same[0][k] += j.y == others[k].y;
            same[1][k] += j.x == others[k].x;
            same[2][k] += j.flip == others[k].flip;
        }
    }
    for (int i = 0; i < 9; i++)
        EXPECT(abs(y[i] - SAMPLES / 9) < 500 && abs(x[i] - SAMPLES / 9) < 500, "%d: %d and %d times", i, y[i], x[i]);
    EXPECT(abs(diagonal - SAMPLES / 9) < 500, "y == x %d times: not independent", diagonal);
    for (int i = 0; i < 9; i++)         // 5 standard deviations
        EXPECT(abs(same[i / 3][i % 3] - SAMPLES / (i < 6 ? 9 : 2)) < (i < 6 ? 480 : 760), "part %d, case %d: %d times",
               i / 3, i % 3, same[i / 3][i % 3]);
}

TEST(uniform_and_normal)
{
    enum { PAIRS = 200000 };
    double sums[4] = { 0 }, product = 0;    // sums: moments 1 to 4
    float z[2];
    EXPECT(uniform_of(0) == 0 && uniform_of(~0u) < 1, "%.9g", uniform_of(~0u));
    normal_pair(0, 0, z);
    EXPECT(isfinite(z[0]), "%g", z[0]);
    for (int i = 0; i < PAIRS; i++) {
        Philox r = philox(7, 0, (uint64_t)i);
        normal_pair(r.v[0], r.v[1], z);
        product += z[0] * z[1] / PAIRS;
        for (int power = 0; power < 4; power++)
            sums[power] += (pow(z[0], power + 1) + pow(z[1], power + 1)) / (2 * PAIRS);
    }
    EXPECT_NEAR(product, 0, 0.010);         // the numbers of a pair are independent
    EXPECT_NEAR(sums[0], 0, 0.007);         // about 4.5 standard errors each
    EXPECT_NEAR(sums[1], 1, 0.010);
    EXPECT_NEAR(sums[2], 0, 0.03);
    EXPECT_NEAR(sums[3], 3, 0.07);
}

TEST_MAIN
