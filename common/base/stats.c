#include "stats.h"
#include "check.h"

#include <unistd.h>

// Rank 0 prints the message. A launcher might end rank 0 before that if another rank ended first.
static _Noreturn void leave_to_rank_0(void)
{
    sleep(1);
    leave_at_once(EXIT_DIVERGED);
}

void fail_diverged(const Stats *stats, int64_t epoch, int64_t step)
{
    bool own = stats->not_finite > 0;
    const char *what = "the loss";
    if (!own && own_rank() > 0)
        leave_to_rank_0();
    if (!own)
        what = stats->bad_gradients == 0 ? "some rank's loss"
             : rank_count() > 1 ? "a gradient on some rank" : "a gradient";
    if (step == 0)
        fail_at(__FILE__, __LINE__, EXIT_DIVERGED,
                "load an earlier checkpoint, or different weights",
                "%s is not finite with the weights that were loaded", what);
    fail_at(__FILE__, __LINE__, EXIT_DIVERGED, "try a smaller --lr or a --warmup",
            "%s is not finite in epoch %lld, at or before step %lld", what, (long long)epoch,
            (long long)step);
}

void fail_loss_scale(double scale, bool fixed, int64_t epoch, int64_t step)
{
    if (own_rank() > 0)
        leave_to_rank_0();
    fail_at(__FILE__, __LINE__, EXIT_DIVERGED,
            fixed ? "choose a smaller --loss-scale, or leave the option out"
                  : "try a smaller --lr, a --warmup, or --amp bf16",
            "gradients%s are not finite with a loss scale %s %g, in epoch %lld, at or before step "
            "%lld", rank_count() > 1 ? " on some rank" : "", fixed ? "of" : "that has fallen to",
            scale, (long long)epoch, (long long)step);
}
