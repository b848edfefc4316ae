// If BAD_LOSS is set, the loss of rank 1's first image is infinite when rank 1 counts its verdicts.
#include "eval_result.h"
#include "wrap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

WRAPPED(result_count);
void __wrap_result_count(Result *result, const Verdict *verdicts, size_t count)
{
    const char *rank = getenv("RANK");
    Verdict *changed = malloc((count + 1) * sizeof *changed);
    memcpy(changed, verdicts, count * sizeof *changed);
    if (getenv("BAD_LOSS") && rank && atoi(rank) == 1 && count > 0)
        changed[0].loss = INFINITY;
    __real_result_count(result, changed, count);
    free(changed);
}
