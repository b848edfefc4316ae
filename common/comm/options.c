// options.c - a communicator's options, in their own file: a program that reuses only ddp.c and
// broadcast.c needs none of them.
#include "args.h"
#include "comm.h"

void comm_options(Args *args, CommConfig *config)
{
    args_add(args, ARGS_ROWS(
        { "slow-network", 0, ARG_DOUBLE, &config->slow_network, "MB/S",
          "simulate a slow network: this rate for each rank, and 1 ms of latency (0: off)",
          .min = 0, .max = 1e6 }));
}
