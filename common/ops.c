// ops.c - what is the same for every backend of ops.h.
#include "ops.h"

void ops_options(Args *args, OpsConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "tf32", 0, ARG_BOOL, &config->tf32, "0|1",
          "GPU: let f32 convolutions round their inputs to TF32, as PyTorch does" },
        { "deterministic", 0, ARG_FLAG, &config->deterministic, NULL,
          "GPU: the same bits twice, at some cost (a CPU gives them always)" }));
}

Shape pool_output(const PoolSpec *s)
{
    Shape y = s->x;
    y.h = (s->x.h + 2 * s->pad - s->kernel) / s->stride + 1;
    y.w = (s->x.w + 2 * s->pad - s->kernel) / s->stride + 1;
    return y;
}
