// If SPY is set, adds up made-up counts of the ranks as well, and prints the sums: with eval_sum, whenever the program
// calls it.
#include "eval.h"
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>

WRAPPED(eval_sum);
Stats __wrap_eval_sum(Eval *eval, const Stats *mine)
{
    const Stats of_ranks[2] = {
        { .loss_sum = 6, .count = 3, .correct1 = 2, .correct5 = 3, .batch_loss_sum = 4, .batch_count = 2,
          .batch_correct1 = 1 },
        { .loss_sum = 2.5, .count = 1, .correct5 = 1, .batch_loss_sum = 2.5, .batch_count = 1, .not_finite = 1 },
    };
    if (getenv("SPY")) {
        const int rank = atoi(getenv("RANK"));
        Stats s = __real_eval_sum(eval, &of_ranks[rank]);
        fprintf(stderr, "spy: rank %d: %g %lld %lld %lld %g %lld %lld %lld\n", rank, s.loss_sum, (long long)s.count,
                (long long)s.correct1, (long long)s.correct5, s.batch_loss_sum, (long long)s.batch_count,
                (long long)s.batch_correct1, (long long)s.not_finite);
    }
    return __real_eval_sum(eval, mine);
}
