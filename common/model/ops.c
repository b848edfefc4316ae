// ops.c - the part of ops.h that is the same on every device: its options.
#include "ops.h"

void ops_options(Args *args, OpsConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "tf32", 0, ARG_BOOL, &config->tf32, "0|1",
          "GPU: f32 products, except the last, round their inputs to TF32, 10 bits (0: do not)" },
        { "deterministic", 0, ARG_FLAG, &config->deterministic, NULL,
          "GPU: bit-identical runs, but slower (a CPU always gives them)" }));
}
