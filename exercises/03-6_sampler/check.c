// harness yours|right COUNT SIZE SEED EPOCH SHUFFLE DROP_LAST: one line for each rank with the
// samples that it takes. "right" is computed here, "yours" by the learner's sampler.c.
#include "check.h"
#include "rng.h"
#include "sampler.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 1000, UNTOUCHED = -77 };

static int right(const Sampler *s, int32_t *ids)
{
    int32_t order[MOST];
    int share = s->drop_last ? s->count / s->size : (s->count + s->size - 1) / s->size;
    torch_order(s->shuffle, s->seed + s->epoch, s->count, order);
    for (int i = 0; i < share; i++)
        ids[i] = order[(i * s->size + s->rank) % s->count];
    return share;
}

static int yours(const Sampler *s, int64_t epoch, int32_t *ids)
{
    Sampler sampler = *s;
    sampler.epoch = 0;
    sampler_set_epoch(&sampler, epoch);
    int share = sampler_share(&sampler);
    if (share >= 0 && share < MOST)
        sampler_ids(&sampler, ids);
    return share;
}

int main(int argc, char **argv)
{
    if (argc != 8)
        return EXIT_USAGE;
    Sampler s = { .count = atoi(argv[2]), .size = atoi(argv[3]), .seed = atoi(argv[4]),
                  .epoch = atoi(argv[5]), .shuffle = atoi(argv[6]), .drop_last = atoi(argv[7]) };
    for (s.rank = 0; s.rank < s.size; s.rank++) {
        static int32_t ids[2 * MOST];
        for (int i = 0; i < 2 * MOST; i++)
            ids[i] = UNTOUCHED;
        int share = strcmp(argv[1], "right") == 0 ? right(&s, ids) : yours(&s, s.epoch, ids);
        printf("rank %d takes %d:", s.rank, share);
        for (int i = 0; i < share && i < MOST; i++)
            if (ids[i] == UNTOUCHED)
                printf(" -");
            else
                printf(" %d", (int)ids[i]);
        printf("%s\n", share >= 0 && share < MOST && ids[share] != UNTOUCHED
                           ? " ... and it writes past the end" : "");
    }
    return 0;
}
