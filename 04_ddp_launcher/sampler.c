// sampler.c - which samples of an epoch belong to this rank.
//
// The ranks do not exchange sample numbers. Each shuffles the whole data set with the same seed, so
// all get the same order. A rank takes every size-th sample of it, starting at position rank.
//
//   8 samples, 3 ranks      order   5 2 7 0 3 6 1 4 | 5     (padded with its own beginning)
//                           rank 0  5     0     1
//                           rank 1    2     3     4
//                           rank 2      7     6     5
//
// So all ranks have the same number of steps. In each step but the last, their batches together
// hold the samples that a single process would take with the same global batch.
#include "sampler.h"
#include "check.h"
#include "rng.h"

#include <stdlib.h>

void sampler_options(Args *args, bool *drop_last)
{
    args_add(args, ARGS_ROWS(
        { "drop-last", 0, ARG_FLAG, drop_last, NULL,
          "drop samples that ranks cannot share evenly, instead of using some again" }));
}

void sampler_init(Sampler *sampler, int count, bool shuffle, bool drop_last, int64_t seed, int rank,
                  int size)
{
    *sampler = (Sampler){ count, rank, size, shuffle, drop_last, seed, 0 };
    CHECK(sampler_share(sampler) > 0, "leave out --drop-last: then every rank gets a sample",
          "%d samples are not enough for %d ranks", count, size);
}

// The share is rounded up: every sample is used, and some may be used again. With drop_last, the
// share is rounded down: the last few samples of the epoch's order are dropped.
int sampler_share(const Sampler *sampler)
{
    if (sampler->drop_last)
        return sampler->count / sampler->size;
    return sampler->count / sampler->size + (sampler->count % sampler->size > 0);
}

void sampler_set_epoch(Sampler *sampler, int64_t epoch) { sampler->epoch = epoch; }

// The order of the whole epoch, the same on all ranks.
static int32_t *epoch_order(const Sampler *sampler)
{
    int32_t *order = xmalloc((size_t)sampler->count * sizeof *order);
    torch_order(sampler->shuffle, sampler->seed + sampler->epoch, sampler->count, order);
    return order;
}

void sampler_ids(const Sampler *sampler, int32_t *ids)
{
    int32_t *order = epoch_order(sampler);
    int share = sampler_share(sampler);
    for (int i = 0; i < share; i++) {
        int64_t at = (int64_t)i * sampler->size + sampler->rank;
        ids[i] = order[at % sampler->count];    // padded with its own beginning
    }
    free(order);
}
