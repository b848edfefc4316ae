// If DIE is set, the program ends in its first evaluation, after it has saved.
#include "model.h"
#include "wrap.h"

#include <stdlib.h>
#include <unistd.h>

WRAPPED(model_forward);
void __wrap_model_forward(Model *model, const void *images, int rows, bool training)
{
    if (!training && getenv("DIE"))
        _exit(9);
    __real_model_forward(model, images, rows, training);
}
