// sampler.h - which samples of an epoch belong to this rank, as in PyTorch's DistributedSampler.
#pragma once
#include "args.h"

typedef struct Sampler {
    int count;              // samples in the data set
    int rank, size;
    bool shuffle, drop_last;
    int64_t seed, epoch;
} Sampler;

void sampler_options(Args *args, bool *drop_last);
void sampler_init(Sampler *sampler, int count, bool shuffle, bool drop_last, int64_t seed, int rank,
                  int size);
// How many samples each rank gets: the same number for all.
int sampler_share(const Sampler *sampler);
// If shuffled, each epoch has its own order. All ranks must set the same epoch.
void sampler_set_epoch(Sampler *sampler, int64_t epoch);
// Fills ids with this rank's samples, sampler_share of them.
void sampler_ids(const Sampler *sampler, int32_t *ids);
