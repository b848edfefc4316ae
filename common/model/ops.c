// ops.c - the part of ops.h that is the same on every device: its options.
#include "ops.h"

void ops_options(Args *args, OpsConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "tf32", 0, ARG_BOOL, &config->tf32, "0|1",
          "GPU: round inputs of f32 products to TF32, except in the last layer (0: do not)" },
        { "deterministic", 0, ARG_FLAG, &config->deterministic, NULL,
          "GPU: bit-identical runs, but slower (on a CPU they always are)" }));
}
