// If SPY is set, prints each step that the learner's program reports.
#include "log.h"
#include "wrap.h"

#include <stdio.h>
#include <stdlib.h>

WRAPPED(log_step);
void __wrap_log_step(Log *log, const LogStep *step)
{
    if (getenv("SPY"))
        fprintf(stderr, "spy: epoch %d, step %d\n", step->epoch, (int)step->step);
    __real_log_step(log, step);
}
