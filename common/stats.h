// stats.h - what batches of training, or a test, have shown: sums, which a device adds to.
#pragma once
#include <stdint.h>

typedef struct Stats {
    double loss_sum;                        // since the epoch began, where it was finite (the mean
                                            // is loss_sum / count)
    int64_t count, correct1, correct5;
    double batch_loss_sum;                  // of the last batch alone, finite or not
    int64_t batch_count, batch_correct1;
    int64_t not_finite;                     // losses that were infinite or not a number
    int64_t bad_gradients;                  // steps left out for a gradient that was one of these
} Stats;
