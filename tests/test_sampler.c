// test_sampler.c - each rank gets exactly the samples that torch's DistributedSampler gives it.
#include "step_reference.h"

#include "../03_ddp_fork/sampler.c"

// A row of "cases" in sampler.safetensors; tools/reference/make.py writes it.
typedef struct Case {
    int64_t count, size, rank, seed, epoch, shuffle;
    int64_t share, hash;
} Case;

// FNV-1a over whole numbers, as make.py computes it.
static int64_t hash_of(const int32_t *ids, int count)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (int i = 0; i < count; i++)
        hash = (hash ^ (uint64_t)ids[i]) * 0x100000001b3;
    return (int64_t)hash;
}

// first: the first `shown` ids, compared one by one to make a difference easy to read.
static void case_compare(const Case *c, const int32_t *first, int shown)
{
    Sampler sampler = { .count = (int)c->count, .rank = (int)c->rank, .size = (int)c->size, .shuffle = c->shuffle,
                        .seed = c->seed };
    sampler_set_epoch(&sampler, c->epoch);
    int share = sampler_share(&sampler);
    EXPECT_EQ_INT(share, c->share);
    int32_t *ids = xmalloc((size_t)share * sizeof *ids);
    sampler_ids(&sampler, ids);
    for (int i = 0; i < share && i < shown; i++)
        EXPECT_EQ_INT(ids[i], first[i]);
    EXPECT(hash_of(ids, share) == c->hash, "%d samples, rank %d of %d, seed %lld, epoch %lld, shuffle %d: wrong ids",
           sampler.count, sampler.rank, sampler.size, (long long)sampler.seed, (long long)sampler.epoch,
           sampler.shuffle);
    free(ids);
}

TEST(every_id_is_torchs)
{
    StFile file = file_open("sampler.safetensors");
    const StTensor *cases = st_find(&file, "cases"), *first = st_find(&file, "first");
    CHECK(cases && first && cases->shape[1] * 8 == sizeof(Case), "make the references again",
          "sampler.safetensors: unknown format");
    for (int64_t i = 0; i < cases->shape[0]; i++)
        case_compare((const Case *)cases->data + i,
                     (const int32_t *)first->data + i * first->shape[1], (int)first->shape[1]);
    st_close(&file);
}

TEST_MAIN
