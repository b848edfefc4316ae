// stats.h - sums of losses and correct predictions.
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct Stats {
    double loss_sum;                        // over an epoch or test, only batches with finite sums
    double batch_loss_sum;                  // over the last batch alone, finite or not
    int64_t count, correct1, correct5;
    int64_t batch_count, batch_correct1;
    int64_t not_finite;                     // losses that were infinite or not a number
    int64_t bad_gradients;                  // steps skipped because a gradient was not finite
} Stats;
// What ranks add up: the two sums of losses, and the integers from `count` to `not_finite`. All
// ranks skip the same steps, so bad_gradients is the same on all.
enum { STATS_SUMS = 2, STATS_COUNTS = 6 };

// Ends this process because a loss or a gradient was not finite. Rank 0 prints a message, and so
// does each rank with such a loss. step 0: before any step, with the loaded weights.
_Noreturn void fail_diverged(const Stats *stats, int64_t epoch, int64_t step);
// Ends this process because gradients are not finite with a fixed loss scale, or with one that has
// fallen below 1. Rank 0 prints a message.
_Noreturn void fail_loss_scale(double scale, bool fixed, int64_t epoch, int64_t step);
