// The random crops and flips. Philox itself is tested in test_step.c: there, PyTorch got its states from a different
// implementation.
#include "rng.h"
#include "test.h"

#include <stdlib.h>

// The jitter covers its range evenly. With a different seed, epoch or sample, parts of it repeat only by chance.
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

TEST_MAIN
