// A spy: which steps are reported. It is silent unless SPY is set.
#include "log.h"

#include <stdio.h>
#include <stdlib.h>

void __real_log_step(Log *log, const LogStep *step);
void __wrap_log_step(Log *log, const LogStep *step)
{
    if (getenv("SPY"))
        fprintf(stderr, "spy: epoch %d, step %d\n", step->epoch, (int)step->step);
    __real_log_step(log, step);
}
