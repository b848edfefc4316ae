// stats.h - losses and correct predictions, summed up on the device over batches.
#pragma once
#include <stdint.h>

typedef struct Stats {
    double loss_sum;                        // of this epoch, finite losses only (the mean is
                                            // loss_sum / count)
    int64_t count, correct1, correct5;
    double batch_loss_sum;                  // of the last batch alone, finite or not
    int64_t batch_count, batch_correct1;
    int64_t not_finite;                     // losses that were infinite or not a number
    int64_t bad_gradients;                  // steps skipped because a gradient was not finite
} Stats;
